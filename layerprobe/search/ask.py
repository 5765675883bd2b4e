"""The search for any trainer: `ask` which layer to train next, `tell` what it scored. Trains nothing.

The state is one JSON file that several processes can share, such as the tasks of a job array.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import Seeds, check_count, one_layer, public
from layerprobe.context import current
from layerprobe.errors import DataError, StoreError
from layerprobe.files.atomic import from_home, locked, replace_file
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import from_dict, parse_json, sealed, unsealed
from layerprobe.readings.registry import INFONCE, SELF_CKA
from layerprobe.search.answer import answer
from layerprobe.search.plan import next_run
from layerprobe.search.posterior import layer_steps
from layerprobe.search.values import (
    SEEDS,
    TOLERANCE,
    Decision,
    Evidence,
    PlannedRun,
    Score,
    SearchAnswer,
    SearchSettings,
)
from layerprobe.stats.crossed import item_covariance, item_units, least_variance, pooled_covariance
from layerprobe.stats.links import Links

Array = NDArray[np.float64]


def with_scores(
    evidence: Evidence, scored: Sequence[tuple[Score, Array | None]], folds: Sequence[tuple[int, Links | None]]
) -> Evidence:
    """Return evidence with scores and their errors over items.

    Args:
        evidence: Without them, or with fewer.
        scored: Each score with the influences of the items of its fold, (items,) in points; None where not known.
        folds: Of each fold, how many items it has and which of them share texts.
    """
    psi = [(evidence.fold(score.seed), influences) for score, influences in scored]
    covariance = score_errors(psi, folds)
    return replace(
        evidence,
        scores=tuple(score for score, _ in scored),
        item_covariance=tuple(map(tuple, covariance.tolist())),
    )


def score_errors(scored: Sequence[tuple[int, Array | None]], folds: Sequence[tuple[int, Links | None]]) -> Array:
    """Return (scores, scores): the covariance of errors over items, from the fold and the influences of each score.

    Items of different folds have nothing in common; those of one do, whichever layer is scored. No score is known to
    less than one item of its fold, see `least_variance`, and errors rest on all scores, see `pooled_covariance`.
    """
    covariance, units = np.zeros((len(scored), len(scored))), 0.0
    for fold, (n, links) in enumerate(folds):
        here = {i: psi for i, (of, psi) in enumerate(scored) if of == fold and psi is not None}
        if here:
            rows = np.ix_(list(here), list(here))
            units += item_units(n, links)
            covariance[rows] = item_covariance(np.stack(list(here.values())), links)
            for i in here:
                covariance[i, i] = max(covariance[i, i], least_variance(n, links))
    return pooled_covariance(covariance, [folds[fold][0] for fold, _ in scored], units)


class NextRun(NamedTuple):
    """What to train next: `layer, seed = search.ask()`."""

    layer: int
    """How many blocks the model keeps; 0 for the embeddings alone."""
    seed: int
    """Of everything random in that training run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """What the file of a search holds."""

    evidence: Evidence
    settings: SearchSettings
    pending: tuple[PlannedRun, ...] = ()
    """Runs that were asked for and not told."""
    workers: tuple[str, ...] = ()
    """Who asked for each of them; empty where no name was given."""
    items: tuple[Any, ...] = ()
    """Of each score, a list with the metric of each item; None where one number was told, or the run failed."""

    def without(self, layer: int, seed: int) -> SearchState:
        """Return the same without a pending run."""
        left = [
            (run, worker)
            for run, worker in zip(self.pending, self.workers, strict=True)
            if (run.layer, run.seed) != (layer, seed)
        ]
        return replace(self, pending=tuple(run for run, _ in left), workers=tuple(worker for _, worker in left))

    def with_scores(self, score: Score, items: list[float] | None) -> SearchState:
        """Return the same with one more score, and the metric of its items where it is known."""
        scores, of_items, evidence = (*self.evidence.scores, score), (*self.items, items), self.evidence
        folds: dict[int, int] = {
            evidence.fold(scored.seed): len(values)
            for scored, values in zip(scores, of_items, strict=True)
            if values is not None
        }
        if not folds:
            return replace(self, evidence=replace(evidence, scores=scores), items=of_items)
        mean = sum(folds.values()) / len(folds)
        influences = [None if values is None else 100 * (np.asarray(values) - np.mean(values)) for values in of_items]
        evidence = replace(evidence, n_items=round(mean * evidence.n_folds))
        sizes = [(folds.get(fold, round(mean)), None) for fold in range(evidence.n_folds)]
        return replace(
            self, evidence=with_scores(evidence, list(zip(scores, influences, strict=True)), sizes), items=of_items
        )


@public
class LayerSearch:
    """The search of `find` for a trainer of your own: it names layers and seeds to train, and reads their scores.

        search = lp.LayerSearch("search.json", n_blocks=12)
        while run := search.ask():
            model = train(first_blocks=run.layer, seed=run.seed)  # yours
            search.tell(run.layer, run.seed, accuracy_of_each_example(model))
        print(search.answer().sentence)

    Several processes may do this with one file at once: each gets another run. A search whose file is there goes on.

    Args:
        path: The JSON file of the search, made if it is not there; None keeps the search in memory.
        n_blocks: Blocks of the whole model: its layers count from 0 to this. Needed for a new search.
        tolerance: Points of the metric x 100 that you accept to lose for a smaller model.
        budget: Share of the full sweep, every layer with every seed, that may be spent; 15 % by default, and all of it
            for models of up to 4 blocks.
        seeds: At a layer at most, and of the full sweep.
        readings: What is known of the layers of the model before training, by the names of `layerprobe readings`:
            InfoNCE says where to look first, self CKA how far apart layers are. Other names are not read.
        start: The layer to begin with; by default that of the highest InfoNCE, or the middle.
        first_layer: The first layer that can be chosen, such as 1 where a model needs a block.
        folds: Parts of cross-validation: seed k is scored on part k modulo this. 1: all seeds are scored on the same
            items.

    Raises:
        DataError: If a setting is not what it should be, the budget is too small for one run, or the file is damaged,
            or of a search with other settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        n_blocks: int | None = None,
        tolerance: float = TOLERANCE,
        budget: float | str | None = None,
        seeds: Seeds = SEEDS,
        readings: Mapping[str, Any] | None = None,
        start: object = None,
        first_layer: int = 0,
        folds: int = 1,
    ) -> None:
        if not isinstance(path, str | os.PathLike | None):
            raise DataError(
                f"expected the path of a JSON file, as in LayerSearch('search.json', n_blocks=12), got {path!r:.80}"
            )
        self._path = None if path is None else Path(os.path.realpath(from_home(os.fspath(path))))
        self._state: SearchState | None = None
        if n_blocks is None:
            if self._path is None or not self._path.exists():
                raise DataError(f"expected n_blocks=..., how many blocks the model has: there is no search at {path}")
            with self._open():
                return
        settings = SearchSettings(
            tolerance=tolerance,
            budget=budget,  # type: ignore[arg-type]  # a text such as 15% is read
            seeds=check_count(seeds),
            level=current().level,
        )
        evidence = Evidence(
            n_blocks=_whole(n_blocks, "n_blocks"),
            start=None if start is None else one_layer(start),
            first_layer=_whole(first_layer, "first_layer"),
            n_folds=_whole(folds, "folds"),
            **_read(readings or {}, n_blocks),
        )
        next_run(evidence, settings)  # a budget that is too small is refused before there is a file
        begun = SearchState(evidence=evidence, settings=settings)
        with self._open(begun) as state:
            fresh = replace(state.evidence, scores=(), item_covariance=(), n_items=None)
            if (fresh, state.settings) != (evidence, settings):
                raise DataError(f"{path} holds a search with other settings: open it by its path alone")

    @overload
    def ask(self, n: None = None, *, worker: str | None = None) -> NextRun | None: ...
    @overload
    def ask(self, n: int, *, worker: str | None = None) -> list[NextRun]: ...
    def ask(self, n: int | None = None, *, worker: str | None = None) -> NextRun | list[NextRun] | None:
        """Return the layer and seed to train next; None where there is nothing to train now.

        That is where the search is over, or where what comes next depends on runs that are not told yet.

        Args:
            n: Return a list of so many runs at most, to be trained side by side.
            worker: A name of the caller, such as the number of a job: a worker that was killed and asks again gets the
                run that it had.

        Raises:
            DataError: If the file is damaged, or n is not a number of runs.
        """
        if _whole(1 if n is None else n, "n") < 1:
            raise DataError(f"expected how many runs to train, 1 or more, got {n}")
        name, most = "" if worker is None else str(worker), 1 if n is None else n
        with self._open() as state:
            of_worker = zip(state.pending, state.workers, strict=True)
            runs = [run for run, of in of_worker if name and of == name][:most]
            while len(runs) < most and (run := _decide(state).run) is not None:
                state = replace(state, pending=(*state.pending, run), workers=(*state.workers, name))
                runs.append(run)
            self._keep(state)
        given = [NextRun(run.layer, run.seed) for run in runs]
        if n is None:
            return given[0] if given else None
        return given

    def tell(self, layer: int, seed: int, scores: ArrayLike | None) -> None:
        """Add what a run scored; it need not have been asked for.

        With one number an item, the answer covers new items, too, and the search knows which differences they could
        show. A run that failed costs as much as others; a layer of which two runs failed is left out.

        Args:
            layer: Of the model that was trained.
            seed: It was trained with.
            scores: The metric, higher is better, from -1 to 1; or (items,) its value of each validation item, in the
                same order in all runs, of which the metric is the mean. Items are independent: a query, not each of
                its documents. None for a run that failed.

        Raises:
            DataError: If there is no such layer, the run was told before, or the scores are not what they should be.
        """
        with self._open() as state:
            evidence, of_run = state.evidence, f"layer {layer}, seed {seed}"
            layer, seed = _whole(layer, "layer"), _whole(seed, "seed")
            if layer not in evidence.choices or seed < 0:
                layers = f"a layer from {evidence.first_layer} to {evidence.n_blocks}"
                raise DataError(f"expected {layers} and a seed of 0 or more, got {of_run}")
            if any((score.layer, score.seed) == (layer, seed) for score in evidence.scores):
                raise DataError(f"{of_run} was told before: give a new run another seed")
            items, value = None, None
            if scores is not None:
                values = _finite(scores, of_run)
                value = 100 * float(values.mean())
                items = values.tolist() if values.ndim else None
                self._check_alike(state, seed, items, of_run)
            told = state.without(layer, seed).with_scores(Score(layer=layer, seed=seed, value=value), items)
            self._keep(told)

    def release(self, layer: int, seed: int) -> None:
        """Give back a run that was asked for and will not be told, such as that of a job that was killed.

        Raises:
            DataError: If it is no pending run.
        """
        with self._open() as state:
            if (layer, seed) not in [(run.layer, run.seed) for run in state.pending]:
                raise DataError(f"expected a run that was asked for and not told, got layer {layer}, seed {seed}")
            self._keep(state.without(layer, seed))

    def answer(self) -> SearchAnswer:
        """Return which layer to keep by the scores so far, as `find` does; `sentence` has it in words.

        Raises:
            DataError: If no score was told.
        """
        with self._open() as state:
            if not state.evidence.scored:
                raise DataError("expected the score of at least one run, got none: ask for a run and tell its score")
            answered = answer(state.evidence, state.settings)
        layers = []
        for belief in answered.layers:  # inside what a metric from -1 to 1 can be
            mean, low, high = np.clip((belief.mean, *belief.interval), -100, 100).tolist()
            layers.append(replace(belief, mean=mean, interval=(low, high)))
        return replace(answered, layers=tuple(layers)).worded

    @property
    def pending(self) -> list[NextRun]:
        """Runs that were asked for and not told."""
        with self._open() as state:
            return [NextRun(run.layer, run.seed) for run in state.pending]

    @property
    def outlook(self) -> str:
        """What comes next and why, or why there is nothing to train now."""
        with self._open() as state:
            decision, waiting = _decide(state), len(state.pending)
        if decision.run is not None:
            return f"next is layer {decision.run.layer}, seed {decision.run.seed}: {decision.why}"
        if waiting:
            return f"nothing to train until the pending runs are told ({waiting}): {decision.why}"
        return f"the search is over: {decision.why}"

    def __repr__(self) -> str:
        with self._open() as state:
            scored, waiting = len(state.evidence.scores), len(state.pending)
        where = "in memory" if self._path is None else str(self._path)
        return f"<LayerSearch: {where}, {scored} runs told, {waiting} pending>"

    # ---- the file ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open(self, begun: SearchState | None = None) -> Iterator[SearchState]:
        """Hold the file for this process alone and yield its state; a new search is written first."""
        if self._path is None:
            self._state = self._state or begun
            assert self._state is not None
            yield self._state
            return
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self._path.parent, _lock_of(self._path), wait=True))
            except StoreError as error:
                raise _refused(self._path, error.__cause__) from error
            if begun is not None and not self._path.exists():
                self._keep(begun)
            yield self._load()

    def _keep(self, state: SearchState) -> None:
        """Write the state, whole or not at all; the caller holds the file."""
        if self._path is None:
            self._state = state
            return
        try:
            replace_file(self._path, sealed(state, indent=None))
        except OSError as error:
            raise _refused(self._path, error) from error

    def _load(self) -> SearchState:
        assert self._path is not None
        try:
            data = parse_json(read_document(self._path, None))
            state: SearchState = from_dict(SearchState, unsealed(data)[0])
        except OSError as error:
            raise _refused(self._path, error) from error
        except DataError as error:
            raise DataError(
                f"{self._path} is no search, or damaged: {error}; begin a new one in another file"
            ) from error
        return state

    @staticmethod
    def _check_alike(state: SearchState, seed: int, items: list[float] | None, of_run: str) -> None:
        """Raise DataError unless a run tells as much as those before: one number, or one for each item of its fold."""
        for score, values in zip(state.evidence.scores, state.items, strict=True):
            if score.value is None or (
                items is not None
                and values is not None
                and state.evidence.fold(score.seed) != state.evidence.fold(seed)
            ):
                continue
            before, now = (1 if told is None else len(told) for told in (values, items))
            if before != now:
                names = [f"{n:,} numbers, one an item" if n > 1 else "one number" for n in (before, now)]
                run = f"layer {score.layer}, seed {score.seed}"
                raise DataError(f"expected {names[0]}, as of {run}, got {names[1]} of {of_run}")


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _refused(path: Path, error: BaseException | None) -> DataError:
    reason = getattr(error, "strerror", None) or error
    return DataError(f"cannot use {path}: {reason}: choose a path that can be read, written and locked")


def _decide(state: SearchState) -> Decision:
    return next_run(state.evidence, state.settings, state.pending)


def _read(readings: Mapping[str, Any], n_blocks: int) -> dict[str, Any]:
    """Return what a search reads of a model before training, from curves or numbers by layer."""
    try:
        curves = {
            name: np.asarray(getattr(curve, "values", curve), dtype=np.float64) for name, curve in readings.items()
        }
    except (TypeError, ValueError, AttributeError):
        raise DataError(f"expected readings as numbers by layer under their names, got {readings!r:.60}") from None
    for name, curve in curves.items():
        if curve.shape != (n_blocks + 1,):
            raise DataError(f"expected {name} at {n_blocks + 1} layers, 0 to {n_blocks}, got {curve.size} numbers")
    infonce, cka = curves.get(INFONCE), curves.get(SELF_CKA)
    return {
        "infonce": None if infonce is None else tuple(infonce.tolist()),
        "steps": None if cka is None else layer_steps(cka[1:]),
    }


def _whole(value: object, name: str) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DataError(f"expected {name} as a whole number, got {value!r}") from None


def _finite(scores: ArrayLike, of_run: str) -> Array:
    """Return one number, or one an item, from -1 to 1; raise DataError for anything else."""
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"expected a number, or one an item, of {of_run}, got {scores!r:.60}") from None
    if values.ndim > 1 or values.size < 1 + values.ndim:
        raise DataError(f"expected a number, or one for each of two or more items, got {values.shape} of {of_run}")
    if not np.isfinite(values).all():
        raise DataError(f"expected finite scores of {of_run}, got NaN or infinity: tell None of a run that failed")
    if np.abs(values).max() > 1:
        far = values.flat[np.abs(values).argmax()]
        raise DataError(f"expected scores from -1 to 1 of {of_run}, got {far:g}: divide percentages by 100")
    return values
