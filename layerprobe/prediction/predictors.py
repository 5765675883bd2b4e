"""Rules that say from what is known of a model whether it drops and where to truncate. Knows numbers only.

A rule without parameters stands as it is. One with parameters is fitted to models whose drops are known; `bench`
gives it those of other families only.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from layerprobe.dropbench.truth import regrets, truth
from layerprobe.dropbench.values import TunedLayers, ZooEntry
from layerprobe.errors import DataError
from layerprobe.prediction.baselines import fixed_fraction
from layerprobe.prediction.rules import plateau_onsets
from layerprobe.prediction.values import Truth
from layerprobe.readings.values import AGAINST, SELF_CKA, LayerCurve

Array = NDArray[np.float64]

# ---- what a rule is -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a rule says of a model."""

    recommended_layer: int
    """Where to truncate."""
    onset: int | None
    """The first drop layer, from which on all are; None for no drop."""


class Layered(Protocol):
    """A model of which numbers by layer are known: an entry of a zoo, or one that somebody asks about."""

    @property
    def n_blocks(self) -> int:
        """Layers count from 0 to this."""

    @property
    def curves(self) -> dict[str, LayerCurve]:
        """By name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What can be read of a model whose drop is not known."""

    n_blocks: int
    """Layers count from 0 to this."""
    curves: dict[str, LayerCurve]
    """By the names in `ZooEntry.curves`."""


Predictor = Callable[[Layered], tuple[Call, ...]]
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
    """What of an entry it reads, by the names in `ZooEntry.curves`; of an entry that lacks it, it can say nothing."""
    fit: Callable[[Sequence[Known]], Predictor]
    """Models that may be known, at least one -> a predictor; a rule without parameters does not look at them."""
    parameters: int = 0
    """How many are chosen by `fit`."""
    labelled: bool = False
    """Whether it reads labels."""

    def reads(self, entry: Layered) -> bool:
        """Return whether an entry has all that the rule reads."""
        return set(self.curves) <= entry.curves.keys()


def with_all_references(entries: Sequence[ZooEntry]) -> tuple[ZooEntry, ...]:
    """Return the entries, those that have CKA against every reference of the zoo with the mean, `CKA, all references`.

    The others do not get it, or it would mean one thing here and another there.
    """
    names = list(dict.fromkeys(name for entry in entries for name in entry.cka))
    if len(names) < 2:
        return tuple(entries)

    def widened(entry: ZooEntry) -> ZooEntry:
        if len(entry.cka) < len(names):
            return entry
        mean = np.mean([entry.cka[name].values for name in names], axis=0)
        return replace(entry, cka={**entry.cka, ALL_REFERENCES: LayerCurve(values=tuple(mean.tolist()))})

    return tuple(map(widened, entries))


def loss(call: Call, known: Known) -> float:
    """Return what parameters are chosen by: the regret in points, and one point for a wrong call of drop or none."""
    wrong = (call.onset is not None) != known.truth.drop
    return float(known.regrets[call.recommended_layer]) + wrong


# ---- how calls are made --------------------------------------------------------------------------------


def truncated(layer: int, entry: Layered) -> Call:
    """Return the call of one who recommends a layer: all behind it are taken to drop."""
    return Call(recommended_layer=layer, onset=layer + 1 if layer < entry.n_blocks else None)


def final_run(flags: NDArray[np.bool_], entry: Layered) -> Call:
    """Return the call of one who flags layers: the final run of flagged layers drops, the one before is kept.

    Layer 0 is never flagged.
    """
    layer = entry.n_blocks
    while layer >= 1 and flags[layer]:
        layer -= 1
    return truncated(layer, entry)


def falls(values: Array, *, unit: float | None = None) -> Array:
    """Return how far each value lies below the highest before it; 0 where it lies above.

    Args:
        values: (layers,) of any sign.
        unit: What to measure in; by default the largest size in the curve, so that a fall is 0 .. 2.

    Example:
        >>> falls(np.array([0.5, 0.8, 0.6, 0.4])).round(2).tolist()
        [0.0, 0.0, 0.25, 0.5]
    """
    if unit is None:
        unit = float(np.abs(values).max())
    below: Array = np.maximum.accumulate(values) - values
    return below / unit if unit > 0 else below  # a curve of zeros falls nowhere


def _values(entry: Layered, curve: str) -> Array:
    return np.array(entry.curves[curve].values)


def _falls(entry: Layered, curve: str, direction: float, *, first: int = 0) -> Array:
    """Return the falls below the highest of the layers from `first` on; 0 before it."""
    values = direction * _values(entry, curve)[first:]
    return np.append(np.zeros(first), falls(values, unit=1.0 if _is_cka(curve) or curve in SHARES else None))


def _is_cka(curve: str) -> bool:
    return curve == SELF_CKA or curve.startswith(AGAINST)


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


def fitted(rule: Rule, models: Sequence[Known]) -> Predictor:
    """Fit a rule to those models that have what it reads.

    Of an entry that lacks it the rule calls no drop and takes the last layer, as one does who cannot look.
    """
    predict = rule.fit([known for known in models if rule.reads(known.entry)])
    return lambda entry: predict(entry) if rule.reads(entry) else (truncated(entry.n_blocks, entry),)


def leave_one_family_out(rule: Rule, models: Sequence[Known]) -> list[tuple[Call, ...]]:
    """Return what a rule says of each model when it may only know models of other families.

    Raises:
        DataError: If the rule has parameters and one family only has what it reads.
    """
    predictors = {
        family: fitted(rule, [known for known in models if known.entry.family != family])
        for family in dict.fromkeys(known.entry.family for known in models)
    }
    return [predictors[known.entry.family](known.entry) for known in models]


def obstacle(rule: Rule, models: Sequence[Known]) -> str | None:
    """Return why a rule cannot be scored leave-one-family-out, None where it can."""
    families = {known.entry.family for known in models if rule.reads(known.entry)}
    names = ", ".join(rule.curves)
    if not families:
        return f"no model has {names}"
    if rule.parameters and len(families) < 2:
        return f"it has parameters, and there is one family only{f' with {names}' if names else ''}"
    return None


def _fixed(predict: Predictor) -> Callable[[Sequence[Known]], Predictor]:
    return lambda models: predict


# ---- the rules -----------------------------------------------------------------------------------------

ALL_REFERENCES = "all references"
THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0)
FRACTIONS = tuple(step / 12 for step in range(12, 2, -1))
MINIMUM_DECLINES = (0.05, 0.01, 0.02, 0.03, 0.075, 0.1, 0.15, 0.2, 0.3)
WOBBLES = (3.0, 0.0, 1.0, 2.0)
SHARES = ("mean cosine", "top dimension share")
"""Curves that like CKA are at most 1: their falls are taken as they are. Shares of a value near 0 would be noise."""
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
        def predict(entry: Layered) -> tuple[Call, ...]:
            first = int(curve == SELF_CKA)
            values = _values(entry, curve)[first:]
            if len(values) < 4:  # too short to have a plateau
                return (truncated(entry.n_blocks, entry),)
            onset = first + plateau_onsets(values[None], minimum_decline=minimum_decline, wobbles=wobbles)[0]
            return (truncated(int(onset) - 1, entry),)

        return predict

    name = f"{'tuned ' if tuned else ''}plateau of {curve}"
    candidates = [predictor(decline, wobbles) for decline in MINIMUM_DECLINES for wobbles in WOBBLES]
    fit = chosen(candidates, name=name) if tuned else _fixed(candidates[0])
    return Rule(name=name, curves=(curve,), fit=fit, parameters=2 if tuned else 0)


def fall(curve: str, *, labelled: bool = False) -> Rule:
    """Return the rule that flags the final layers which fall below the highest before them by a chosen share.

    Whether the embedding output counts among those is chosen, too: what no block has touched can be high for reasons
    of its own. Where both do as well, it does not count.
    """

    def predictor(first: int, direction: float, threshold: float) -> Predictor:
        return lambda entry: (final_run(_falls(entry, curve, direction, first=first) > threshold, entry),)

    name, directions = f"fall of {curve}", _directions(curve)
    candidates = [predictor(*choice) for choice in itertools.product((1, 0), directions, THRESHOLDS)]
    fit = chosen(candidates, name=name)
    return Rule(name=name, curves=(curve,), fit=fit, parameters=len(directions) + 1, labelled=labelled)


def best(curve: str, *, labelled: bool = False) -> Rule:
    """Return the rule that takes the best layer of a curve, the earlier one of equals."""

    def predictor(direction: float) -> Predictor:
        return lambda entry: (truncated(int((direction * _values(entry, curve)).argmax()), entry),)

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


def _standardised(models: Sequence[Known], curves: tuple[str, ...]) -> tuple[Callable[[Layered], Array], Array]:
    """Return what makes (layers, 1 + curves) features of an entry, scaled as those of known models, and penalties.

    The first feature is constant and has no penalty.
    """

    def raw(entry: Layered) -> Array:
        return np.stack([_falls(entry, name, _directions(name)[0])[1:] for name in curves], axis=1)

    known = np.concatenate([raw(model.entry) for model in models])
    mean, spread = known.mean(axis=0), known.std(axis=0)
    spread[spread == 0] = 1.0  # a curve that falls nowhere says nothing

    def scale(entry: Layered) -> Array:
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


def best_rule(rules: Sequence[Rule], *, labelled: bool = False) -> Rule:
    """Return the rule that takes the one of some rules with the lowest mean loss on known models, the first of equals.

    Each is scored leave-one-family-out among the known models. Of many rules the best one's own score is too good to
    be true; that of this rule is what somebody gets who chooses among them.
    """
    name = f"best rule of the other families{', with labels' if labelled else ''}"

    def mean_loss(rule: Rule, models: Sequence[Known]) -> float:
        said = zip(leave_one_family_out(rule, models), models, strict=True)
        return float(np.mean([np.mean([loss(call, known) for call in calls]) for calls, known in said]))

    def fit(models: Sequence[Known]) -> Predictor:
        candidates = [rule for rule in rules if obstacle(rule, models) is None]
        if not candidates:
            raise DataError(f"expected models of other families to tune {name!r} on, got none")
        return fitted(min(candidates, key=lambda rule: mean_loss(rule, models)), models)

    return Rule(name=name, curves=(), fit=fit, parameters=1, labelled=labelled)


def rules_for(entries: Iterable[ZooEntry]) -> list[Rule]:
    """Return every rule for which some entry has what it reads.

    Baselines, one curve each, three together, and the best of all these, without labels and with them.
    """
    names: dict[str, bool] = {}
    for entry in entries:
        names |= dict.fromkeys(entry.curves, False) | dict.fromkeys(entry.labelled, True)
    found = baselines()
    for name, labelled in names.items():
        if _is_cka(name):
            found += [plateau(name, tuned=False), plateau(name, tuned=True), fall(name)]
        else:
            found += [best(name, labelled=labelled), fall(name, labelled=labelled)]
    for curves in COMBINED:
        if set(curves) <= names.keys():
            labelled = any(names[name] for name in curves)
            found.append(logistic(curves, labelled=labelled))
    choices = [best_rule([rule for rule in found if not rule.labelled])]
    if any(names.values()):
        choices.append(best_rule(found, labelled=True))
    return found + choices
