"""What a rule is: it says from a model's numbers by layer whether it drops and where to truncate. Knows numbers only.

A rule without parameters stands as it is. One with parameters is fitted to models whose drops are known, or made from
parameters that were fitted before.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.prediction.values import Truth
from layerprobe.readings.reading import LayerCurve, Reading
from layerprobe.registry import Registry

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCurves:
    """Numbers by layer of a model."""

    n_blocks: int
    """Layers count from 0 to this."""
    curves: Mapping[str, LayerCurve]
    """By the names of readings; CKA with a reference is `CKA, <reference>`."""


Predictor = Callable[[ModelCurves], tuple[int, ...]]
"""A rule with its parameters: a model -> where to truncate, all layers behind being taken to drop; several layers are
equally likely."""
Parameters = Mapping[str, Any]
"""Of a rule, by name: what JSON can hold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownDrop:
    """A model with what fine-tuning under one budget showed: what rules are fitted to and scored on."""

    name: str
    family: str
    """The pretraining objective."""
    model: ModelCurves
    truth: Truth
    regrets: Array
    """(layers,) points below the layer that a sweep would choose."""


def nothing_to_choose(models: Sequence[KnownDrop]) -> Parameters:
    """Return the parameters of a rule that has none."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A way to predict, before its parameters are chosen."""

    name: str
    curves: tuple[str, ...]
    """The readings that it needs; of a model that lacks one it can say nothing."""
    make: Callable[..., Predictor]
    """Parameters, by name -> a predictor; the only way to one, whether they were chosen now or are read."""
    choose: Callable[[Sequence[KnownDrop]], Parameters] = nothing_to_choose
    """Models whose drops are known, at least one -> parameters."""
    parameters: int = 0
    """How many are chosen."""
    labelled: bool = False
    """Whether it needs labels."""
    source: str = ""
    """Who proposed it, or what it is a control for; empty where that is said of what it reads."""

    def fit(self, models: Sequence[KnownDrop]) -> Predictor:
        """Return the predictor that models with known drops make."""
        return self.make(**self.choose(models))

    def reads(self, model: ModelCurves) -> bool:
        """Return whether a model has all that the rule needs."""
        return set(self.curves) <= model.curves.keys()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadingPredictor:
    """A predictor of the values of one reading alone, which takes many curves at once."""

    name: str
    """The reading."""
    layers: Callable[[Array], NDArray[np.intp]]
    """(curves, layers) values -> (curves,) where to truncate."""

    def __call__(self, model: ModelCurves) -> tuple[int, ...]:
        """Return where to truncate a model."""
        return (int(self.layers(layer_values(model, self.name)[None])[0]),)


def loss(layer: int, case: KnownDrop) -> float:
    """Return what parameters are chosen by: the regret in points, and one point for a wrong call of drop or none."""
    return float(case.regrets[layer]) + ((layer < case.model.n_blocks) != case.truth.drop)


# ---- what rules read -----------------------------------------------------------------------------------


def before_final_run(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the layer before the final run of flagged ones, of (.., layers) flags; layer 0 is never flagged."""
    bare = ~flags[..., :0:-1]
    run = np.where(bare.any(axis=-1), bare.argmax(axis=-1), bare.shape[-1])
    layers: NDArray[np.intp] = flags.shape[-1] - 1 - run
    return layers


def layer_values(model: ModelCurves, name: str) -> Array:
    """Return (layers,) values of a reading."""
    return np.array(model.curves[name].values)


def falls(values: Array, *, unit: float | None = None) -> Array:
    """Return how far each value lies below the highest before it; 0 where it lies above.

    Args:
        values: (.., layers) of any sign.
        unit: What to measure in; by default the largest size in the curve, so that a fall is 0 .. 2.

    Examples:
        >>> falls(np.array([0.5, 0.8, 0.6, 0.4])).round(2).tolist()
        [0.0, 0.0, 0.25, 0.5]
    """
    below: Array = np.maximum.accumulate(values, axis=-1) - values
    units = np.abs(values).max(axis=-1, keepdims=True) if unit is None else unit
    return below / np.where(units > 0, units, 1.0)  # a curve of zeros falls nowhere


# ---- how rules are fitted ------------------------------------------------------------------------------


def best_on_grid(
    make: Callable[..., Predictor], grid: Sequence[Parameters], name: str
) -> Callable[[Sequence[KnownDrop]], Parameters]:
    """Return what chooses the parameters of a grid with the lowest mean loss on known models, the first of equals.

    Args:
        make: Parameters, by name -> a predictor.
        grid: The parameters to choose from.
        name: Of the rule, for messages.
    """
    candidates = [make(**parameters) for parameters in grid]

    @functools.cache
    def losses(case: KnownDrop) -> Array:
        return np.array([np.mean([loss(layer, case) for layer in predict(case.model)]) for predict in candidates])

    def choose(models: Sequence[KnownDrop]) -> Parameters:
        check_some(models, name)
        return grid[int(np.mean([losses(case) for case in models], axis=0).argmin())]

    return choose


def check_some(models: Sequence[object], name: str) -> None:
    """Raise DataError unless there are models to fit a rule to."""
    if not models:
        raise DataError(f"expected models of other families to tune {name!r} on, got none")


def fitted(rule: Rule, models: Sequence[KnownDrop]) -> Predictor:
    """Fit a rule to those models that have what it needs.

    Of a model that lacks it the rule calls no drop and takes the last layer, as one does who cannot look.
    """
    predict = rule.fit([case for case in models if rule.reads(case.model)])
    return lambda model: predict(model) if rule.reads(model) else (model.n_blocks,)


def leave_one_family_out(rule: Rule, models: Sequence[KnownDrop]) -> list[tuple[int, ...]]:
    """Return what a rule predicts of each model when it is fitted to models of other families alone."""
    predictors = {
        family: fitted(rule, [case for case in models if case.family != family])
        for family in dict.fromkeys(case.family for case in models)
    }
    return [predictors[case.family](case.model) for case in models]


def obstacle(rule: Rule, models: Sequence[KnownDrop]) -> str | None:
    """Return why a rule cannot be scored leave-one-family-out, None where it can."""
    families = {case.family for case in models if rule.reads(case.model)}
    names = ", ".join(rule.curves)
    if not families:
        return f"no model has {names}"
    if rule.parameters and len(families) < 2:
        return f"it has parameters, and there is one family only{f' with {names}' if names else ''}"
    return None


# ---- what one would do without --------------------------------------------------------------------------


# Three quarters of the depth: layer 9 of 12, where the paper's ELECTRA is best.
FRACTION = 0.75


def last_layer(n_blocks: int) -> int:
    """Return the whole model's layer, as everybody does by default."""
    return n_blocks


def fixed_fraction(n_blocks: int, *, fraction: float = FRACTION) -> int:
    """Return the layer at a fixed fraction of the depth, rounded half up.

    Examples:
        >>> fixed_fraction(12)
        9
    """
    return math.floor(fraction * n_blocks + 0.5)


# ---- families of rules ----------------------------------------------------------------------------------


LAST = "best rule"
"""Chooses among the rules of all others."""
RULES = Registry(
    "layerprobe.rules",
    FunctionType,
    what="family of rules",
    shipped={
        "depth": "layerprobe.prediction.rules:depth_rules",
        "plateau": "layerprobe.prediction.rules:plateau_rules",
        "best layer": "layerprobe.prediction.rules:best_layer_rules",
        "fall": "layerprobe.prediction.rules:fall_rules",
        LAST: "layerprobe.prediction.rules:best_rule_rules",
    },
)
"""A function of the readings there are, by name, and of the rules of the families before it, which returns rules that
read some of them. A new one is a function in a module of its own and a row here, or the entry point of another package.
"""


def rules_for(readings: Mapping[str, Reading], further: Sequence[Rule] = ()) -> list[Rule]:
    """Return every rule that reads no more than these readings, and further ones, by what they read.

    The best of all these, chosen on other families, come last.
    """
    order = {name: number for number, name in enumerate(readings)}
    rules: list[Rule] = []
    for name, family in RULES.usable().items():
        if name != LAST:
            rules += [rule for rule in family(readings, rules) if set(rule.curves) <= readings.keys()]
    rules += further
    rules.sort(key=lambda rule: (min(len(rule.curves), 2), order[rule.curves[0]] if len(rule.curves) == 1 else 0))
    return [*rules, *RULES[LAST](readings, rules)]
