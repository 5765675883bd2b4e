"""The rules: plateau of CKA, depth, single readings, and the best of all. Knows numbers by layer only.

Rep, Dukic and Snajder 2024 (arXiv 2402.13130) observed that CKA with an MLM reference drops in the layers whose
fine-tuned embeddings are worse. A decline is a necessary sign, not a sufficient one: flagged layers are
candidates until fine-tuning confirms them.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.names import nearest
from layerprobe.prediction.rule import (
    DRAWS,
    FRACTION,
    Array,
    FittedRule,
    KnownDrop,
    Parameters,
    Predictor,
    ReadingPredictor,
    Rule,
    Shares,
    before_final_run,
    best_on_grid,
    check_some,
    decline_interval,
    falls,
    fitted,
    fitted_parameters,
    fixed_fraction,
    leave_one_family_out,
    loss,
    obstacle,
    redraw,
    shares_of,
)
from layerprobe.prediction.values import PLATEAU, Decline, DropPrediction
from layerprobe.readings.reading import Reading, reading_of
from layerprobe.registry import Registry
from layerprobe.similarity.values import SimilarityCurve

SOURCE = "Rep, Dukic and Snajder 2024 (2402.13130)"
# A decline counts when it exceeds both of these.
MINIMUM_DECLINE = 0.05
# Three, because a steady decline by w per layer is 2 w below the plateau two layers later: with two wobbles, rounding
# or a jitter of 0.005 decided (99 % of declines by 0.03 per layer were flagged); with three, 3 % are.
WOBBLES = 3.0
# The level before a decline is the median of this many layers.
PLATEAU_LAYERS = 3
# The first layer that can be an onset: it needs two layers before it, to compare with a wobble.
EARLIEST = 2
# The two constants that the tuned rule chooses from, those of `plateau_rule` first.
MINIMUM_DECLINES = (MINIMUM_DECLINE, 0.01, 0.02, 0.03, 0.075, 0.1, 0.15, 0.2, 0.3)
WOBBLE_FACTORS = (WOBBLES, 0.0, 1.0, 2.0)


def plateau(name: str, reading: Reading, *, tuned: bool) -> Rule:
    """Return the plateau rule on a reading, with the constants of `plateau_rule` or with chosen ones."""

    def predictor(minimum_decline: float, wobbles: float) -> Predictor:
        def layers(values: Array) -> NDArray[np.intp]:
            read = values[:, reading.first :]
            if read.shape[1] < 4:  # too short to have a plateau
                return np.full(len(values), values.shape[1] - 1)
            onsets = plateau_onsets(read, minimum_decline=minimum_decline, wobbles=wobbles)
            return reading.first + onsets - 1

        return ReadingPredictor(name=name, layers=layers)

    grid = [
        {"minimum_decline": decline, "wobbles": wobbles} for decline in MINIMUM_DECLINES for wobbles in WOBBLE_FACTORS
    ]
    title = f"{'tuned ' if tuned else ''}plateau of {name}"
    about = {"curves": (name,), "labelled": reading.labelled, "source": SOURCE}
    return rule_on_grid(title, predictor, grid if tuned else grid[:1], parameters=2, **about)


def rule_on_grid(
    name: str, make: Callable[..., Predictor], grid: Sequence[Parameters], *, parameters: int, **about: Any
) -> Rule:
    """Return the rule that chooses its parameters from a grid, or has none to choose if the grid has a single row."""
    if len(grid) == 1:
        return Rule(name=name, make=lambda: make(**grid[0]), **about)
    return Rule(name=name, make=make, choose=best_on_grid(make, grid, name), parameters=parameters, **about)


Declines = tuple[Array, Array, Array, Array]
"""Four (k, onsets) arrays for k curves and every possible onset, 2, 3, .. to the last layer: the plateau, the median of
the three layers before; the wobble, the median change between layers before; the threshold, how far below the plateau
every layer must be; and the margin by which the highest layer is below that, positive for a drop."""


def plateau_rule(
    curve: SimilarityCurve,
    *,
    model: str = "the model",
    draws: int = DRAWS,
    seed: int = 0,
    layers: range | None = None,
) -> DropPrediction:
    """Flag the last layers if they are below the plateau before them by more than the curve wobbles.

    A layer o begins a drop if every layer from o to the last is more than t below the plateau, the median
    CKA of the three layers before o, with

        t = max(0.05, 3 w),   w = the median change |c_l - c_(l-1)| of the layers l < o.

    The first such o is the onset, and the layer before it is recommended. A curve that falls steadily has w as
    large as its steps and no onset. Neither has one whose only fall is from layer 0 to 1, since at least two layers
    must come before o, to compare with a wobble. A later fall counts even if the curve is level after it: all those
    layers differ from the reference.

    If the curve has intervals, the rule is also applied to curves redrawn within its errors, and its outcomes are
    counted. Layers are flagged on the observed curve alone.

    The rule reads the curve at `layers`; layers before them are left out, and layers after them flagged.

    Examples:
        >>> values = (0.90, 0.91, 0.90, 0.89, 0.70, 0.55)
        >>> curve = SimilarityCurve(values=values, reference_layers=tuple(range(6)), alignment="same-index")
        >>> plateau_rule(curve).drop_layers
        (4, 5)
    """
    values = np.array(curve.values)
    n_blocks, layers = len(values) - 1, range(len(values)) if layers is None else layers
    first, seen = layers.start, slice(layers.start, layers.stop)
    check_depth(len(values), model)
    declines = _declines(values[None, seen])
    onset = first + int(_onsets(declines)[0])
    dropping = onset < layers.stop
    measured = onset - first if dropping else EARLIEST + int(declines[-1][0].argmax())
    evidence = _evidence(values[seen], declines, measured, first)
    shares: Shares = (), ()
    if curve.uncertainty is not None:
        drawn = redraw(curve.values, curve.uncertainty.covariance, draws=draws, seed=seed)
        shares = shares_of(first + plateau_onsets(drawn[:, seen]), n_layers=len(values))
        level = curve.uncertainty.level
        ends = decline_interval(drawn[:, : layers.stop], evidence.plateau_layers, level=level)
        evidence = replace(evidence, decline_interval=ends, level=level)
    return DropPrediction(
        drop_layers=tuple(range(onset, n_blocks + 1)),
        onset=onset if onset <= n_blocks else None,
        recommended_layer=onset - 1,
        rule=PLATEAU,
        evidence=evidence,
        baselines={"last layer": n_blocks, "fixed fraction of depth": fixed_fraction(n_blocks)},
        flagged_in=shares[0],
        recommended_in=shares[1],
    )


def check_depth(n_layers: int, model: str) -> None:
    """Raise DataError unless a model has the three blocks that a prediction needs."""
    if n_layers < 4:
        raise DataError(f"expected a curve of at least 4 layers, to detect a decline, {model} has {n_layers}")


def plateau_onsets(
    curves: Array, *, minimum_decline: float = MINIMUM_DECLINE, wobbles: float = WOBBLES
) -> NDArray[np.intp]:
    """Return the first drop layer of each curve, or the number of layers if the rule flags none.

    Args:
        curves: (k, layers) values, at least three layers.
        minimum_decline: Smallest decline that counts.
        wobbles: Smallest decline that counts, in median changes between layers.

    Examples:
        >>> plateau_onsets(np.array([[0.9, 0.9, 0.9, 0.5], [0.9, 0.9, 0.9, 0.9]])).tolist()
        [3, 4]
    """
    return _onsets(_declines(curves, minimum_decline, wobbles))


def _onsets(declines: Declines) -> NDArray[np.intp]:
    drops = declines[-1] > 0
    return np.where(drops.any(axis=1), drops.argmax(axis=1), drops.shape[1]) + EARLIEST


def _declines(curves: Array, minimum_decline: float = MINIMUM_DECLINE, wobbles: float = WOBBLES) -> Declines:
    """Return plateau, wobble, threshold and margin of each of (k, layers) curves."""
    onsets = range(EARLIEST, curves.shape[1])
    changes = np.abs(np.diff(curves, axis=1))
    plateau = np.stack([np.median(curves[:, _plateau_before(onset)], axis=1) for onset in onsets], axis=1)
    wobble = np.stack([np.median(changes[:, : onset - 1], axis=1) for onset in onsets], axis=1)
    # The highest layer from an onset to the last, for all onsets at once.
    highest = np.maximum.accumulate(curves[:, ::-1], axis=1)[:, ::-1][:, EARLIEST:]
    threshold = np.maximum(minimum_decline, wobbles * wobble)
    return plateau, wobble, threshold, plateau - threshold - highest


def _plateau_before(onset: int) -> slice:
    """Return the layers of the plateau before `onset`."""
    return slice(max(0, onset - PLATEAU_LAYERS), onset)


def _evidence(values: Array, declines: Declines, onset: int, first: int) -> Decline:
    """Return the evidence for an onset, counted from the first layer that is not left out."""
    plateau, wobble, threshold, _ = (float(measured[0, onset - EARLIEST]) for measured in declines)
    return Decline(
        plateau_layers=tuple(range(first, first + onset)[_plateau_before(onset)]),
        plateau=plateau,
        decline=float(plateau - values[-1]),
        wobble=wobble,
        threshold=threshold,
    )


CONTROL = "control: ignores the model"
FRACTIONS = tuple(step / 12 for step in range(12, 2, -1))


def depth_rules() -> list[Rule]:
    """Return the rules that ignore the model."""

    def fraction(share: float) -> Predictor:
        return lambda model: (fixed_fraction(model.n_blocks, fraction=share),)

    shares = {"last layer": (1.0,), "fixed fraction of depth": (FRACTION,), "tuned fraction of depth": FRACTIONS}
    return [
        *(
            rule_on_grid(name, fraction, [{"share": share} for share in of], parameters=1, curves=(), source=CONTROL)
            for name, of in shares.items()
        ),
        Rule(
            name="random layer", curves=(), make=lambda: lambda model: tuple(range(model.n_blocks + 1)), source=CONTROL
        ),
    ]


def best_layer(name: str, reading: Reading) -> Rule:
    """Return the rule that takes the best layer of a reading, the earlier of equals."""

    def predictor(direction: int) -> Predictor:
        return ReadingPredictor(name=name, layers=lambda values: (direction * values).argmax(axis=-1))

    grid = [{"direction": direction} for direction in reading.directions]
    about = {"curves": (name,), "labelled": reading.labelled}
    return rule_on_grid(f"best layer by {name}", predictor, grid, parameters=1, **about)


THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0)


def fall(name: str, reading: Reading) -> Rule:
    """Return the rule that flags the last layers if they fall below the highest one before by a chosen share.

    It also chooses whether the embedding output counts, which can be high for reasons of its own; if both are equally
    good, it does not count. No layer is flagged if the last one is no further below the highest than the reading's
    floor.
    """

    def predictor(first: int, direction: int, threshold: float) -> Predictor:
        def layers(values: Array) -> NDArray[np.intp]:
            read = direction * values[..., first:]
            level = read.max(axis=-1) - read[..., -1] <= reading.floor
            flagged = before_final_run(falls_of(values, reading, direction=direction, first=first) > threshold)
            return np.where(level, values.shape[-1] - 1, flagged)

        return ReadingPredictor(name=name, layers=layers)

    grid = [
        {"first": first, "direction": direction, "threshold": threshold}
        for first, direction, threshold in itertools.product((1, 0), reading.directions, THRESHOLDS)
    ]
    about = {"curves": (name,), "labelled": reading.labelled}
    return rule_on_grid(f"fall of {name}", predictor, grid, parameters=len(reading.directions) + 1, **about)


def falls_of(values: Array, reading: Reading, *, direction: int, first: int = 0) -> Array:
    """Return the falls of a reading's (.., layers) values below the highest one from layer `first`; 0 before it."""
    below = falls(direction * values[..., first:], unit=reading.maximum)
    return np.concatenate([np.zeros((*below.shape[:-1], first)), below], axis=-1)


def best_rule(rules: Sequence[Rule], *, labelled: bool = False) -> Rule:
    """Return the rule that applies the one with the lowest mean loss on known models, the first of equals.

    Each is scored leave-one-family-out among the known models. The score of the best of many rules is biased upwards;
    this rule's score is that of choosing among them.
    """
    name = f"best rule of the other families{', with labels' if labelled else ''}"

    def mean_loss(rule: Rule, models: Sequence[KnownDrop]) -> float:
        predicted = zip(leave_one_family_out(rule, models), models, strict=True)
        return float(np.mean([np.mean([loss(layer, case) for layer in layers]) for layers, case in predicted]))

    def choose(models: Sequence[KnownDrop]) -> Parameters:
        candidates = [rule for rule in rules if obstacle(rule, models) is None]
        check_some(candidates, name)
        return {"predict": fitted(min(candidates, key=lambda rule: mean_loss(rule, models)), models)}

    return Rule(name=name, curves=(), make=lambda predict: predict, choose=choose, parameters=1, labelled=labelled)


RULES = Registry("layerprobe.rules", FunctionType, what="family of rules", shipped={})
"""Functions of other packages from the available readings, by name, and the rules of layerprobe to further rules that
read some of them."""


def rules_for(readings: Mapping[str, Reading], further: Sequence[Rule] = ()) -> list[Rule]:
    """Return every rule that needs only these readings, and further ones, sorted by what they read.

    The best of all, chosen on other families, come last: one without labels and, if some rules need them, one with.
    """
    order = {name: number for number, name in enumerate(readings)}
    similarities = [name for name, reading in readings.items() if reading.similarity]
    rules = depth_rules()
    rules += [plateau(name, readings[name], tuned=tuned) for name in similarities for tuned in (False, True)]
    # a similarity is high where nothing was learnt
    rules += [best_layer(name, reading) for name, reading in readings.items() if not reading.similarity]
    rules += [fall(name, reading) for name, reading in readings.items()]
    for family in RULES.usable().values():
        rules += [rule for rule in family(readings, rules) if set(rule.curves) <= readings.keys()]
    rules += further
    rules.sort(key=lambda rule: (min(len(rule.curves), 2), order[rule.curves[0]] if len(rule.curves) == 1 else 0))
    best = [best_rule([rule for rule in rules if not rule.labelled])]
    if any(reading.labelled for reading in readings.values()):
        best.append(best_rule(rules, labelled=True))
    return [*rules, *best]


def rule_names() -> tuple[str, ...]:
    """Return the names of rules for `tuned_rule`."""
    return tuple(rule.name for rule in fitted_parameters().rules)


def rule_curves(name: str) -> tuple[str, ...]:
    """Return the names of the readings that a rule needs; raise DataError if there is no such rule."""
    return _row(name).curves


@functools.cache
def tuned_rule(name: str) -> Rule:
    """Return a rule fitted to the zoos, with its record on models of families that it was not fitted to."""
    row = _row(name)
    rules = rules_for({reading: reading_of(reading) for reading in row.curves})
    rule = next(rule for rule in rules if rule.name == name)
    return replace(rule, chosen=row.parameters, record=row.record)


def _row(name: str) -> FittedRule:
    rows = {rule.name: rule for rule in fitted_parameters().rules}
    if name not in rows:
        raise DataError(f"expected a rule among {'; '.join(rows)}; got {name!r}{nearest(name, rows)}")
    return rows[name]
