"""Rules: from a model's numbers by layer to whether it drops and where to truncate. Knows numbers only.

A rule with parameters is fitted to models whose drops are known, or made from parameters fitted before. Fitted
parameters and the track record of each rule are in `rules.json`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.files.atomic import parsed_as
from layerprobe.prediction.values import TrackRecord, Truth
from layerprobe.readings.reading import LayerCurve
from layerprobe.similarity.values import Matrix
from layerprobe.stats.crossed import square_root

Array: TypeAlias = NDArray[np.float64]
Shares: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Shares of redrawn curves by layer: `DropPrediction.flagged_in` and `DropPrediction.recommended_in`."""
DRAWS = 10_000
"""Number of redraws; a share of a half is accurate to a percentage point, the end of an interval to 1/30 of a standard
error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCurves:
    """Numbers by layer of a model."""

    n_blocks: int
    """Number of blocks; layers are 0 to this."""
    curves: Mapping[str, LayerCurve]
    """Curves by the names of readings; CKA with a reference is `CKA, <reference>`."""


Predictor = Callable[[ModelCurves], tuple[int, ...]]
"""A rule with its parameters: a function from a model to the layer to truncate at, assuming that all later layers drop;
several layers are equally likely."""
Parameters = Mapping[str, Any]
"""Parameters of a rule by name, with values that JSON can hold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownDrop:
    """A model with the outcome of fine-tuning under one budget; rules are fitted to and scored on these."""

    name: str
    family: str
    """The pretraining objective."""
    model: ModelCurves
    truth: Truth
    regrets: Array
    """(layers,) points that each layer is below the one that a sweep would choose."""


def nothing_to_choose(models: Sequence[KnownDrop]) -> Parameters:
    """Return the empty parameters of a rule without any."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A prediction rule, before its parameters are chosen."""

    name: str
    curves: tuple[str, ...]
    """The readings that it needs; it cannot be applied to a model that lacks one."""
    make: Callable[..., Predictor]
    """Function from parameters, by name, to a predictor."""
    choose: Callable[[Sequence[KnownDrop]], Parameters] = nothing_to_choose
    """Function from models whose drops are known, at least one, to parameters."""
    parameters: int = 0
    """Number of parameters to choose."""
    labelled: bool = False
    """Whether it needs labels."""
    source: str = ""
    """Its source, or its purpose as a control; empty if its readings name the source."""
    chosen: Parameters = field(default_factory=dict)
    """Parameters of a rule that was fitted before."""
    record: TrackRecord | None = None
    """Its track record on families that it was not fitted to."""

    def fit(self, models: Sequence[KnownDrop]) -> Predictor:
        """Return the predictor fitted to models with known drops."""
        return self.make(**self.choose(models))

    def reads(self, model: ModelCurves) -> bool:
        """Return whether a model has all readings that the rule needs."""
        return set(self.curves) <= model.curves.keys()

    def __call__(self, model: ModelCurves) -> int:
        """Return the layer at which a fitted rule truncates a model; DataError if the model lacks a reading."""
        if not self.reads(model):
            missing = ", ".join(sorted(set(self.curves) - model.curves.keys()))
            raise DataError(f"the rule {self.name!r} needs {missing}, which the model lacks")
        (layer,) = self.make(**self.chosen)(model)
        return layer

    def shares(self, model: ModelCurves, *, most: int | None = None, draws: int = DRAWS, seed: int = 0) -> Shares:
        """Return the predictions of a fitted rule for a model whose reading is redrawn within its errors.

        Layers after `most` are always flagged.

        Returns:
            Empty shares if the rule reads several curves, whose errors are correlated, or one with unknown errors.
        """
        if len(self.curves) != 1:
            return (), ()
        (name,) = self.curves
        curve = model.curves[name]
        if curve.uncertainty is None:
            return (), ()
        drawn = redraw(curve.values, curve.uncertainty.covariance, draws=draws, seed=seed)
        predict = self.make(**self.chosen)
        assert isinstance(predict, ReadingPredictor)  # as of every rule in `rules.json` on one reading
        layers = predict.layers(drawn) if most is None else np.minimum(predict.layers(drawn), most)
        return shares_of(1 + layers, n_layers=model.n_blocks + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadingPredictor:
    """A predictor from one reading, which takes many curves at once."""

    name: str
    """Name of the reading."""
    layers: Callable[[Array], NDArray[np.intp]]
    """Function from (curves, layers) values to (curves,) layers to truncate at."""

    def __call__(self, model: ModelCurves) -> tuple[int, ...]:
        """Return the layer to truncate a model at."""
        return (int(self.layers(layer_values(model, self.name)[None])[0]),)


def loss(layer: int, case: KnownDrop) -> float:
    """Return the loss that chooses parameters: the regret in points, plus one point for a wrong call of a drop."""
    return float(case.regrets[layer]) + ((layer < case.model.n_blocks) != case.truth.drop)


# ---- inputs of rules -----------------------------------------------------------------------------------


def before_final_run(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the layer before the last consecutive flagged ones, for (.., layers) flags; layer 0 is never flagged."""
    bare = ~flags[..., :0:-1]
    run = np.where(bare.any(axis=-1), bare.argmax(axis=-1), bare.shape[-1])
    return flags.shape[-1] - 1 - run


def layer_values(model: ModelCurves, name: str) -> Array:
    """Return the (layers,) values of a reading."""
    return np.array(model.curves[name].values)


def falls(values: Array, *, unit: float | None = None) -> Array:
    """Return how far each value is below the highest one before it; 0 if it is above.

    Args:
        values: (.., layers) values of any sign.
        unit: Unit of the result; by default the largest absolute value of the curve, so that a fall is 0 .. 2.

    Examples:
        >>> falls(np.array([0.5, 0.8, 0.6, 0.4])).round(2).tolist()
        [0.0, 0.0, 0.25, 0.5]
    """
    below: Array = np.maximum.accumulate(values, axis=-1) - values
    units = np.abs(values).max(axis=-1, keepdims=True) if unit is None else unit
    return below / np.where(units > 0, units, 1.0)  # a curve of zeros has no fall


# ---- fitting of rules ----------------------------------------------------------------------------------


def best_on_grid(
    make: Callable[..., Predictor], grid: Sequence[Parameters], name: str
) -> Callable[[Sequence[KnownDrop]], Parameters]:
    """Return a function that chooses the grid's parameters with the lowest mean loss on known models.

    Args:
        make: Function from parameters, by name, to a predictor.
        grid: The parameters to choose from; the first of equals wins.
        name: Name of the rule, for messages.
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
        raise DataError(f"expected models of other families to fit {name!r} to, got none")


def fitted(rule: Rule, models: Sequence[KnownDrop]) -> Predictor:
    """Fit a rule to the models that have the readings it needs.

    For a model that lacks one, the predictor calls no drop and takes the last layer.
    """
    predict = rule.fit([case for case in models if rule.reads(case.model)])
    return lambda model: predict(model) if rule.reads(model) else (model.n_blocks,)


def leave_one_family_out(rule: Rule, models: Sequence[KnownDrop]) -> list[tuple[int, ...]]:
    """Return the prediction for each model of the rule fitted to the models of other families."""
    predictors = {
        family: fitted(rule, [case for case in models if case.family != family])
        for family in dict.fromkeys(case.family for case in models)
    }
    return [predictors[case.family](case.model) for case in models]


def obstacle(rule: Rule, models: Sequence[KnownDrop]) -> str | None:
    """Return why a rule cannot be scored leave-one-family-out; None if it can."""
    families = {case.family for case in models if rule.reads(case.model)}
    names = ", ".join(rule.curves)
    if not families:
        return f"no model has {names}"
    if rule.parameters and len(families) < 2:
        return f"it has parameters, and there is one family only{f' with {names}' if names else ''}"
    return None


# Three quarters of the depth: layer 9 of 12, where the paper's ELECTRA is best.
FRACTION = 0.75


def fixed_fraction(n_blocks: int, *, fraction: float = FRACTION) -> int:
    """Return the layer at a fixed fraction of the depth, rounded half up.

    Examples:
        >>> fixed_fraction(12)
        9
    """
    return math.floor(fraction * n_blocks + 0.5)


# ---- parameters that come with layerprobe --------------------------------------------------------------


FILE = Path(__file__).with_name("rules.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRule:
    """A rule with its parameters in the form of a file."""

    name: str
    curves: tuple[str, ...]
    """The readings that it needs."""
    labelled: bool
    """Whether it needs labels."""
    parameters: dict[str, Any]
    """Parameters by name, such as a threshold; empty for a rule without any."""
    record: TrackRecord
    """Its track record on families that it was not fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameters:
    """Everything fitted to the zoos that come with layerprobe."""

    rules: tuple[FittedRule, ...]
    slope: float
    """Expected value of a nat of InfoNCE in a search, in points of the score after fine-tuning."""
    slope_sd: float
    """Standard deviation of this value over models and tasks."""
    log_bayes_factor: float
    """Log Bayes factor of this value against a value of 0, on those models, in nats."""


@functools.cache
def fitted_parameters() -> FittedParameters:
    """Return the parameters that come with layerprobe."""
    return parsed_as(FittedParameters, FILE.read_bytes())


def redraw(values: Sequence[float], covariance: Matrix, *, draws: int = DRAWS, seed: int = 0) -> Array:
    """Draw curves from a normal distribution around the observed one, with the covariance of its layers' errors.

    Returns:
        (draws, layers) curves, not clamped to the range of the measure.
    """
    root = square_root(np.array(covariance))
    noise = np.random.default_rng(seed).standard_normal((draws, len(root)))
    return np.array(values) + noise @ root.T


def shares_of(onsets: NDArray[np.intp], *, n_layers: int) -> Shares:
    """Return the shares of redrawn curves that flag and recommend each layer, given the first drop layer of each.

    Without a drop, the onset is the number of layers. The redraws vary like curves of other samples of as many texts,
    if the observed curve were the true one. For best-match, the reference's layers stay those of the observed curve.

    Source: the parametric bootstrap, Efron and Tibshirani 1993 (An Introduction to the Bootstrap), section 6.5.
    """
    counts = np.bincount(onsets, minlength=n_layers + 1)
    flagged, recommended = np.cumsum(counts)[:-1] / len(onsets), counts[1:] / len(onsets)
    return tuple(flagged.tolist()), tuple(recommended.tolist())


def decline_interval(drawn: Array, plateau_layers: Sequence[int], *, level: float) -> tuple[float, float]:
    """Return the interval of the median of some layers minus the last layer, from (draws, layers) curves."""
    declines = np.median(drawn[:, list(plateau_layers)], axis=1) - drawn[:, -1]
    low, high = np.quantile(declines, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)
