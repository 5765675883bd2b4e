"""The search for any trainer: `ask` for the next layer to train, `tell` its score. Trains nothing.

The state is one JSON file that several processes can share, such as the tasks of a job array.
"""

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
from layerprobe.files.atomic import locked, replace_file
from layerprobe.files.inputs import from_home, read_document
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
from layerprobe.stats.crossed import Links, item_covariance, item_units, least_variance, pooled_covariance
from layerprobe.stats.values import TOLERANCE

Array = NDArray[np.float64]


def score_errors(scored: Sequence[tuple[int, Array | None]], folds: Sequence[tuple[int, Links | None]]) -> Array:
    """Return the (scores, scores) covariance of errors over items, from the fold and the influences of each score.

    Scores on different folds are independent; those on one fold share its items, for every layer. No score is known
    more precisely than one item of its fold, see `least_variance`, and errors are pooled, see `pooled_covariance`.
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
    """The full state of a search, the content of its file. Requests and scores make a new state."""

    models: tuple[Evidence, ...]
    """Evidence by model, in the order of their numbers; several models share the budget."""
    settings: SearchSettings
    pending: tuple[tuple[PlannedRun, str], ...] = ()
    """Requested runs without a score, each with the name of its worker, which may be empty."""
    influences: tuple[tuple[Any, ...], ...] = ()
    """(items,) influences with mean 0, x 100, by model and score; None if unknown."""
    unit: float | None = field(default=None, metadata=RARE)
    """Requested size of a point; None: derived from the first score, see `LayerSearch`."""
    point: float | None = field(default=None, metadata=RARE)
    """Size of a point in use; None before the first score."""
    higher_is_better: bool = field(default=True, metadata=RARE)
    """Whether higher scores are better; otherwise the evidence has scores times -1."""
    folds: tuple[Any, ...] = field(default=(), metadata=RARE)
    """Number of items and their links, by fold; empty if the influences give the number."""

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return this class and its fields from JSON, also of earlier versions."""
        return cls, without_scans(data)

    @property
    def waiting(self) -> list[PlannedRun]:
        """The pending runs, in the order of their requests."""
        return [run for run, _ in self.pending]

    @property
    def decision(self) -> Decision:
        """The next step besides the pending runs."""
        return next_run(self.models, self.settings, self.waiting)

    def with_requests(self, n: int, worker: str = "") -> tuple[Self, list[PlannedRun]]:
        """Return a state with up to n runs pending for a worker, including those it already has, and these runs."""
        state, runs = self, [run for run, asked_by in self.pending if worker and asked_by == worker][:n]
        while len(runs) < n and (run := state.decision.run) is not None:
            state = replace(state, pending=(*state.pending, (run, worker)))
            runs.append(run)
        return state, runs

    def without_run(self, layer: int, seed: int, *, model: int = 0) -> Self:
        """Return a state without a pending run."""
        left = [(run, asked_by) for run, asked_by in self.pending if (run.model, *run) != (model, layer, seed)]
        return replace(self, pending=tuple(left))

    def with_score(self, score: Score, of_items: Any, *, model: int = 0) -> Self:
        """Return a state with the score of a run and its (items,) influences (or None), and the run not pending."""
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
        left = self.without_run(score.layer, score.seed, model=model)
        return replace(left, models=models, influences=tuple(influences))

    def answer(self, model: int = 0, decision: Decision | None = None) -> SearchAnswer:
        """Return the layer of a model to keep; by default with the decision on the next step."""
        decision = decision or next_run(self.models, self.settings)
        return answer(self.models[model], self.settings, decision)


class LayerSearch:
    """The search of `find` for your own trainer: it requests layers and seeds, and reads their scores.

        search = lp.LayerSearch("search.json", n_blocks=12)
        while run := search.ask():
            model = train(first_blocks=run.layer, seed=run.seed)  # yours
            search.tell(run.layer, run.seed, accuracy_of_each_example(model))
        print(search.answer())

    Several processes may share one file: each gets another run. An existing file continues its search.

    Args:
        path: The JSON file of the search, created if missing; None keeps the search in memory.
        n_blocks: Number of blocks of the whole model: its layers are 0 to this. Required for a new search.
        tolerance: Loss that you accept for a smaller model, in points; for scores up to 1, a point is 0.01.
        budget: Share of the full sweep (every layer with every seed) that may be spent; by default 15 %, and all of it
            for models of up to 4 blocks.
        seeds: Largest number of seeds per layer, also in the full sweep.
        readings: Readings of the layers before training, by the names of `predict --readings`: InfoNCE suggests where
            to look first, self CKA how different layers are. Other names are ignored.
        start: The first layer to run; by default the one with the highest InfoNCE, or the middle one.
        first_layer: The first layer that can be chosen, such as 1 if a model needs a block.
        folds: Number of folds of cross-validation: seed k is scored on fold k modulo this. 1: all seeds are scored on
            the same items. Seeds can exceed the others, if the last layer has to be scored on one fold again.
        higher_is_better: Whether higher scores are better; False for losses, errors or perplexities.
        unit: Size of a point, in the unit of the scores: tolerance and answers are in points, and before any score,
            layers are expected to differ by a few points and seeds by less than one. By default a hundredth of the
            power of ten above the first reported score: 0.01 up to 1 (accuracies, correlations), 1 up to 100
            (percentages), 0.1 for a loss of 2.3.

    Raises:
        DataError: If a setting is invalid, the budget is too small for one run, the file is damaged, or it belongs to
            a search with other settings.
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
                raise DataError(f"expected n_blocks=..., the model's number of blocks: there is no search at {path}")
            with self._open():
                return
        settings = SearchSettings(
            tolerance=tolerance,
            budget=budget,  # type: ignore[arg-type]  # a text such as 15% is read
            seeds=check_count(seeds),
            level=current().level,
        )
        evidence = initial_evidence(
            _whole(n_blocks, "n_blocks"),
            readings or {},
            start=None if start is None else one_layer(start, _whole(n_blocks, "n_blocks")),
            first_layer=_whole(first_layer, "first_layer"),
            n_folds=_whole(folds, "folds"),
        )
        if unit is not None and not (isinstance(unit, Real) and 0 < unit < np.inf):
            raise DataError(f"expected unit as a number above 0, the size of a point, such as 0.01, got {unit!r}")
        check_choice(higher_is_better, Literal[True, False], name="higher_is_better")
        next_run(evidence, settings)  # refuse a budget that is too small before writing a file
        point = None if unit is None else float(unit)
        begun = SearchState(models=(evidence,), settings=settings, unit=point, higher_is_better=bool(higher_is_better))
        with self._open(begun) as state:
            models = (replace(state.models[0], scores=(), item_covariance=(), n_items=None),)
            if replace(state, models=models, pending=(), influences=(), point=None, folds=()) != begun:
                raise DataError(f"{path} holds a search with other settings: open it by its path alone")

    @classmethod
    def of(cls, state: SearchState) -> Self:
        """Return a search in memory that continues from a state, such as one of several models."""
        search = cls.__new__(cls)
        search._path, search._state = None, state
        return search

    @overload
    def ask(self, n: None = None, *, worker: str | None = None) -> PlannedRun | None: ...
    @overload
    def ask(self, n: int, *, worker: str | None = None) -> list[PlannedRun]: ...
    def ask(self, n: int | None = None, *, worker: str | None = None) -> PlannedRun | list[PlannedRun] | None:
        """Return the next layer and seed to train; None if there is nothing to train now.

        That is so if the search is over, or if the next run depends on pending runs.

        Args:
            n: Return a list of at most n runs, to be trained in parallel.
            worker: Name of the caller, such as the number of a job: a worker that was killed and asks again gets the
                run it had.

        Raises:
            DataError: If the file is damaged, or n is not a number of runs.
        """
        if _whole(1 if n is None else n, "n") < 1:
            raise DataError(f"expected a number of runs to train, 1 or more, got {n}")
        with self._open() as state:
            state, runs = state.with_requests(n or 1, "" if worker is None else str(worker))
            self._keep(state)
        if n is None:
            return runs[0] if runs else None
        return runs

    def tell(self, layer: int, seed: int, scores: ArrayLike | None) -> None:
        """Report the score of a run; it need not have been requested.

        With one number per item, the answer covers new items as well, and the search knows which differences they can
        show. A failed run costs as much as others; a layer with two failed runs is left out.

        Args:
            layer: Layer at which the trained model was truncated.
            seed: Seed of the training.
            scores: The metric, in any unit; or (items,) values of the validation items, in the same order in all runs,
                whose mean is the metric. Items must be independent: a query, not each of its documents. None for a run
                that failed or did not train: its loss did not fall, its outputs are all equal, or it scores far worse
                than the untrained model.

        Raises:
            DataError: If there is no such layer, the run was reported before, or the scores are invalid.
        """
        with self._open() as state:
            evidence, of_run = state.models[0], f"layer {layer}, seed {seed}"
            layer, seed = one_layer(layer, evidence.n_blocks), _whole(seed, "seed")
            if layer not in evidence.choices or seed < 0:
                layers = f"a layer from {evidence.first_layer} to {evidence.n_blocks}"
                raise DataError(f"expected {layers} and a seed of 0 or more, got {of_run}")
            if any((score.layer, score.seed) == (layer, seed) for score in evidence.scores):
                raise DataError(f"{of_run} was reported before: give a new run another seed")
            influences, value = None, None
            if scores is not None:
                values = _finite(scores, of_run)
                point = _point(state, float(values.mean()), of_run)
                state = replace(state, point=point)
                scale = (1 if state.higher_is_better else -1) / point
                value = scale * float(values.mean())
                influences = (scale * (values - values.mean())).tolist() if values.ndim else None
                self._check_alike(state, seed, influences, of_run)
            self._keep(state.with_score(Score(layer=layer, seed=seed, value=value), influences))

    def add(self, score: Score, influences: Array | None, *, model: int = 0) -> None:
        """Add the score of a run, like `tell`, for metrics that are not a mean.

        Args:
            score: Primary metric x 100.
            influences: (items,) influences of the items of its fold, with mean 0, x 100; None if unknown.
            model: Number of the model.
        """
        with self._open() as state:
            self._keep(state.with_score(score, influences, model=model))

    def release(self, layer: int, seed: int) -> None:
        """Give back a requested run that will not be reported, such as that of a killed job.

        Raises:
            DataError: If it is not a pending run.
        """
        with self._open() as state:
            layer = one_layer(layer, state.models[0].n_blocks)
            if (layer, seed) not in map(tuple, state.waiting):
                raise DataError(f"expected a pending run, got layer {layer}, seed {seed}")
            self._keep(state.without_run(layer, seed))

    def answer(self) -> SearchAnswer:
        """Return the layer to keep by the scores so far, as in `find`: a result that can be printed and saved.

        Its numbers are in points, a score divided by its `unit`. If higher scores are better and all lie between -1
        and 1, such as accuracies and correlations, so do the expected scores.

        Raises:
            DataError: If no score was reported.
        """
        with self._open() as state:
            if not state.models[0].scored:
                raise DataError("no run has a score yet: ask for a run and tell its score")
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
        """The full current state."""
        with self._open() as state:
            return state

    @property
    def pending(self) -> list[PlannedRun]:
        """Requested runs without a score."""
        return self.state.waiting

    @property
    def outlook(self) -> str:
        """The next step with its reason, or why there is nothing to train now."""
        state = self.state
        decision, waiting = state.decision, len(state.pending)
        if decision.run is not None:
            return f"next is layer {decision.run.layer}, seed {decision.run.seed}: {decision.why}"
        if waiting:
            return f"nothing to train until the pending runs are reported ({waiting}): {decision.why}"
        return f"the search is over: {decision.why}"

    def __repr__(self) -> str:
        state = self.state
        scored, waiting = sum(len(model.scores) for model in state.models), len(state.pending)
        where = "in memory" if self._path is None else str(self._path)
        return f"<LayerSearch: {where}, {scored} runs reported, {waiting} pending>"

    @contextlib.contextmanager
    def _open(self, begun: SearchState | None = None) -> Iterator[SearchState]:
        """Lock the file for this process and yield its state; a new search is written first."""
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
                why = f"{self._path} is damaged, or not a search: {error}"
                raise DataError(f"{why}; start a new one in another file") from error
            yield state

    def _keep(self, state: SearchState) -> None:
        """Write the state atomically; the caller holds the lock."""
        if self._path is None:
            self._state = state
            return
        try:
            replace_file(self._path, sealed(state, indent=None))
        except OSError as error:
            raise _refused(self._path, error) from error

    @staticmethod
    def _check_alike(state: SearchState, seed: int, influences: list[float] | None, of_run: str) -> None:
        """Raise DataError unless a run has as many numbers as earlier ones: one, or one per item of its fold."""
        evidence, *_ = state.models
        for score, earlier in zip(evidence.scores, *state.influences, strict=True):
            in_other_fold = evidence.fold(score.seed) != evidence.fold(seed)
            if score.value is None or (influences is not None and earlier is not None and in_other_fold):
                continue
            before, now = (1 if told is None else len(told) for told in (earlier, influences))
            if before != now:
                names = [f"{n:,} numbers, one per item" if n > 1 else "one number" for n in (before, now)]
                run = f"layer {score.layer}, seed {score.seed}"
                raise DataError(f"expected {names[0]}, as for {run}, got {names[1]} for {of_run}")


def _refused(path: Path, error: BaseException | None) -> DataError:
    reason = getattr(error, "strerror", None) or error
    return DataError(f"cannot use {path}: {reason}: choose a path that can be read, written and locked")


def initial_evidence(n_blocks: int, readings: Mapping[str, Any], **about: Any) -> Evidence:
    """Return the evidence before any run: readings, as curves or numbers by layer, and other fields of `Evidence`."""
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
    """Return the size of a point: as requested, or derived from the first score.

    Raises:
        DataError: If it was derived, and a score is of another magnitude.
    """
    if state.unit is not None:
        return state.unit
    size = abs(score)
    point = state.point or 10.0 ** (math.ceil(math.log10(size)) - 2 if size > 1 else -2)
    if size > 1000 * point:
        raise DataError(
            f"expected scores as large as the first, where a point is {point:g}, got {score:g} for {of_run}: report "
            "all in one unit (divide percentages by 100), None for a run that did not train, or start with unit=..."
        )
    return point


def _finite(scores: ArrayLike, of_run: str) -> Array:
    """Return one number, or one per item; raise DataError for anything else."""
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"expected a number, or one per item, for {of_run}, got {scores!r:.60}") from None
    if values.ndim > 1 or values.size < 1 + values.ndim:
        raise DataError(f"expected a number, or one for each of two or more items, got {values.shape} for {of_run}")
    if not (np.abs(values) < 1e100).all():
        raise DataError(f"expected finite scores for {of_run}, got NaN or infinity: report None for a failed run")
    return values
