"""Differences between two results of one kind by layer, with errors. Knows scores by layer, no kind of result."""

import math
import statistics
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.context import current
from layerprobe.errors import DataError
from layerprobe.interval import Interval
from layerprobe.metrics.names import METRICS, bounded, metric_title, points, split_title
from layerprobe.names import counted, distinct_names, percentage, plural
from layerprobe.results.conclusion import Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Column, Line, Quantity, Table, columns_of
from layerprobe.results.words import spans
from layerprobe.stats.crossed import Links, common_variance, errors_known, item_covariance, item_units, least_variance
from layerprobe.stats.values import ScoredLayers

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Differences(Shown):
    """Two results of one kind compared layer by layer: the scores of the second minus those of the first."""

    results: tuple[str, str]
    """Names of the two results."""
    task: str
    split: str
    primary: str
    unit: str
    """Name of an item."""
    n_items: int | None
    """Number of common items; None if items were not saved."""
    layers: tuple[int, ...]
    """Common layers."""
    scores: tuple[tuple[float, float], ...]
    """Scores x 100 of the first and the second result, by layer."""
    errors: tuple[Interval | None, ...]
    """Intervals of the differences by layer, jointly valid at the level (each has its share); None if the error is
    unknown."""
    level: float
    """Joint confidence level of all intervals."""
    notes: tuple[str, ...] = ()
    """Sources of error, and layers left out."""
    warnings: tuple[str, ...] = ()
    """Warnings of both results, with their names."""

    @property
    def values(self) -> tuple[float, ...]:
        """The differences by layer, in points."""
        return tuple(second - first for first, second in self.scores)

    @property
    def conclusion(self) -> Conclusion:
        """The layers at which the second result scores higher or lower, and the largest difference."""
        signs = [error.sign if error else 0 for error in self.errors]
        higher, lower = (
            tuple(layer for layer, sign in zip(self.layers, signs, strict=True) if sign == of) for of in (1, -1)
        )
        is_known = any(self.errors)
        case = "both" if higher and lower else "higher" if higher else "lower" if lower else "same"
        largest = max(range(len(self.layers)), key=lambda i: abs(self.values[i]))
        error, (first, second) = self.errors[largest], self.scores[largest]
        split = "" if self.split == "all" else self.split
        difference = Fact(value=self.values[largest], split=split)
        if error is not None:
            difference = replace(difference, interval=error.interval, level=self.level)
        facts = {
            "largest": difference,
            "before": Fact(value=first, unit="score", split=split),
            "after": Fact(value=second, unit="score", split=split),
            **counts(differing=len(higher) + len(lower), compared=len(self.layers)),
        }
        if is_known:
            facts["level"] = Fact(value=self.level, unit="level")
        facts |= counts(items=self.n_items)
        return Conclusion(
            kind="differences",
            case=case if is_known else "unknown",
            verdict=Verdict.DECIDED if higher or lower else Verdict.UNDECIDED,
            subject=(" and ".join(self.results), self.task),
            facts=facts,
            names={
                "first": self.results[0],
                "second": self.results[1],
                "higher": higher,
                "lower": lower,
                "layer": self.layers[largest],
                "unit": plural(self.unit),
                "metric": f"{metric_title(self.primary)} x 100",
            },
        )

    @property
    def sources(self) -> dict[str, str]:
        """The task, and the sources of error."""
        return {"Task": self.task, "Errors": "; ".join(self.notes)}

    @property
    def table(self) -> Table:
        """One row per layer: both scores, and their difference with its interval."""
        of_scores, of_errors, title = columns_of(self.scores), columns_of(self.errors), metric_title(self.primary)
        first, second = self.results
        quantity, unit = points(self.primary, self.split), f"{title} × 100, {second} minus {first}"
        items = "" if self.n_items is None else f", {counted(self.n_items, self.unit)}"
        return Table(
            title="Differences by layer",
            columns=(
                Column("layer", self.layers, meaning="Blocks kept."),
                of_scores("first", lambda pair: pair[0], title=first, form=".2f", quantity=quantity),
                of_scores("second", lambda pair: pair[1], title=second, form=".2f", quantity=quantity),
                Column("difference", self.values, form="+.2f", quantity=Quantity(unit, self.split)),
                of_errors(
                    "interval",
                    lambda error: error.interval,
                    title=f"{percentage(self.level)} interval",
                    form="+.2f",
                    meaning="Interval of the difference, jointly for all layers.",
                    interval=True,
                    over="over all layers together",
                ),
                of_errors("flag", lambda error: {1: "higher", -1: "lower", 0: None}[error.sign]),
            ),
            notes=(f"{title} x 100 on {split_title(self.split)}{items}; differences are {second} minus {first}.",),
            charts=(
                Chart(lines=(Line("difference", interval="interval"),), name="differences", limit=0.0),
                Chart(lines=(Line("first"), Line("second")), name="scores"),
            ),
        )


def compare_results(first: object, second: object, *, names: tuple[str, str] | None = None) -> Differences:
    """Return the differences between two results of one kind by layer: the second scores minus the first.

    Errors are over the common items, in pairs, and over seeds: in pairs if both have the same, else independent. All
    intervals are jointly valid (Bonferroni).

    Args:
        first: A result of `score`, `probe` or `finetune` for one model on one task, or of `find`, whose fine-tuned
            layers count; `lp.load` reads a saved one.
        second: Likewise, with the same kind, task, metric and items.
        names: Names of the two; by default those of their models.

    Raises:
        DataError: If they are not two such results.
    """
    a, b = map(_scored_layers, (first, second))
    kinds = type(first).__name__, type(second).__name__
    for what, *both in (("kind", *kinds), ("metric", a.primary, b.primary), ("split", a.split, b.split)):
        if both[0] != both[1]:
            raise DataError(f"expected two results of one {what}, got {both[0]} and {both[1]}")
    items = [(one.influences.digest, one.influences.n) for one in (a, b) if one.influences is not None]
    paired = len(items) == 2
    if len(set(items)) == 2 or (not paired and a.task != b.task):
        raise DataError(
            f"expected two results on the same items, got {a.task} and {b.task}"
            f"{', which hold different items' if paired else ''}: score both on one task"
        )
    layers = sorted(a.scores.keys() & b.scores.keys())
    if not layers:
        raise DataError("expected two results with layers in common, got none")
    level = current().level
    first_name, second_name = names or (
        ("the first", "the second") if a.model == b.model else distinct_names([a.model, b.model])
    )
    errors = _errors(a, b, layers, 1 - (1 - level) / len(layers), paired=paired)
    notes = [_errors_note(a, errors, paired=paired)]
    for name, one, other in ((first_name, a, b), (second_name, b, a)):
        if alone := sorted(one.scores.keys() - other.scores.keys()):
            notes.append(f"layers only in {name} are left out: {', '.join(spans(alone))}")
    return Differences(
        results=(first_name, second_name),
        task=b.task,
        split=a.split,
        primary=a.primary,
        unit=a.unit,
        n_items=items[0][1] if paired else None,
        layers=tuple(layers),
        scores=tuple((statistics.fmean(a.scores[layer]), statistics.fmean(b.scores[layer])) for layer in layers),
        errors=tuple(errors),
        level=level,
        notes=tuple(notes),
        warnings=tuple(
            f"{name}: {warning}"
            for name, result in ((first_name, first), (second_name, second))
            for warning in getattr(result, "warnings", ())
        ),
    )


def _scored_layers(result: object) -> ScoredLayers:
    scored: ScoredLayers | None = getattr(result, "scored_layers", None)
    if scored is None:
        raise DataError(
            f"expected two results of score, probe, finetune or find, got a {type(result).__name__}: lp.load reads "
            "what lp.save or --json wrote"
        )
    return scored


def _errors(
    a: ScoredLayers, b: ScoredLayers, layers: list[int], level: float, *, paired: bool
) -> list[Interval | None]:
    """Return the differences, second minus first, each at a level; None if the error is unknown.

    With C the covariance over items of scores by seed, and s^2 the variance over seeds,

        variance = C between different seeds + max(s^2 / S of the layer, its mean over layers),

    with the degrees of freedom of the items and of the seeds of all layers, weighted by their shares: a few seeds say
    little about one layer. Without common items, the variances of the two are added.
    """
    links, psi = None, None
    if paired and a.influences is not None and b.influences is not None:
        links, psi = a.influences.links or b.influences.links, (a.influences_by_layer(), b.influences_by_layer())
        if not errors_known(a.influences.n, links):
            return [None for _ in layers]
    elif any(layer not in one.errors for one in (a, b) for layer in layers):
        return [None for _ in layers]
    drawn = [_seed_variance(a, b, layer) for layer in layers]
    seed_freedom, mean_of_seeds = sum(freedom for _, freedom in drawn), statistics.fmean(of for of, _ in drawn)
    metric = a.primary if a.primary in METRICS else None
    errors: list[Interval | None] = []
    for layer, (of_layer, _) in zip(layers, drawn, strict=True):
        n: int | None
        if psi is None:
            pair = a.errors[layer], b.errors[layer]
            of_items = sum((error.items_error or 0.0) ** 2 for error in pair)
            n, units = pair[0].n_items, float(min(error.n_items or 2 for error in pair))
        else:
            first, second = psi[0][layer], psi[1][layer]
            n, of_items = (
                first.shape[1],
                _item_variance(first, second, links, same=a.seeds.get(layer) == b.seeds.get(layer)),
            )
            of_items, units = max(of_items, least_variance(n, links) if metric else 0.0), item_units(n, links)
        of_seeds = max(of_layer, mean_of_seeds)
        error = math.sqrt(of_items + of_seeds)
        value = statistics.fmean(b.scores[layer]) - statistics.fmean(a.scores[layer])
        share = of_seeds / (of_items + of_seeds) if of_seeds else 0.0
        freedom = 1 / (share / max(seed_freedom, 1) + (1 - share) / (units - 1))
        reach = error * float(stats.t.isf((1 - level) / 2, freedom))
        ends = (value - reach, value + reach)
        errors.append(
            Interval(
                value=value,
                standard_error=error,
                interval=bounded(metric, ends, difference=True) if metric else ends,
                level=level,
                freedom=freedom,
                items_error=math.sqrt(of_items) if n else None,
                seeds_error=math.sqrt(of_seeds) if seed_freedom else None,
                n_items=n,
                n_seeds=min(
                    max(len(one.scores[layer]), one.errors[layer].n_seeds if layer in one.errors else 1)
                    for one in (a, b)
                ),
                unit=a.unit,
            )
        )
    return errors


def _seed_variance(a: ScoredLayers, b: ScoredLayers, layer: int) -> tuple[float, int]:
    """Return the variance over seeds of a difference of means, and its degrees of freedom; 0 and 0 without seeds."""
    if layer in a.seeds and a.seeds[layer] == b.seeds.get(layer):
        values = [second - first for first, second in zip(a.scores[layer], b.scores[layer], strict=True)]
        return (statistics.variance(values) / len(values), len(values) - 1) if len(values) > 1 else (0.0, 0)
    errors = [one.errors[layer] for one in (a, b) if layer in one.errors]
    variances = [(error.seeds_error**2, error.n_seeds - 1) for error in errors if error.seeds_error is not None]
    return sum(of for of, _ in variances), sum(freedom for _, freedom in variances)


def _item_variance(first: Array, second: Array, links: Links | None, *, same: bool) -> float:
    """Return the variance over items of a difference of means over seeds: the effect common to all seeds."""
    if same:
        return common_variance(item_covariance(second - first, links))
    covariance, n = item_covariance(np.concatenate([first, second]), links), len(first)
    between = float(covariance[:n, n:].mean())
    return common_variance(covariance[:n, :n]) + common_variance(covariance[n:, n:]) - 2 * between


def _errors_note(a: ScoredLayers, errors: list[Interval | None], *, paired: bool) -> str:
    """Return a note on the sources of error."""
    if not any(errors):
        return "standard errors are unknown: they need results of this version with at least two items"
    if not paired:
        return "the errors of the two are treated as independent (wider), because items were not saved with both"
    drawn = f" and new {'seeds' if a.seeds else 'foldings'}" if any(e and e.seeds_error for e in errors) else ""
    return f"errors are over new {plural(a.unit)}{drawn}; both results have the same {plural(a.unit)}"
