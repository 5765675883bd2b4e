"""Scores how well curves by layer detect drops and resemble the test scores. Knows numbers only."""

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.finetuning.values import Weighting
from layerprobe.lab.dropbench.redraws import ratio, score_of, weighted_quantiles
from layerprobe.lab.dropbench.strategies import Recorded
from layerprobe.lab.dropbench.values import CurveScores, DetectorScores, JointScores, Needs, Score
from layerprobe.metrics.correlation import spearman
from layerprobe.prediction.rule import falls
from layerprobe.prediction.values import Truth
from layerprobe.readings.reading import Reading

Array = NDArray[np.float64]
Curve = Callable[[Recorded], Array | None]
"""(layers,) of which more is better, in any unit; None where a model lacks it."""


def curves(readings: Mapping[str, Reading]) -> dict[str, tuple[Needs, float | None, Curve]]:
    """Return every curve by name, with what it needs and what its falls are measured in; None: its largest size.

    Those of scans and of a sweep of one seed are validation scores, in points. Readings have their direction; of one
    whose direction is not known more counts as better.
    """
    curves: dict[str, tuple[Needs, float | None, Curve]] = {}
    for weighting in get_args(Weighting):
        curves[f"scan, {weighting}"] = ("training", 1.0, _of_scan(weighting))
    curves["sweep, 1 seed"] = ("training", 1.0, lambda model: np.array(model.tuned.validation)[:, 0])
    for name, reading in readings.items():
        curves[name] = ("labels" if reading.labelled else "readings", reading.maximum, _of_reading(name, reading))
    return curves


def detectors(
    models: Sequence[Recorded],
    truths: Sequence[Truth],
    curves: Mapping[str, tuple[Needs, float | None, Curve]],
    counts: Array,
    *,
    level: float,
) -> tuple[DetectorScores, ...]:
    """Score how far each curve falls from its highest, layer 0 left out, to the last layer, as a sign of a drop.

    The threshold above which a drop is called is that with the best F1 on the other families, the highest of equals.
    """
    scored = []
    for name, (needs, unit, curve) in curves.items():
        by_model = [curve(model) for model in models]
        fallen = [None if values is None else float(falls(values[1:], unit=unit)[-1]) for values in by_model]
        rows = [row for row, fall in enumerate(fallen) if fall is not None]
        if rows:
            drops = np.array([fallen[row] for row in rows], dtype=np.float64)
            scored.append(
                _detector_scores(
                    name,
                    needs,
                    drops,
                    [truths[row] for row in rows],
                    [models[row].entry.family for row in rows],
                    counts[:, rows],
                    level=level,
                )
            )
    return tuple(sorted(scored, key=lambda row: -1.0 if row.area is None else -row.area.value))


def alikeness(
    models: Sequence[Recorded],
    curves: Mapping[str, tuple[Needs, float | None, Curve]],
    counts: Array,
    *,
    level: float,
) -> tuple[CurveScores, ...]:
    """Score how alike each curve is to the mean test scores of TMFT: Spearman's correlation within a model.

    The seed of the one-seed sweep is left out of the scores that it is compared with.
    """
    scored = []
    for name, (needs, _, curve) in curves.items():
        values = [_alike(name, curve(model), model) for model in models]
        rows = [row for row, value in enumerate(values) if value is not None]
        if rows:
            numbers, row_counts = np.array([values[row] for row in rows], dtype=np.float64), counts[:, rows]
            mean = score_of(ratio(row_counts @ numbers, row_counts.sum(axis=1)), level)
            median = score_of(weighted_quantiles(numbers, row_counts), level)
            assert mean is not None
            assert median is not None
            scored.append(CurveScores(curve=name, needs=needs, models=len(rows), mean=mean, median=median))
    return tuple(sorted(scored, key=lambda row: -row.mean.value))


def joint_scores(models: Sequence[Recorded], counts: Array, *, level: float) -> tuple[JointScores, ...]:
    """Compare the models of scans with TMFT at the same layers, the means over seeds of both."""
    scored = []
    for weighting in get_args(Weighting):
        differences, rows = [], []
        for row, model in enumerate(models):
            scans = model.tuned.whole_scans(weighting)
            if scans:
                alone = np.array(model.tuned.test).mean(axis=1)
                ahead = np.mean([np.array(scan.test, dtype=np.float64) for scan in scans], axis=0) - alone
                differences.append((ahead[int(alone.argmax())], ahead[-1], ahead.mean()))
                rows.append(row)
        if rows:
            row_counts = counts[:, rows]
            best, last, overall = (
                _mean_score(np.array(column), row_counts, level) for column in zip(*differences, strict=True)
            )
            scored.append(
                JointScores(weighting=weighting, models=len(rows), at_best=best, at_last=last, overall=overall)
            )
    return tuple(scored)


def area_under(falls: Array, drops: NDArray[np.bool_], counts: Array) -> Array:
    """Return (draws,) areas under the ROC curve of falls, of models that count as (draws, models) says.

    Examples:
        >>> area_under(np.array([3.0, 1.0, 2.0, 1.0]), np.array([True, True, False, False]), np.ones((1, 4))).tolist()
        [0.625]
    """
    above = (falls[:, None] > falls) + 0.5 * (falls[:, None] == falls)
    dropping, others = counts * drops, counts * ~drops
    won: Array = np.einsum("di,ij,dj->d", dropping, above, others)
    return ratio(won, dropping.sum(axis=1) * others.sum(axis=1))


def best_threshold(falls: Array, drops: NDArray[np.bool_]) -> float:
    """Return the value above which calling a drop has the highest F1, the highest of equals.

    Examples:
        >>> best_threshold(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]))
        0.5
    """
    ordered = np.unique(falls)
    middles = (ordered[1:] + ordered[:-1]) / 2
    candidates = [*middles[::-1].tolist(), -np.inf]

    def f1(threshold: float) -> float:
        called = falls > threshold
        hits, either = int((called & drops).sum()), int(called.sum() + drops.sum())
        return 2 * hits / max(either, 1)

    return float(max(candidates, key=f1))


def _of_scan(weighting: Weighting) -> Curve:
    def curve(model: Recorded) -> Array | None:
        scans = model.tuned.whole_scans(weighting)
        return np.array(scans[0].validation, dtype=np.float64) if scans else None

    return curve


def _of_reading(name: str, reading: Reading) -> Curve:
    def curve(model: Recorded) -> Array | None:
        curve = model.entry.curves.get(name)
        return None if curve is None else (reading.direction or 1) * np.array(curve.values)

    return curve


def _alike(name: str, values: Array | None, model: Recorded) -> float | None:
    test = np.array(model.tuned.test)
    if name == "sweep, 1 seed":
        test = test[:, 1:] if test.shape[1] > 1 else test
    try:
        return None if values is None else float(spearman(values, test.mean(axis=1)))
    except DataError:  # a curve of one value
        return None


def _mean_score(values: Array, counts: Array, level: float) -> Score:
    score = score_of(ratio(counts @ values, counts.sum(axis=1)), level)
    assert score is not None
    return score


def _detector_scores(
    name: str,
    needs: Needs,
    falls: Array,
    truths: Sequence[Truth],
    families: Sequence[str],
    counts: Array,
    *,
    level: float,
) -> DetectorScores:
    drops = np.array([truth.drop for truth in truths])
    effects = np.array([truth.effect for truth in truths])
    called = _called(falls, drops, families)
    precision = recall = None
    if called is not None:
        hits = counts @ (called & drops)
        precision = score_of(ratio(hits, counts @ called), level)
        recall = score_of(ratio(hits, counts @ drops), level)
    return DetectorScores(
        detector=name,
        needs=needs,
        models=len(falls),
        drops=int(drops.sum()),
        area=score_of(area_under(falls, drops, counts), level),
        precision=precision,
        recall=recall,
        effect=_correlation(falls, effects),
    )


def _called(falls: Array, drops: NDArray[np.bool_], families: Sequence[str]) -> NDArray[np.bool_] | None:
    """Return what is called with a threshold chosen on the other families; None where there is one family."""
    of_family = np.array(families)
    called = np.zeros(len(falls), dtype=np.bool_)
    for family in set(families):
        inside = of_family == family
        if inside.all():
            return None
        called[inside] = falls[inside] > best_threshold(falls[~inside], drops[~inside])
    return called


def _correlation(first: Array, second: Array) -> float | None:
    try:
        return float(spearman(first, second)) if len(first) > 2 else None
    except DataError:
        return None
