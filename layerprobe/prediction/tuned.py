"""Rules with the parameters that they were fitted with -> what they predict of a model, and how far to trust them.

Parameters and records stand in `rules.json`; nothing is fitted here.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.files.folders import parsed_as
from layerprobe.names import nearest
from layerprobe.prediction.rule import ModelCurves, Predictor, ReadingPredictor, Rule, rules_for
from layerprobe.prediction.values import Record
from layerprobe.readings.reading import LayerCurve, reading_of
from layerprobe.similarity.values import Matrix
from layerprobe.stats.crossed import square_root

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

    @property
    def by_name(self) -> dict[str, FittedRule]:
        """The rules by name."""
        return {rule.name: rule for rule in self.rules}


@functools.cache
def fitted_parameters() -> FittedParameters:
    """Return what comes with layerprobe."""
    try:
        return parsed_as(FittedParameters, FILE.read_bytes())
    except (OSError, DataError) as error:
        raise DataError(f"cannot read the rules that come with layerprobe ({error}): install it again") from error


# ---- redrawn curves -------------------------------------------------------------------------------------


Array: TypeAlias = NDArray[np.float64]

DRAWS = 10_000
"""A share of a half is then right to a point, the end of an interval to a thirtieth of a standard error."""


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


Shares: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""By layer, of redrawn curves: `DropPrediction.flagged_in` and `DropPrediction.recommended_in`."""


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TunedRule:
    """A rule with its parameters."""

    rule: Rule
    predict: Predictor
    record: Record
    """How it fares on families that it was not fitted to."""

    def __call__(self, model: ModelCurves) -> int:
        """Return where to truncate a model; raise DataError if the model lacks what the rule reads."""
        if not self.rule.reads(model):
            missing = ", ".join(sorted(set(self.rule.curves) - model.curves.keys()))
            raise DataError(f"expected {missing} of the model for the rule {self.rule.name!r}, got none")
        (layer,) = self.predict(model)
        return layer

    def shares(self, model: ModelCurves, *, most: int | None = None, draws: int = DRAWS, seed: int = 0) -> Shares:
        """Return what the rule predicts of a model when what it reads is redrawn within its errors, so many times.

        Layers behind `most` are flagged whatever the rule says.

        Returns:
            Nothing where the rule reads several curves, whose errors go together, or one of unknown errors.
        """
        if len(self.rule.curves) != 1:
            return (), ()
        (name,) = self.rule.curves
        curve = model.curves[name]
        if curve.uncertainty is None:
            return (), ()

        def layer(values: list[float]) -> int:
            return self(ModelCurves(n_blocks=model.n_blocks, curves={name: LayerCurve(values=tuple(values))}))

        drawn = redraw(curve.values, curve.uncertainty.covariance, draws=draws, seed=seed)
        if isinstance(self.predict, ReadingPredictor):
            layers = self.predict.layers(drawn)
        else:
            layers = np.array([layer(values) for values in drawn.tolist()])
        layers = layers if most is None else np.minimum(layers, most)
        return shares_of(1 + layers, n_layers=model.n_blocks + 1)


def rule_names(*, labelled: bool = True) -> tuple[str, ...]:
    """Return the names of rules that `tuned_rule` takes.

    Args:
        labelled: Whether those that need labels are among them.
    """
    return tuple(rule.name for rule in fitted_parameters().rules if labelled or not rule.labelled)


def rule_curves(name: str) -> tuple[str, ...]:
    """Return the names of the readings that a rule needs; raise DataError if there is no such rule."""
    return _row(name).curves


@functools.cache
def tuned_rule(name: str) -> TunedRule:
    """Return a rule as it was fitted to the zoos, with its record on models of families that it was not fitted to."""
    row = _row(name)
    rules = rules_for({reading: reading_of(reading) for reading in row.curves})
    rule = next(rule for rule in rules if rule.name == name)
    return TunedRule(rule=rule, predict=rule.make(**row.parameters), record=row.record)


def _row(name: str) -> FittedRule:
    rows = fitted_parameters().by_name
    if name not in rows:
        raise DataError(f"expected a rule among {'; '.join(rows)}; got {name!r}{nearest(name, rows)}")
    return rows[name]
