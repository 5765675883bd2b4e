"""Rules that say from what is known of a model whether it drops and where to truncate. Knows numbers only.

A rule without parameters stands as it is. One with parameters is fitted to models whose drops are known; `bench`
gives it those of other families only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.prediction.baselines import fixed_fraction
from layerprobe.prediction.rules import plateau_onsets
from layerprobe.prediction.truth import regrets, truth
from layerprobe.results import Truth, TunedLayers, ZooEntry

Array = NDArray[np.float64]

# ---- what a rule is -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a rule says of a model."""

    recommended_layer: int
    """Where to truncate."""
    onset: int | None
    """The first drop layer, from which on all are; None for no drop."""


Predictor = Callable[[ZooEntry], tuple[Call, ...]]
"""What a rule says of a model; several calls are equally likely."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """A model with what fine-tuning under one budget showed."""

    entry: ZooEntry
    truth: Truth
    regrets: Array
    """(layers,) points below the layer that a sweep would choose."""

    @classmethod
    def of(cls, entry: ZooEntry, tuned: TunedLayers) -> Known:
        """Read what is true off the scores of all layers."""
        return cls(entry=entry, truth=truth(tuned), regrets=regrets(tuned))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A way to predict, before its parameters are chosen."""

    name: str
    curves: tuple[str, ...]
    """What of an entry it reads, by the names that `curves_of` gives."""
    fit: Callable[[Sequence[Known]], Predictor]
    """Models that may be known, at least one -> a predictor; a rule without parameters does not look at them."""
    parameters: int = 0
    """How many are chosen by `fit`."""
    labelled: bool = False
    """Whether it reads labels."""

    def reads(self, entry: ZooEntry) -> bool:
        """Return whether an entry has all that the rule reads."""
        return set(self.curves) <= curves_of(entry).keys()


def curves_of(entry: ZooEntry) -> dict[str, Array]:
    """Return all numbers by layer that an entry has, by name; CKA against a reference is `CKA, <reference>`.

    Two references or more also have a mean, `CKA, all references`.
    """
    cka = {f"CKA, {name}": np.array(curve.values) for name, curve in entry.cka.items()}
    if len(cka) > 1:
        cka["CKA, all references"] = np.mean(list(cka.values()), axis=0)
    others = {name: np.array(curve.values) for name, curve in {**entry.metrics, **entry.labelled}.items()}
    return {**cka, **others}


def loss(call: Call, known: Known) -> float:
    """Return what parameters are chosen by: the regret in points, and one point for a wrong call of drop or none."""
    wrong = (call.onset is not None) != known.truth.drop
    return float(known.regrets[call.recommended_layer]) + wrong


# ---- how calls are made --------------------------------------------------------------------------------


def truncated(layer: int, entry: ZooEntry) -> Call:
    """Return the call of one who recommends a layer: all behind it are taken to drop."""
    return Call(recommended_layer=layer, onset=layer + 1 if layer < entry.n_blocks else None)


def final_run(flags: NDArray[np.bool_], entry: ZooEntry) -> Call:
    """Return the call of one who flags layers: the final run of flagged layers drops, the one before is kept.

    Layer 0 is never flagged.
    """
    layer = entry.n_blocks
    while layer >= 1 and flags[layer]:
        layer -= 1
    return truncated(layer, entry)


def falls(values: Array) -> Array:
    """Return by what share of its size each value lies below the highest before it; 0 where it lies above.

    Example:
        >>> falls(np.array([0.5, 0.8, 0.6, 0.4])).round(2).tolist()
        [0.0, 0.0, 0.25, 0.5]
    """
    peaks = np.maximum.accumulate(values)
    sizes = np.maximum(np.abs(peaks), np.finfo(np.float64).tiny)
    shares: Array = (peaks - values) / sizes
    return shares


def chosen(candidates: Sequence[Predictor], *, name: str) -> Callable[[Sequence[Known]], Predictor]:
    """Return a fit that takes the candidate with the lowest mean loss on known models, the first of equals."""

    @functools.cache
    def losses(known: Known) -> Array:
        return np.array([np.mean([loss(call, known) for call in predict(known.entry)]) for predict in candidates])

    def fit(models: Sequence[Known]) -> Predictor:
        if not models:
            raise DataError(f"expected models of other families to tune {name!r} on, got none")
        return candidates[int(np.mean([losses(known) for known in models], axis=0).argmin())]

    return fit


def _fixed(predict: Predictor) -> Callable[[Sequence[Known]], Predictor]:
    return lambda models: predict


# ---- the rules -----------------------------------------------------------------------------------------

THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0)
FRACTIONS = tuple(step / 12 for step in range(12, 2, -1))
MINIMUM_DECLINES = (0.05, 0.01, 0.02, 0.03, 0.075, 0.1, 0.15, 0.2, 0.3)
WOBBLES = (3.0, 0.0, 1.0, 2.0)
DIRECTIONS = {"mean cosine": -1.0}
"""Curves of which less is better."""
UNKNOWN = ("prompt entropy", "curvature", "dataset entropy", "intrinsic dimension")
"""Curves of which nobody knows whether more or less is better: the direction is a parameter."""
COMBINED = (
    ("self CKA", "effective rank", "mean cosine"),
    ("CKA, all references", "effective rank", "mean cosine"),
    ("InfoNCE", "effective rank", "mean cosine"),
    ("zero-shot", "effective rank", "mean cosine"),
    ("zero-shot", "probe", "effective rank"),
    ("zero-shot", "probe", "CKA, all references"),
)
"""Curves that are read together, three at a time."""
RIDGE = 1.0
"""Of combinations: features have a standard deviation of 1."""
STEPS = 50
"""Newton steps of logistic regression; it needs about 6."""


def baselines() -> list[Rule]:
    """Return what one would do without looking at the model."""

    def fraction(share: float) -> Predictor:
        return lambda entry: (truncated(fixed_fraction(entry.n_blocks, fraction=share), entry),)

    name = "tuned fraction of depth"
    return [
        Rule(name="last layer", curves=(), fit=_fixed(fraction(1.0))),
        Rule(name="fixed fraction of depth", curves=(), fit=_fixed(fraction(0.75))),
        Rule(name=name, curves=(), fit=chosen([fraction(f) for f in FRACTIONS], name=name), parameters=1),
        Rule(
            name="random layer",
            curves=(),
            fit=_fixed(lambda entry: tuple(truncated(layer, entry) for layer in range(entry.n_blocks + 1))),
        ),
    ]


def plateau(curve: str, *, tuned: bool) -> Rule:
    """Return the plateau rule on a curve, as `predict` has it or with its two constants chosen."""

    def predictor(minimum_decline: float, wobbles: float) -> Predictor:
        def predict(entry: ZooEntry) -> tuple[Call, ...]:
            values = curves_of(entry)[curve]
            if len(values) < 4:  # too short to have a plateau
                return (truncated(entry.n_blocks, entry),)
            onset = plateau_onsets(values[None], minimum_decline=minimum_decline, wobbles=wobbles)[0]
            return (truncated(int(onset) - 1, entry),)

        return predict

    name = f"{'tuned ' if tuned else ''}plateau of {curve}"
    candidates = [predictor(decline, wobbles) for decline in MINIMUM_DECLINES for wobbles in WOBBLES]
    fit = chosen(candidates, name=name) if tuned else _fixed(candidates[0])
    return Rule(name=name, curves=(curve,), fit=fit, parameters=2 if tuned else 0)


def fall(curve: str, *, labelled: bool = False) -> Rule:
    """Return the rule that flags the final layers which fall below the highest before them by a chosen share."""

    def predictor(direction: float, threshold: float) -> Predictor:
        return lambda entry: (final_run(falls(direction * curves_of(entry)[curve]) > threshold, entry),)

    name, directions = f"fall of {curve}", _directions(curve)
    candidates = [predictor(direction, threshold) for direction in directions for threshold in THRESHOLDS]
    fit = chosen(candidates, name=name)
    return Rule(name=name, curves=(curve,), fit=fit, parameters=len(directions), labelled=labelled)


def best(curve: str, *, labelled: bool = False) -> Rule:
    """Return the rule that takes the best layer of a curve, the earlier one of equals."""

    def predictor(direction: float) -> Predictor:
        return lambda entry: (truncated(int((direction * curves_of(entry)[curve]).argmax()), entry),)

    name, directions = f"best layer by {curve}", _directions(curve)
    fit = chosen([predictor(direction) for direction in directions], name=name)
    tuned = len(directions) > 1
    return Rule(
        name=name,
        curves=(curve,),
        fit=fit if tuned else _fixed(predictor(directions[0])),
        parameters=int(tuned),
        labelled=labelled,
    )


def _directions(curve: str) -> tuple[float, ...]:
    return (1.0, -1.0) if curve in UNKNOWN else (DIRECTIONS.get(curve, 1.0),)


def logistic(curves: tuple[str, ...], *, labelled: bool = False) -> Rule:
    """Return logistic regression of whether a layer is one of the drop layers on the falls of a few curves.

    The final run of layers with a probability above a half drops.
    """
    name = f"logistic on {', '.join(curves)}"

    def fit(models: Sequence[Known]) -> Predictor:
        if not models:
            raise DataError(f"expected models of other families to tune {name!r} on, got none")
        targets = [_is_drop_layer(known) for known in models]
        scale, weights = _standardised(models, curves)
        features = np.concatenate([scale(known.entry) for known in models])
        solution = _logistic_weights(features, np.concatenate(targets), weights)
        return lambda entry: (final_run(np.append(False, scale(entry) @ solution > 0), entry),)

    return Rule(name=name, curves=curves, fit=fit, parameters=len(curves) + 1, labelled=labelled)


def _is_drop_layer(known: Known) -> NDArray[np.bool_]:
    """Return whether each of layers 1 to the last is a drop layer."""
    layers = np.arange(1, known.entry.n_blocks + 1)
    onset = known.truth.onset
    return np.zeros(len(layers), dtype=bool) if onset is None else layers >= onset


def _standardised(models: Sequence[Known], curves: tuple[str, ...]) -> tuple[Callable[[ZooEntry], Array], Array]:
    """Return what makes (layers, 1 + curves) features of an entry, scaled as those of known models, and penalties.

    The first feature is constant and has no penalty.
    """

    def raw(entry: ZooEntry) -> Array:
        found = curves_of(entry)
        return np.stack([falls(_directions(name)[0] * found[name])[1:] for name in curves], axis=1)

    known = np.concatenate([raw(model.entry) for model in models])
    mean, spread = known.mean(axis=0), known.std(axis=0)
    spread[spread == 0] = 1.0  # a curve that falls nowhere says nothing

    def scale(entry: ZooEntry) -> Array:
        features: Array = np.c_[np.ones(entry.n_blocks), (raw(entry) - mean) / spread]
        return features

    return scale, np.array([0.0, *[RIDGE] * len(curves)])


def _logistic_weights(features: Array, targets: NDArray[np.bool_], penalties: Array) -> Array:
    """Return the weights of L2-penalised logistic regression, by Newton's method."""
    if targets.all() or not targets.any():
        # one class: the intercept would be infinite
        return np.append(1.0 if targets.all() else -1.0, np.zeros(features.shape[1] - 1))
    weights = np.zeros(features.shape[1])
    for _ in range(STEPS):
        shares = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (shares - targets) + penalties * weights
        curvature = (features * (shares * (1 - shares))[:, None]).T @ features + np.diag(penalties)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return weights


def rules_for(entries: Iterable[ZooEntry]) -> list[Rule]:
    """Return every rule for which some entry has what it reads: baselines, one curve each, and three together."""
    names: dict[str, bool] = {}
    for entry in entries:
        names |= dict.fromkeys(curves_of(entry), False) | dict.fromkeys(entry.labelled, True)
    found = baselines()
    for name, labelled in names.items():
        if name.startswith("CKA, ") or name == "self CKA":
            found += [plateau(name, tuned=False), plateau(name, tuned=True), fall(name)]
        else:
            found += [best(name, labelled=labelled), fall(name, labelled=labelled)]
    for curves in COMBINED:
        if set(curves) <= names.keys():
            labelled = any(names[name] for name in curves)
            found.append(logistic(curves, labelled=labelled))
    return found
