"""What a rule is: it says from a model's numbers by layer whether it drops and where to truncate. Knows numbers only.

A rule without parameters stands as it is. One with parameters is fitted to models whose drops are known, or made from
parameters that were fitted before: these, and how far to trust each rule, stand in `rules.json`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.files.folders import parsed_as
from layerprobe.names import nearest
from layerprobe.prediction.values import Record, Truth
from layerprobe.readings.reading import LayerCurve, Reading, reading_of
from layerprobe.registry import Registry
from layerprobe.similarity.values import Matrix
from layerprobe.stats.crossed import square_root

Array: TypeAlias = NDArray[np.float64]
Shares: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""By layer, of redrawn curves: `DropPrediction.flagged_in` and `DropPrediction.recommended_in`."""
DRAWS = 10_000
"""A share of a half is then right to a point, the end of an interval to a thirtieth of a standard error."""


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
    chosen: Parameters = field(default_factory=dict)
    """Its parameters, of a rule that was fitted before."""
    record: Record | None = None
    """How it then fares on families that it was not fitted to."""

    def fit(self, models: Sequence[KnownDrop]) -> Predictor:
        """Return the predictor that models with known drops make."""
        return self.make(**self.choose(models))

    def reads(self, model: ModelCurves) -> bool:
        """Return whether a model has all that the rule needs."""
        return set(self.curves) <= model.curves.keys()

    def __call__(self, model: ModelCurves) -> int:
        """Return where a fitted rule truncates a model; DataError if the model lacks what it reads."""
        if not self.reads(model):
            missing = ", ".join(sorted(set(self.curves) - model.curves.keys()))
            raise DataError(f"expected {missing} of the model for the rule {self.name!r}, got none")
        (layer,) = self.make(**self.chosen)(model)
        return layer

    def shares(self, model: ModelCurves, *, most: int | None = None, draws: int = DRAWS, seed: int = 0) -> Shares:
        """Return what a fitted rule predicts of a model when what it reads is redrawn within its errors.

        Layers behind `most` are flagged whatever the rule says.

        Returns:
            Nothing where the rule reads several curves, whose errors go together, or one of unknown errors.
        """
        if len(self.curves) != 1:
            return (), ()
        (name,) = self.curves
        curve = model.curves[name]
        if curve.uncertainty is None:
            return (), ()
        drawn = redraw(curve.values, curve.uncertainty.covariance, draws=draws, seed=seed)
        predict = self.make(**self.chosen)
        if isinstance(predict, ReadingPredictor):
            layers = predict.layers(drawn)
        else:
            curves = (LayerCurve(values=tuple(values)) for values in drawn.tolist())
            layers = np.array([predict(replace(model, curves={name: one}))[0] for one in curves])
        layers = layers if most is None else np.minimum(layers, most)
        return shares_of(1 + layers, n_layers=model.n_blocks + 1)


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


FILE = Path(__file__).with_name("rules.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRule:
    """A rule with its parameters, as a file holds it."""

    name: str
    curves: tuple[str, ...]
    """The readings that it needs of a model."""
    labelled: bool
    """Whether it needs labels."""
    parameters: dict[str, Any]
    """By name, such as a threshold; empty for a rule that has none."""
    record: Record
    """How it fares on families that it was not fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameters:
    """All that was fitted to the zoos that come with layerprobe."""

    rules: tuple[FittedRule, ...]
    slope: float
    """What a nat of InfoNCE is worth in a search, in points of the score after fine-tuning, as expected."""
    slope_sd: float
    """Standard deviation of what it is worth for one model and task."""
    log_bayes_factor: float
    """How much more likely it makes the scores of those models than InfoNCE that is worth nothing, in nats."""


@functools.cache
def fitted_parameters() -> FittedParameters:
    """Return what comes with layerprobe."""
    try:
        return parsed_as(FittedParameters, FILE.read_bytes())
    except (OSError, DataError) as error:
        raise DataError(f"cannot read the rules that come with layerprobe ({error}): install it again") from error


# ---- redrawn curves -------------------------------------------------------------------------------------


def redraw(values: Sequence[float], covariance: Matrix, *, draws: int = DRAWS, seed: int = 0) -> Array:
    """Draw curves from the normal distribution around the observed one, with the covariance of its layers' errors.

    Returns:
        (draws, layers); not clamped to the range of the measure.
    """
    if draws < 1:
        raise DataError(f"expected at least one draw, got {draws}")
    root = square_root(np.array(covariance))
    noise = np.random.default_rng(seed).standard_normal((draws, len(root)))
    drawn: Array = np.array(values) + noise @ root.T
    return drawn


def shares_of(onsets: NDArray[np.intp], *, n_layers: int) -> Shares:
    """Count what a rule says of redrawn curves: the first drop layer of each, the number of layers where there is none.

    The redraws vary as the curve of another sample of as many texts would, were the observed curve the true one.
    For best-match the reference's layers stay those of the observed curve.

    Source: the parametric bootstrap, Efron and Tibshirani 1993 (An Introduction to the Bootstrap), section 6.5.
    """
    counts = np.bincount(onsets, minlength=n_layers + 1)
    flagged, recommended = np.cumsum(counts)[:-1] / len(onsets), counts[1:] / len(onsets)
    return tuple(flagged.tolist()), tuple(recommended.tolist())


def decline_interval(drawn: Array, plateau_layers: Sequence[int], *, level: float) -> tuple[float, float]:
    """Return the interval of the median of some layers less the last layer, of (draws, layers) curves."""
    declines = np.median(drawn[:, list(plateau_layers)], axis=1) - drawn[:, -1]
    low, high = np.quantile(declines, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def rule_names() -> tuple[str, ...]:
    """Return the names of rules that `tuned_rule` takes."""
    return tuple(rule.name for rule in fitted_parameters().rules)


def rule_curves(name: str) -> tuple[str, ...]:
    """Return the names of the readings that a rule needs; raise DataError if there is no such rule."""
    return _row(name).curves


@functools.cache
def tuned_rule(name: str) -> Rule:
    """Return a rule as it was fitted to the zoos, with its record on models of families that it was not fitted to."""
    row = _row(name)
    rules = rules_for({reading: reading_of(reading) for reading in row.curves})
    rule = next(rule for rule in rules if rule.name == name)
    return replace(rule, chosen=row.parameters, record=row.record)


def _row(name: str) -> FittedRule:
    rows = {rule.name: rule for rule in fitted_parameters().rules}
    if name not in rows:
        raise DataError(f"expected a rule among {'; '.join(rows)}; got {name!r}{nearest(name, rows)}")
    return rows[name]
