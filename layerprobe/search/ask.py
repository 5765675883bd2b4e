"""The search for any trainer: `ask` which layer to train next, `tell` what it scored. Trains nothing.

The state is one JSON file that several processes can share, such as the tasks of a job array.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import Seeds, check_choice, check_count, one_layer
from layerprobe.context import current
from layerprobe.errors import DataError, StoreError
from layerprobe.files.atomic import from_home, locked, replace_file
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import RARE, from_dict, parse_json, sealed, unsealed
from layerprobe.readings.reading import INFONCE, SELF_CKA
from layerprobe.results.shown import OneLayer
from layerprobe.search.plan import answer, next_run
from layerprobe.search.posterior import layer_steps
from layerprobe.search.values import (
    SEEDS,
    Decision,
    Evidence,
    LayerBelief,
    PlannedRun,
    Score,
    SearchAnswer,
    SearchSettings,
    without_scans,
)
from layerprobe.stats.crossed import item_covariance, item_units, least_variance, pooled_covariance
from layerprobe.stats.links import Links
from layerprobe.stats.values import TOLERANCE

Array = NDArray[np.float64]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """All that a search knows: what its file holds. What is asked and told makes another one."""

    models: tuple[Evidence, ...]
    """Of each model, numbered in this order; several share the budget."""
    settings: SearchSettings
    pending: tuple[tuple[PlannedRun, str], ...] = ()
    """Runs that were asked for and not told, each with who asked; empty where no name was given."""
    influences: tuple[tuple[Any, ...], ...] = ()
    """By model and score: (items,) what each item adds to it, of mean 0, x 100; None where that is not known."""
    unit: float | None = field(default=None, metadata=RARE)
    """What counts as a point, as requested; None: what the first score says, see `LayerSearch`."""
    point: float | None = field(default=None, metadata=RARE)
    """The same as it was taken; None before the first score."""
    higher_is_better: bool = field(default=True, metadata=RARE)
    """Else the evidence has scores times -1."""
    folds: tuple[Any, ...] = field(default=(), metadata=RARE)
    """Of each fold, how many items it has and which of them share texts; empty where the scores say how many."""

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return the fields of JSON, also of earlier versions."""
        return cls, without_scans(data)

    @property
    def waiting(self) -> list[PlannedRun]:
        """The pending runs, in the order in which they were asked for."""
        return [run for run, _ in self.pending]

    @property
    def decision(self) -> Decision:
        """What comes next beside the pending runs."""
        return next_run(self.models, self.settings, self.waiting)

    def asked(self, n: int, worker: str = "") -> tuple[Self, list[PlannedRun]]:
        """Return the same with up to n runs pending for a worker, those that it has first, and these runs."""
        state, runs = self, [run for run, asked_by in self.pending if worker and asked_by == worker][:n]
        while len(runs) < n and (run := state.decision.run) is not None:
            state = replace(state, pending=(*state.pending, (run, worker)))
            runs.append(run)
        return state, runs

    def without(self, layer: int, seed: int, *, model: int = 0) -> Self:
        """Return the same without a pending run."""
        left = [(run, asked_by) for run, asked_by in self.pending if (run.model, *run) != (model, layer, seed)]
        return replace(self, pending=tuple(left))

    def told(self, score: Score, of_items: Any, *, model: int = 0) -> Self:
        """Return the same with the score of a run and the influences of its items or None, and the run not pending."""
        evidence = self.models[model]
        scores = (*evidence.scores, score)
        influences = list(self.influences or ((),) * len(self.models))
        influences[model] = (*influences[model], of_items)
        folds, psi = self.folds, [(evidence.fold(s.seed), i) for s, i in zip(scores, influences[model], strict=True)]
        sizes = {fold: len(of_items) for fold, of_items in psi if of_items is not None}
        if sizes and not folds:
            mean = sum(sizes.values()) / len(sizes)
            folds = tuple((sizes.get(fold, round(mean)), None) for fold in range(evidence.n_folds))
            evidence = replace(evidence, n_items=round(mean * evidence.n_folds))
        covariance = tuple(map(tuple, score_errors(psi, folds).tolist())) if folds else ()
        evidence = replace(evidence, scores=scores, item_covariance=covariance)
        models = (*self.models[:model], evidence, *self.models[model + 1 :])
        left = self.without(score.layer, score.seed, model=model)
        return replace(left, models=models, influences=tuple(influences))

    def answer(self, model: int = 0, decision: Decision | None = None) -> SearchAnswer:
        """Return which layer of a model to keep; the decision is what comes next, unless another one is given."""
        decision = decision or next_run(self.models, self.settings)
        return answer(self.models[model], self.settings, decision)


class LayerSearch:
    """The search of `find` for a trainer of your own: it names layers and seeds to train, and reads their scores.

        search = lp.LayerSearch("search.json", n_blocks=12)
        while run := search.ask():
            model = train(first_blocks=run.layer, seed=run.seed)  # yours
            search.tell(run.layer, run.seed, accuracy_of_each_example(model))
        print(search.answer())

    Several processes may do this with one file at once: each gets another run. A search whose file is there goes on.

    Args:
        path: The JSON file of the search, made if it is not there; None keeps the search in memory.
        n_blocks: Blocks of the whole model: its layers count from 0 to this. Needed for a new search.
        tolerance: Points that you accept to lose for a smaller model; of scores up to 1, a point is 0.01.
        budget: Share of the full sweep, every layer with every seed, that may be spent; 15 % by default, and all of it
            for models of up to 4 blocks.
        seeds: At a layer at most, and of the full sweep.
        readings: What is known of the layers of the model before training, by the names of `predict --readings`:
            InfoNCE says where to look first, self CKA how far apart layers are. Other names are not read.
        start: The layer to begin with; by default that of the highest InfoNCE, or the middle.
        first_layer: The first layer that can be chosen, such as 1 where a model needs a block.
        folds: Parts of cross-validation: seed k is scored on part k modulo this. 1: all seeds are scored on the same
            items. A seed can be above the others, where the last layer is to be scored on one part again.
        higher_is_better: Whether higher scores are better; else losses, errors or perplexities are told as they are.
        unit: What counts as a point, in the unit of the scores: tolerance and answers are in points, and before any
            score is known layers are expected to differ by a few points and seeds by less than one. By default a
            hundredth of the power of ten above the first reported score: 0.01 up to 1, as of an accuracy or a
            correlation, 1 up to 100, as of percentages, 0.1 of a loss of 2.3.

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
        start: OneLayer | None = None,
        first_layer: int = 0,
        folds: int = 1,
        higher_is_better: bool = True,
        unit: float | None = None,
    ) -> None:
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
        evidence = begun_evidence(
            _whole(n_blocks, "n_blocks"),
            readings or {},
            start=None if start is None else one_layer(start, _whole(n_blocks, "n_blocks")),
            first_layer=_whole(first_layer, "first_layer"),
            n_folds=_whole(folds, "folds"),
        )
        if unit is not None and not (isinstance(unit, Real) and 0 < unit < np.inf):
            raise DataError(f"expected unit as a number above 0, what counts as a point such as 0.01, got {unit!r}")
        check_choice(higher_is_better, Literal[True, False], name="higher_is_better")
        next_run(evidence, settings)  # a budget that is too small is refused before there is a file
        point = None if unit is None else float(unit)
        begun = SearchState(models=(evidence,), settings=settings, unit=point, higher_is_better=bool(higher_is_better))
        with self._open(begun) as state:
            models = (replace(state.models[0], scores=(), item_covariance=(), n_items=None),)
            if replace(state, models=models, pending=(), influences=(), point=None, folds=()) != begun:
                raise DataError(f"{path} holds a search with other settings: open it by its path alone")

    @classmethod
    def of(cls, state: SearchState) -> Self:
        """Return a search in memory that goes on from a state, such as one of several models."""
        search = cls.__new__(cls)
        search._path, search._state = None, state
        return search

    @overload
    def ask(self, n: None = None, *, worker: str | None = None) -> PlannedRun | None: ...
    @overload
    def ask(self, n: int, *, worker: str | None = None) -> list[PlannedRun]: ...
    def ask(self, n: int | None = None, *, worker: str | None = None) -> PlannedRun | list[PlannedRun] | None:
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
        with self._open() as state:
            state, runs = state.asked(n or 1, "" if worker is None else str(worker))
            self._keep(state)
        if n is None:
            return runs[0] if runs else None
        return runs

    def tell(self, layer: int, seed: int, scores: ArrayLike | None) -> None:
        """Add what a run scored; it need not have been asked for.

        With one number an item, the answer covers new items, too, and the search knows which differences they could
        show. A run that failed costs as much as others; a layer of which two runs failed is left out.

        Args:
            layer: Of the model that was trained.
            seed: It was trained with.
            scores: The metric, in any unit; or (items,) its value of each validation item, in the same order in all
                runs, of which the metric is the mean. Items are independent: a query, not each of its documents. None
                for a run that failed, or did not train: its loss did not fall, its outputs are all alike, or it scores
                far worse than the untrained model.

        Raises:
            DataError: If there is no such layer, the run was told before, or the scores are not what they should be.
        """
        with self._open() as state:
            evidence, of_run = state.models[0], f"layer {layer}, seed {seed}"
            layer, seed = one_layer(layer, evidence.n_blocks), _whole(seed, "seed")
            if layer not in evidence.choices or seed < 0:
                layers = f"a layer from {evidence.first_layer} to {evidence.n_blocks}"
                raise DataError(f"expected {layers} and a seed of 0 or more, got {of_run}")
            if any((score.layer, score.seed) == (layer, seed) for score in evidence.scores):
                raise DataError(f"{of_run} was told before: give a new run another seed")
            influences, value = None, None
            if scores is not None:
                values = _finite(scores, of_run)
                point = _point(state, float(values.mean()), of_run)
                state = replace(state, point=point)
                scale = (1 if state.higher_is_better else -1) / point
                value = scale * float(values.mean())
                influences = (scale * (values - values.mean())).tolist() if values.ndim else None
                self._check_alike(state, seed, influences, of_run)
            self._keep(state.told(Score(layer=layer, seed=seed, value=value), influences))

    def add(self, score: Score, influences: Array | None, *, model: int = 0) -> None:
        """Add the score of a run: `tell` for what is not a mean.

        Args:
            score: Primary metric x 100.
            influences: (items,) what the items of its fold add to it, of mean 0, x 100; None where that is not known.
            model: Which of several.
        """
        with self._open() as state:
            self._keep(state.told(score, influences, model=model))

    def release(self, layer: int, seed: int) -> None:
        """Give back a run that was asked for and will not be told, such as that of a job that was killed.

        Raises:
            DataError: If it is no pending run.
        """
        with self._open() as state:
            layer = one_layer(layer, state.models[0].n_blocks)
            if (layer, seed) not in map(tuple, state.waiting):
                raise DataError(f"expected a run that was asked for and not told, got layer {layer}, seed {seed}")
            self._keep(state.without(layer, seed))

    def answer(self) -> SearchAnswer:
        """Return which layer to keep by the scores so far, as `find` does: a result, which prints and saves itself.

        Its numbers are in points, a score divided by its `unit`. Where higher scores are better and all are from -1 to
        1, as accuracies and correlations are, so is what is expected.

        Raises:
            DataError: If no score was told.
        """
        with self._open() as state:
            if not state.models[0].scored:
                raise DataError("expected the score of at least one run, got none: ask for a run and tell its score")
            answered = replace(state.answer(), unit=state.point or 0.01, higher_is_better=state.higher_is_better)
        told = [abs(score.value) for score in state.models[0].scores if score.value is not None]
        most = 100.0 if state.higher_is_better and answered.unit == 0.01 and max(told) <= 100 else math.inf
        sign = 1 if state.higher_is_better else -1
        layers: list[LayerBelief] = []
        whole, doubt = answered.whole, answered.doubt
        for belief in answered.layers:
            mean, *ends = (sign * np.clip((belief.mean, *belief.interval), -most, most)).tolist()
            gain = belief.gain
            if gain is not None:
                low, high = sorted(sign * end for end in gain[1:])
                gain = sign * gain[0], low, high
            layers.append(replace(belief, mean=mean, interval=(min(ends), max(ends)), gain=gain))
        if whole is not None:
            low, high = sorted(sign * end for end in whole.interval)
            whole = replace(whole, value=sign * whole.value, interval=(low, high))
        doubt = doubt and replace(doubt, difference=sign * doubt.difference)
        return replace(answered, layers=tuple(layers), whole=whole, doubt=doubt)

    @property
    def state(self) -> SearchState:
        """All that the search knows now."""
        with self._open() as state:
            return state

    @property
    def pending(self) -> list[PlannedRun]:
        """Runs that were asked for and not told."""
        return self.state.waiting

    @property
    def outlook(self) -> str:
        """What comes next and why, or why there is nothing to train now."""
        state = self.state
        decision, waiting = state.decision, len(state.pending)
        if decision.run is not None:
            return f"next is layer {decision.run.layer}, seed {decision.run.seed}: {decision.why}"
        if waiting:
            return f"nothing to train until the pending runs are told ({waiting}): {decision.why}"
        return f"the search is over: {decision.why}"

    def __repr__(self) -> str:
        state = self.state
        scored, waiting = sum(len(model.scores) for model in state.models), len(state.pending)
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
                lock = self._path.with_name(f"{self._path.name}.lock")
                held.enter_context(locked(self._path.parent, lock, wait=True))
            except StoreError as error:
                raise _refused(self._path, error.__cause__) from error
            if begun is not None and not self._path.exists():
                self._keep(begun)
            try:
                data = parse_json(read_document(self._path, None))
                state: SearchState = from_dict(SearchState, unsealed(data)[0])
            except OSError as error:
                raise _refused(self._path, error) from error
            except DataError as error:
                why = f"{self._path} is no search, or damaged: {error}"
                raise DataError(f"{why}; begin a new one in another file") from error
            yield state

    def _keep(self, state: SearchState) -> None:
        """Write the state, whole or not at all; the caller holds the file."""
        if self._path is None:
            self._state = state
            return
        try:
            replace_file(self._path, sealed(state, indent=None))
        except OSError as error:
            raise _refused(self._path, error) from error

    @staticmethod
    def _check_alike(state: SearchState, seed: int, influences: list[float] | None, of_run: str) -> None:
        """Raise DataError unless a run tells as much as those before: one number, or one for each item of its fold."""
        evidence, *_ = state.models
        for score, earlier in zip(evidence.scores, *state.influences, strict=True):
            in_other_fold = evidence.fold(score.seed) != evidence.fold(seed)
            if score.value is None or (influences is not None and earlier is not None and in_other_fold):
                continue
            before, now = (1 if told is None else len(told) for told in (earlier, influences))
            if before != now:
                names = [f"{n:,} numbers, one an item" if n > 1 else "one number" for n in (before, now)]
                run = f"layer {score.layer}, seed {score.seed}"
                raise DataError(f"expected {names[0]}, as of {run}, got {names[1]} of {of_run}")


def _refused(path: Path, error: BaseException | None) -> DataError:
    reason = getattr(error, "strerror", None) or error
    return DataError(f"cannot use {path}: {reason}: choose a path that can be read, written and locked")


def begun_evidence(n_blocks: int, readings: Mapping[str, Any], **about: Any) -> Evidence:
    """Return what is known before any run: readings, as curves or numbers by layer, and other fields of `Evidence`."""
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
    return Evidence(
        n_blocks=n_blocks,
        infonce=None if infonce is None else tuple(infonce.tolist()),
        steps=None if cka is None else layer_steps(cka[1:]),
        **about,
    )


def _whole(value: object, name: str) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DataError(f"expected {name} as a whole number, got {value!r}") from None


def _point(state: SearchState, score: float, of_run: str) -> float:
    """Return what counts as a point, by the first score where nothing was requested.

    Raises:
        DataError: If that was so, and a score is of another size.
    """
    if state.unit is not None:
        return state.unit
    size = abs(score)
    point = state.point or 10.0 ** (math.ceil(math.log10(size)) - 2 if size > 1 else -2)
    if size > 1000 * point:
        raise DataError(
            f"expected scores of the size of the first, of which a point is {point:g}, got {score:g} of {of_run}: tell "
            "all in one unit (divide percentages by 100), None of a run that did not train, or begin with unit=..."
        )
    return point


def _finite(scores: ArrayLike, of_run: str) -> Array:
    """Return one number, or one an item; raise DataError for anything else."""
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"expected a number, or one an item, of {of_run}, got {scores!r:.60}") from None
    if values.ndim > 1 or values.size < 1 + values.ndim:
        raise DataError(f"expected a number, or one for each of two or more items, got {values.shape} of {of_run}")
    if not (np.abs(values) < 1e100).all():
        raise DataError(f"expected finite scores of {of_run}, got NaN or infinity: tell None of a run that failed")
    return values
