"""Frozen embeddings of every layer and targets -> which layer to use. Knows arrays, models and tasks."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from layerprobe.comparison.arrays import Layer, as_layers
from layerprobe.context import current, part, report
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.files.serialisation import digest
from layerprobe.interval import Interval
from layerprobe.metrics.names import METRICS
from layerprobe.metrics.scores import fisher_ends, mean_influences
from layerprobe.names import quoted
from layerprobe.probing.fits import Fit
from layerprobe.probing.jackknife import jackknife
from layerprobe.probing.probes import COSINES, UNITS, Fitted, Problem
from layerprobe.probing.scaling import Scale, scaled
from layerprobe.probing.targets import as_groups, as_targets
from layerprobe.probing.values import (
    FOLDINGS,
    FOLDS,
    METHODS,
    WEIGHTED_SUM,
    ProbedLayer,
    ProbeSettings,
    Probing,
    TargetKind,
)
from layerprobe.probing.weighted_sum import fit_of_sum
from layerprobe.probing.weighted_sum import weighted_sum as sum_of_layers
from layerprobe.process import without_warnings
from layerprobe.stats.best import compared_with_best, of_highest
from layerprobe.stats.crossed import crossed, item_covariance, item_units, least_variance, score_ends
from layerprobe.stats.links import Links
from layerprobe.stats.paired import ItemInfluences
from layerprobe.stats.values import TOLERANCE, AgainstBest

if TYPE_CHECKING:
    from layerprobe.encoders.loading import ModelLike
    from layerprobe.tasks.values import Task

Array = NDArray[np.float64]

CORRELATIONS = ("spearman", "pearson")
SUMMED = 2**30
"""Numbers of all layers up to which their weighted sum is compared by default: they are read many times for it."""


def student(level: float, freedom: float) -> float:
    """Return the half-width of Student's interval, in standard errors."""
    return float(stats.t.isf((1 - level) / 2, freedom))


@dataclass(kw_only=True)
class Board:
    """Scores of all layers so far, on the same items."""

    scores: Callable[[Any], dict[str, float]]
    influences: Callable[[Any, str], Array]
    links: Links | None
    digest: str
    """Of the items, see `ItemInfluences`."""
    about: Mapping[str, Any]
    """Fields of the result that are known before layers are scored."""
    began: float = field(default_factory=time.perf_counter)
    primary: str = ""
    layers: list[ProbedLayer] = field(default_factory=list)
    summed: ProbedLayer | None = None
    by_folding: list[Array] = field(default_factory=list)
    """The primary metric by folding, of layers and then of their weighted sum."""
    psi: list[NDArray[np.float32]] = field(default_factory=list)
    """(n,) influences on it, mean over foldings."""
    again: list[Array | None] = field(default_factory=list)
    """The same by fitting single layers again, where that was done, see `jackknife`."""
    left_out: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        name: str,
        layer: int | None,
        width: int | None,
        outputs: Iterable[Any],
        *,
        swayed: Array | float = 0.0,
        again: Array | None = None,
        note: str = "",
    ) -> None:
        """Score the outputs of a layer, or of the weighted sum, by folding; leave it out where that cannot be done."""
        outputs = list(outputs)
        try:
            scored = [self.scores(output) for output in outputs]
        except MisalignedSamplesError:
            raise
        except DataError as error:
            self.left_out[name] = str(error)
            return
        metrics = {metric: float(np.mean([scores[metric] for scores in scored])) for metric in scored[0]}
        self.primary = self.primary or next(iter(metrics))
        values = np.array([scores[self.primary] for scores in scored])
        # a metric from outside is computed again without each item
        outputs = outputs if self.primary in METRICS else outputs[:1]
        psi = np.mean([self.influences(output, self.primary) for output in outputs], axis=0)
        psi = mean_influences(psi + np.mean(np.atleast_2d(swayed), axis=0))
        self.by_folding.append(values)
        self.psi.append(psi.astype(np.float32))
        self.again.append(again)
        interval = self.error(values, psi if self.again[-1] is None else self.again[-1])
        probed = ProbedLayer(name=name, layer=layer, width=width, metrics=metrics, error=interval, note=note)
        if layer is None:
            self.summed = probed
        else:
            self.layers.append(probed)

    def error(self, values: Array, psi: Array, *, difference: bool = False) -> Interval | None:
        """Return the interval of a score, or of a difference, over items and foldings; None where nothing is known."""
        if self.links is not None and self.links.units <= 1:
            return None
        values = values[:1] if np.ptp(values) == 0 else values
        return crossed(
            values.tolist(),
            np.broadcast_to(psi, (len(values), len(psi))),
            links=self.links,
            level=current().level,
            unit=self.about["unit"],
            metric=self.primary if self.primary in METRICS else None,
            difference=difference,
        )

    def of_layers(self) -> ArrayLike:
        """Return (layers, n) influences on the scores of single layers, by fitting again where that was done of all."""
        count = len(self.layers)
        again = [psi for psi in self.again[:count] if psi is not None]
        return again if len(again) == count else np.stack(self.psi[:count])

    def compared(self) -> AgainstBest | None:
        """Return the layers compared with the best of them; sets all intervals. None where nothing is known."""
        n, count = len(self.psi[0]), len(self.layers)
        if self.links is not None and self.links.units <= 1:
            return None
        values = np.stack(self.by_folding[:count])
        covariance = item_covariance(self.of_layers(), self.links)
        if values.shape[1] > 1:
            covariance = covariance + np.cov(values) / values.shape[1]
        freedom = item_units(n, self.links) - 1
        least = least_variance(n, self.links) if self.primary in METRICS else 0.0
        joint = of_highest(covariance, level=current().level, freedom=freedom, least=least)
        below = np.ones(count)
        below[int(np.argmax(values.mean(axis=1)))] = joint / student(current().level, freedom)
        self.layers = [self.with_ends(*pair, least) for pair in zip(self.layers, below.tolist(), strict=True)]
        self.summed = self.summed and self.with_ends(self.summed, 1.0, least)
        return compared_with_best(
            values.mean(axis=1),
            covariance,
            [layer.error.interval for layer in self.layers if layer.error],
            level=current().level,
            freedom=freedom,
            least=least,
            tolerance=self.about["settings"].tolerance,
            floor=self.about["floors"].get(self.primary),
        )

    def with_ends(self, probed: ProbedLayer, below: float, least: float) -> ProbedLayer:
        """Return it with an interval `below` times as wide below as above, on Fisher's scale where that applies."""
        error = probed.error
        if error is None or error.items_error is None:
            return probed
        half, value = student(error.level, error.freedom), error.value
        if self.primary in CORRELATIONS and error.items_error**2 > least:
            ends = fisher_ends(value / 100, error.standard_error / 100, below * half, half)
            low, high = 100 * ends[0], 100 * ends[1]
        else:
            low, high = score_ends(self.primary, value, error.standard_error, below * half, half)
        return replace(probed, error=replace(error, interval=(low, high)))

    def gained(self, candidates: Sequence[int]) -> ProbedLayer | None:
        """Return the weighted sum with its gain over single layers."""
        if self.summed is None:
            return None
        best = int(np.argmax([float(values.mean()) for values in self.by_folding[:-1]]))
        gains = {
            other: self.error(
                self.by_folding[-1] - self.by_folding[other],
                self.psi[-1].astype(np.float64) - self.psi[other],
                difference=True,
            )
            for other in {best, *candidates}
        }
        better = all(gain is not None and gain.interval[0] > 0 for gain in gains.values())
        return replace(self.summed, gain=gains[best], better=better)

    def result(self, *, last: int, notes: Sequence[str] = (), fits: Mapping[str, Fit] | None = None) -> Probing:
        """Return the result; `last` is the number of the last layer that was given."""
        compared = self.compared()
        numbers = [layer.layer for layer in self.layers if layer.layer is not None]
        candidates = tuple(range(len(numbers))) if compared is None else compared.candidates
        behind = [None] * len(numbers) if compared is None else compared.behind
        report(f"probing {self.about['name']}", 1, 1)
        return Probing(
            primary=self.primary,
            layers=tuple(replace(layer, behind=gap) for layer, gap in zip(self.layers, behind, strict=True)),
            summed=self.gained(candidates),
            left_out=self.left_out,
            fits=dict(fits or {}),
            candidates=tuple(numbers[index] for index in candidates),
            n_items=len(self.psi[0]),
            level=current().level,
            seconds=time.perf_counter() - self.began,
            last=None if last == numbers[-1] else last,
            influences=ItemInfluences.of(self.of_layers(), digest=self.digest, links=self.links),
            **{**self.about, "notes": (*self.about.get("notes", ()), *notes)},
        )


def probe(
    embeddings: ModelLike | ArrayLike | Mapping[str, ArrayLike],
    targets: Task | ArrayLike | str | Path | None = None,
    *,
    groups: ArrayLike | str | Path | None = None,
    kind: TargetKind | None = None,
    column: str | None = None,
    cv: Any = FOLDS,
    foldings: int = FOLDINGS,
    scoring: str | Callable[[Any, Any, Any], float] | None = None,
    tolerance: float = TOLERANCE,
    random_state: Any = 0,
    n_jobs: int | None = None,
    weighted_sum: bool | None = None,
) -> Probing:
    """Say which frozen layer does a task best, which others may, and the smallest that will do.

    Of arrays, or of a model and a task. Each item is predicted by a probe that was fitted without its fold, with a
    penalty chosen inside the other folds; pairs and queries are scored by cosines. Errors are over items (groups, where
    they are given) and foldings.

    Args:
        embeddings: (n, layers, features), what `extract` returned, a sequence or a mapping of (n, features), a file or
            a folder, see `layerprobe.comparison.arrays.as_layers`; or a model: a name, a folder, or a `Model`.
        targets: What to predict of each row, see `layerprobe.probing.targets.as_targets`; or a `Task` for a model. By
            default the labels in the file of the embeddings.
        groups: (n,) what is never divided between folds, such as speakers, documents or protein families; or a file.
        kind: What the targets are, where it is not to be seen.
        column: Of a file of targets.
        cv: Folds that probes are fitted across, 3 to 100; or a splitter of scikit-learn, or (train, test) indices, that
            test each row equally often and train on all others: of these there are as many foldings as they make.
        foldings: How often samples are divided into `cv` folds.
        scoring: What layers are compared by: a metric of the targets, such as "r2", "f1_macro" or "spearman"; or a
            scorer of scikit-learn, by name or as a callable of (estimator, rows, targets). It is computed once for all
            items, by folding; its interval comes from leaving items out. By default the first metric of the targets.
        tolerance: Points of score x 100 that you accept to lose for fewer layers.
        random_state: Seed of the folds, or a `RandomState`; None for other ones each time.
        n_jobs: Layers that are probed at a time, by threads; -1 for one a core.
        weighted_sum: Whether a learned weighted sum of the layers is compared, where probes are fitted; by default
            where all layers have at most 2^30 numbers, since they are read many times for it.

    Returns:
        The answer. A layer that is constant or has NaN is left out, which `warnings` says.

    Raises:
        DataError: If embeddings, targets, groups, splits or scorer cannot be used, or no layer can be scored.
        MisalignedSamplesError: If they are not of the same samples.
        ModelError: If a model cannot be loaded or truncated.
    """
    from layerprobe.tasks.values import Task

    cv = FOLDS if cv is None else cv
    splits = None if isinstance(cv, Integral) else cv
    settings = ProbeSettings(
        folds=FOLDS if splits is not None else int(cv),
        foldings=foldings,
        tolerance=tolerance,
        seed=seed_of(random_state),
    )
    how: dict[str, Any] = {"settings": settings, "n_jobs": threads_of(n_jobs), "weighted_sum": weighted_sum}
    if isinstance(targets, Task):
        from layerprobe.probing.models import probe_model

        return probe_model(embeddings, targets, splits=splits, scoring=scoring, **how)
    layers = as_layers(embeddings)
    n = layers[0].shape[0]
    if targets is None:
        if not isinstance(embeddings, str | Path):
            raise DataError("expected targets, or a task for a model, got none")
        targets = embeddings
    problem = as_targets(targets, n, kind=kind, column=column, n_layers=len(layers))
    numbers = as_groups(groups, n)
    problem = problem.folded(numbers, settings, splits).scored_by(scoring)
    about = {
        "name": str(embeddings) if isinstance(embeddings, str | Path) else "embeddings",
        "task": str(targets) if isinstance(targets, str | Path) else problem.kind,
        "model": None,
        "cautions": tuple(getattr(embeddings, "cautions", ())),
        "n_groups": None if numbers is None else int(numbers.max()) + 1,
    }
    return probe_layers(layers, problem, about, **how)


def seed_of(random_state: Any) -> int:
    """Return the number that a seed of scikit-learn stands for."""
    if isinstance(random_state, Integral):
        return int(random_state)
    from sklearn.utils import check_random_state

    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise DataError(
            f"expected random_state as a whole number, None or a RandomState, got {quoted(random_state)}"
        ) from error


def threads_of(n_jobs: Any) -> int:
    """Return how many threads `n_jobs` stands for: those below 0 count from the number of cores, -1."""
    jobs = 1 if n_jobs is None else n_jobs
    if not isinstance(jobs, Integral) or int(jobs) == 0:
        raise DataError(f"expected n_jobs as a number of threads, or -1 for one a core, got {quoted(n_jobs)}")
    return int(jobs) if int(jobs) > 0 else max((os.cpu_count() or 1) + 1 + int(jobs), 1)


def probe_layers(
    layers: Sequence[Layer],
    problem: Problem,
    about: Mapping[str, Any],
    *,
    settings: ProbeSettings,
    n_jobs: int,
    weighted_sum: bool | None,
    pairs: str | None = "",
    left_out: Mapping[str, str] | None = None,
) -> Probing:
    """Score every layer, and their weighted sum, by probes or cosines.

    Args:
        layers: Features of the items, or embeddings of which items are pairs or queries.
        problem: Targets with their folds, and what they are scored by.
        about: Fields of the result besides.
        settings: Of which the folds are those of the problem.
        n_jobs: Threads.
        weighted_sum: Whether it is compared; None where it has few numbers.
        pairs: What the features are of, see `Fit.pairs`; None where that has no name, and no fit is kept.
        left_out: Layers before these that are not scored, with the reason.
    """
    told = {
        "settings": replace(settings, folds=problem.n_folds, foldings=len(problem.foldings)),
        "kind": problem.kind,
        "method": METHODS[problem.kind],
        "unit": UNITS[problem.kind],
        "floors": problem.floors,
    }
    board = Board(
        scores=problem.scores,
        influences=problem.influences,
        links=problem.links,
        digest=digest([problem.kind, np.asarray(problem.targets).tolist()]),
        about={**told, **about},
        left_out=dict(left_out or {}),
    )
    name, first = about["name"], len(board.left_out)
    scored: list[tuple[Layer, Scale]] = []
    fits: dict[str, Fit] = {}
    whole = len(layers) * (1 if weighted_sum is False or problem.kind in COSINES else 2) + 1
    places = [first + place if layer.number is None else layer.number for place, layer in enumerate(layers)]
    probed = in_threads(functools.partial(_probed, problem), layers, n_jobs)
    for place, (number, given, done) in enumerate(zip(places, layers, probed, strict=True)):
        if isinstance(done, str):
            board.left_out[given.name] = done
        else:
            layer, scale, fitted, again, fit = done
            board.add(given.name, number, given.shape[1], fitted.outputs, swayed=fitted.swayed, again=again)
            if given.name not in board.left_out:
                scored.append((layer, scale))
                fits |= {} if fit is None else {given.name: fit}
        report(f"probing {name}", place + 1, whole)
    if not scored:
        reason = next(iter(board.left_out.values()))
        raise DataError(f"no layer can be scored: {reason}")
    if weighted_sum is not False and len(scored) > 1:
        with part(start=len(layers), share=len(layers), whole=whole):
            fits |= _add_weighted_sum(board, problem, scored, anyway=bool(weighted_sum))
    notes = problem.notes([layer for layer, _ in scored])
    fits = {} if pairs is None else {name: replace(fit, pairs=pairs) for name, fit in fits.items()}
    return board.result(last=places[-1], notes=notes, fits=fits)


def _probed(problem: Problem, given: Layer) -> tuple[Layer, Scale, Fitted, Array | None, Fit | None] | str:
    """Return a layer on one scale, its probes, their influences by fitting again, and one of all items, if any.

    Where that cannot be it is the reason.
    """
    try:
        layer, scale = scaled(given, shifted=problem.kind not in COSINES)
        fitted = problem.outputs(layer)
        again = jackknife(problem, layer, fitted, problem.primary or problem.metrics[0])
        fit = None
        if problem.kind not in COSINES:
            fit = problem.fit(layer, fitted.usual_penalties)
            mean, deviation = scale.undone(fit.mean, fit.scale)
            fit = replace(fit, mean=mean, scale=deviation)
    except MisalignedSamplesError:
        raise
    except DataError as error:
        broken = given.unusable() if isinstance(error, DegenerateLayerError) else None
        return f"it {broken}" if broken else str(error)
    return layer, scale, fitted, again, fit


def in_threads(function: Callable[[Layer], Any], layers: Sequence[Layer], n_jobs: int) -> Iterator[Any]:
    """Yield the values of a function of layers, in their order, of so many at a time."""
    if n_jobs == 1:
        yield from map(function, layers)
        return
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits = threadpool_limits(max((os.cpu_count() or 1) // n_jobs, 1))
    # filters of warnings are those of the process: threads would turn them on and off for each other
    with without_warnings(), limits, ThreadPoolExecutor(n_jobs) as pool:
        yield from pool.map(function, layers)


def _add_weighted_sum(
    board: Board, problem: Problem, scored: Sequence[tuple[Layer, Scale]], *, anyway: bool
) -> dict[str, Fit]:
    """Score the learned weighted sum; say why where that cannot be, of cosines where somebody asks for it."""
    layers, scales = zip(*scored, strict=True)
    widths, size = {layer.shape[1] for layer in layers}, sum(layer.shape[0] * layer.shape[1] for layer in layers)
    reason = ""
    if problem.kind in COSINES:
        if not anyway:
            return {}
        reason = "cosines have no probe to learn weights with"
    elif size > SUMMED and not anyway:
        reason = f"the layers have {size:,} numbers, and are read many times for it"
    elif len(widths) > 1:
        reason = "the layers have different widths"
    if reason:
        board.left_out[WEIGHTED_SUM] = reason
        return {}
    try:
        fitted, weights = sum_of_layers(problem, layers, lambda done: report("the weighted sum of layers", done, 1))
    except MisalignedSamplesError:
        raise
    except DataError as error:  # the layers by themselves have their scores
        board.left_out[WEIGHTED_SUM] = str(error)
        return {}
    highest = np.argsort(-weights)[:3]
    note = "mean weights " + ", ".join(f"{weights[number]:.2f} of {layers[number].name}" for number in highest)
    board.add(WEIGHTED_SUM, None, min(widths), fitted.outputs, swayed=fitted.swayed, note=note)
    return {WEIGHTED_SUM: fit_of_sum(problem, layers, scales, fitted.usual_penalties)}
