"""Rules tuned on the zoos that come with layerprobe -> what they predict of other models, and how far to trust them.

Knows numbers, and no files but those of the zoos.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np

from layerprobe.errors import DataError
from layerprobe.lab.dropbench.bench import known_drops, outcomes_of, readings_in
from layerprobe.lab.dropbench.values import OTHER_SEED
from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.names import nearest
from layerprobe.prediction.redraws import DRAWS, drop_probability, redraw
from layerprobe.prediction.registry import rules_for
from layerprobe.prediction.rule import Call, HasCurves, KnownDrop, ModelCurves, Predictor, Rule, fitted, obstacle
from layerprobe.prediction.rules import depth
from layerprobe.prediction.values import DropProbability, Record
from layerprobe.readings.registry import CKA, cka_with
from layerprobe.readings.values import LayerCurve

REFERENCE = cka_with(OTHER_SEED)
"""What the zoos call CKA against an MLM model that began with other weights, which is what every reference is."""
BUDGET = "converged"
"""Of the fine-tuning that rules are tuned to predict; it is nearer to the paper's than the gentle one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TunedRule:
    """A rule that was tuned on all models of the zoos."""

    rule: Rule
    predict: Predictor
    record: Record
    """How it fares on families that it was not tuned on."""

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
    return tuple(name for name, rule in _rules().items() if labelled or not rule.labelled)


def rule_curves(name: str) -> tuple[str, ...]:
    """Return the names of the readings that a rule needs; raise DataError if there is no such rule."""
    return _rule(name).curves


@functools.cache
def tuned_rule(name: str, *, budget: str = BUDGET) -> TunedRule:
    """Return a rule tuned on the zoos, with its record on models of families that it was not tuned on.

    Raises:
        DataError: If there is no such rule or budget.
    """
    rule, models = _rule(name), _models(budget)
    outcomes = outcomes_of(rule, models)
    record = Record(
        budget=budget,
        families=len({each.family for each in outcomes}),
        models=len(outcomes),
        drops=sum(each.drop for each in outcomes),
        caught=sum(each.drop and each.called > 0 for each in outcomes),
        false_alarms=sum(not each.drop and each.called > 0 for each in outcomes),
        mean_regret=float(np.mean([each.regret for each in outcomes])),
        median_regret=float(np.median([each.regret for each in outcomes])),
    )
    return TunedRule(rule=rule, predict=fitted(rule, models), record=record)


def tuned_rules(*, budget: str = BUDGET) -> list[Rule]:
    """Return the rules as `tuned_rule` has them, and what one does without looking, with nothing left to choose.

    So `bench_predictors` scores them on models that had no part in the tuning, of whatever family.

    Raises:
        DataError: If there is no such budget.
    """
    models = _models(budget)

    def as_tuned(name: str, rule: Rule) -> Rule:
        predict = fitted(rule, models)
        return replace(rule, name=name, fit=lambda _: predict, parameters=0)

    named = {**{rule.name: rule for rule in depth.rules({}, [])}, **_rules()}
    return [as_tuned(name, rule) for name, rule in named.items()]


def _rule(name: str) -> Rule:
    if name not in _rules():
        raise DataError(f"expected a rule among {'; '.join(_rules())}; got {name!r}{nearest(name, _rules())}")
    return _rules()[name]


@functools.cache
def _rules() -> dict[str, Rule]:
    """Return the rules that look at one model and one reference, by what people call them."""
    models = _models(BUDGET)
    rules = {}
    for rule in rules_for(readings_in(read_zoo().entries)):
        others = any(curve.startswith(cka_with("")) and curve != REFERENCE for curve in rule.curves)
        if rule.curves and not others and obstacle(rule, models) is None:
            rules[rule.name.replace(REFERENCE, CKA)] = rule
    return rules


@functools.cache
def _models(budget: str) -> list[KnownDrop]:
    entries = read_zoo().entries
    models = known_drops(entries, budget)
    if not models:
        names = dict.fromkeys(name for entry in entries for name in entry.budgets)
        raise DataError(f"expected a budget among {', '.join(names)}, got {budget!r}")
    return models
