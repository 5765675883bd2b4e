"""Rules with the parameters that they were fitted with -> what they predict of a model, and how far to trust them.

Parameters and records stand in `rules.json`; nothing is fitted here, but rules of other packages, by the lab.
"""

import functools
from dataclasses import dataclass
from types import FunctionType

import numpy as np

from layerprobe.errors import DataError
from layerprobe.names import nearest
from layerprobe.prediction.parameters import FittedRule, fitted_parameters
from layerprobe.prediction.redraws import DRAWS, drop_probability, redraw
from layerprobe.prediction.registry import RULES, rules_for
from layerprobe.prediction.rule import Call, Fit, HasCurves, ModelCurves, Predictor, Rule
from layerprobe.prediction.values import DropProbability, Record
from layerprobe.readings.registry import reading_of
from layerprobe.readings.values import LayerCurve
from layerprobe.registry import Registry

FITTERS: Registry[FunctionType] = Registry("layerprobe.fitters", FunctionType, what="way to fit rules", shipped={})
"""What fits a rule of another package, whose parameters are not in the file: the lab, which adds an entry point."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TunedRule:
    """A rule with its parameters."""

    rule: Rule
    predict: Predictor
    record: Record
    """How it fares on families that it was not fitted to."""

    def __call__(self, model: HasCurves) -> Call:
        """Return what the rule predicts of a model; raise DataError if the model lacks what it reads."""
        if not self.rule.reads(model):
            missing = ", ".join(sorted(set(self.rule.curves) - model.curves.keys()))
            raise DataError(f"expected {missing} of the model for the rule {self.rule.name!r}, got none")
        (call,) = self.predict(model)
        return call

    def probability(self, model: HasCurves, *, draws: int = DRAWS, seed: int = 0) -> DropProbability | None:
        """Return what the rule predicts of a model when what it reads is redrawn within its errors, so many times.

        Returns:
            None where the rule reads several curves, whose errors go together, or one of unknown errors.
        """
        if len(self.rule.curves) != 1:
            return None
        (name,) = self.rule.curves
        curve = model.curves[name]
        if curve.uncertainty is None:
            return None

        def onset(values: list[float]) -> int:
            call = self(ModelCurves(n_blocks=model.n_blocks, curves={name: LayerCurve(values=tuple(values))}))
            return model.n_blocks + 1 if call.onset is None else call.onset

        drawn = redraw(curve.values, curve.uncertainty.covariance, draws=draws, seed=seed)
        onsets = np.array([onset(values) for values in drawn.tolist()])
        return drop_probability(onsets, n_layers=model.n_blocks + 1, seed=seed)


def rule_names(*, labelled: bool = True) -> tuple[str, ...]:
    """Return the names of rules that `tuned_rule` takes.

    Args:
        labelled: Whether those that need labels are among them.
    """
    rules: tuple[FittedRule | Rule, ...] = (*fitted_parameters().rules, *_outside().values())
    return tuple(rule.name for rule in rules if labelled or not rule.labelled)


def rule_curves(name: str) -> tuple[str, ...]:
    """Return the names of the readings that a rule needs; raise DataError if there is no such rule."""
    return (fitted_parameters().by_name.get(name) or _outside_rule(name)).curves


@functools.cache
def tuned_rule(name: str) -> TunedRule:
    """Return a rule as it was fitted to the zoos, with its record on models of families that it was not fitted to."""
    if name not in fitted_parameters().by_name:
        rule = _outside_rule(name)
        if "zoos" not in FITTERS:
            raise DataError(
                f"the rule {name!r} cannot be fitted: the entry point 'zoos' of layerprobe.fitters is missing; install "
                "layerprobe again"
            )
        tuned: TunedRule = FITTERS["zoos"](rule)
        return tuned
    row = fitted_parameters().by_name[name]
    rules = rules_for({reading: reading_of(reading) for reading in row.curves})
    rule = next(rule for rule in rules if rule.name == name)
    assert isinstance(rule.fit, Fit)  # else it had no parameters to write down
    return TunedRule(rule=rule, predict=rule.fit.make(**row.parameters), record=row.record)


def _outside_rule(name: str) -> Rule:
    if name not in _outside():
        names = rule_names()
        raise DataError(f"expected a rule among {'; '.join(names)}; got {name!r}{nearest(name, names)}")
    return _outside()[name]


@functools.cache
def _outside() -> dict[str, Rule]:
    """Return the rules of other packages that read what rules of the file read."""
    if RULES.keys() <= RULES.shipped.keys():
        return {}
    readings = dict.fromkeys(reading for rule in fitted_parameters().rules for reading in rule.curves)
    rules = rules_for({name: reading_of(name) for name in readings})
    return {rule.name: rule for rule in rules if rule.curves and rule.name not in fitted_parameters().by_name}
