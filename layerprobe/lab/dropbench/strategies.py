"""Strategies that choose a layer, replayed on recorded runs, with the price of what each one reads. Numbers only.

A strategy pays for validation scores of runs and reads embeddings for free; it never sees test scores. Costs are
shares of the paper's sweep, every layer with five seeds; a step at layer l costs l + 1 blocks.

An entry, a strategy of another package, is a function from a `Trial` to a layer, or an `Answer`. Its readings are
charged as it reads them, so an entry cannot misstate its cost, and models are anonymous, so it cannot recognise them.
"""

import operator
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_choice
from layerprobe.errors import DataError, LayerProbeError
from layerprobe.finetuning.values import Weighting
from layerprobe.lab.dropbench.results import Needs
from layerprobe.lab.dropbench.zoo import TunedLayers, ZooEntry
from layerprobe.names import nearest
from layerprobe.readings.reading import INFONCE, SELF_CKA
from layerprobe.search.plan import answer, next_run
from layerprobe.search.posterior import layer_steps
from layerprobe.search.values import Evidence, Score, SearchSettings
from layerprobe.stats.values import best_of

Array = NDArray[np.float64]
PAPER_SEEDS = 5
FIND_BUDGETS = (0.05, 0.10, 0.15, 0.20)
"""Budgets of `find`, as shares of the paper's sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A strategy's answer for one model; for entries the bench itself records the cost and what was read."""

    layer: int
    """Chosen layer."""
    stated: tuple[int, ...] | None = None
    """Set of layers stated to contain the best one."""
    sufficient: int | None = None
    """Smallest layer stated to be at most half a point worse than the best."""
    cost: float = 0.0
    """Cost of choosing, as a share of the paper's sweep; a final run of the chosen layer is not included."""
    seeds: tuple[int, ...] = ()
    """Positions of the TMFT seeds that it read; it is scored on the others, if any."""
    needs: Needs | None = None
    """What it read, if the strategy does not declare it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """A model with all its runs under one fine-tuning budget, for replaying searches."""

    entry: ZooEntry
    tuned: TunedLayers

    @property
    def n_layers(self) -> int:
        """Number of layers, including the embedding output."""
        return self.tuned.n_layers

    @property
    def full_sweep(self) -> float:
        """Cost of the paper's sweep in block-steps."""
        return PAPER_SEEDS * self.n_layers * (self.n_layers + 1) / 2

    def share(self, block_steps: float) -> float:
        """Return a cost as a share of the paper's sweep."""
        return block_steps / self.full_sweep

    @property
    def searchable(self) -> bool:
        """Whether searches can be replayed: errors over validation items are recorded."""
        return self.tuned.validation_errors is not None

    @property
    def infonce(self) -> tuple[float, ...] | None:
        """InfoNCE by layer, as searches use it."""
        metrics = self.entry.metrics
        return metrics[INFONCE].values if self.searchable and INFONCE in metrics else None

    def pick_best(self, layers: Iterable[int], seeds: tuple[int, ...]) -> Answer:
        """Return the layer with the highest validation mean over seeds, for a run of every layer with every seed."""
        tried = sorted(layers)
        means = np.array(self.tuned.validation)[np.ix_(tried, seeds)].mean(axis=1).tolist()
        return Answer(layer=tried[best_of(means)], cost=self.share(len(seeds) * _block_steps(tried)), seeds=seeds)

    def search(self, budget_steps: float, *, first: int = 0) -> Answer | None:
        """Search until it ends by itself or the next run would exceed a budget in block-steps.

        With at least three seeds, one is left for scoring the choice. The search uses the seeds cyclically,
        starting at position `first`.

        Returns:
            None if the budget is too small for the first run.
        """
        n_blocks, n_seeds = self.n_layers - 1, len(self.tuned.seeds)
        settings = SearchSettings(budget=1.0, seeds=n_seeds - 1 if n_seeds > 2 else n_seeds)
        share = min(budget_steps / settings.full_sweep(n_blocks), 1.0)
        within = SearchSettings(budget=share, seeds=settings.seeds)
        runs: tuple[tuple[int, int], ...] = ()
        try:
            while (run := next_run(self.evidence(runs, first=first), within).run) is not None:
                runs += ((run.layer, run.seed),)
        except DataError:
            return None
        return self.answered(runs, settings, first=first)

    def answered(
        self, runs: Sequence[tuple[int, int]], settings: SearchSettings | None = None, *, first: int = 0
    ) -> Answer:
        """Return the search's answer after some runs, each a layer and a seed."""
        evidence = self.evidence(runs, first=first)
        result = answer(evidence, settings)
        seeds = {(seed + first) % len(self.tuned.seeds) for _, seed in runs}
        return Answer(
            layer=result.best_layer,
            cost=self.share(evidence.spent),
            seeds=tuple(sorted(seeds)),
            stated=result.candidates,
            sufficient=result.smallest_sufficient,
        )

    def evidence(self, runs: Sequence[tuple[int, int]], *, first: int = 0) -> Evidence:
        """Return the validation scores of runs, with their errors over items; seeds count from the first.

        Readings set the similarity of layers, and where to start.
        """
        tuned, errors, metrics = self.tuned, self.tuned.validation_errors, self.entry.metrics
        assert errors is not None
        scores = tuple(
            Score(layer=layer, seed=seed, value=tuned.validation[layer][(seed + first) % len(tuned.seeds)])
            for layer, seed in runs
        )
        return Evidence(
            n_blocks=self.n_layers - 1,
            scores=scores,
            item_covariance=tuple(map(tuple, errors.covariance(runs).tolist())),
            steps=layer_steps(metrics[SELF_CKA].values[1:]) if SELF_CKA in metrics else None,
            infonce=self.infonce,
            n_items=round(errors.units),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strategy:
    """A way to choose a layer."""

    name: str
    source: str
    """Author, or purpose of a control."""
    needs: Needs | None = "training"
    """What it reads; None: each choice declares it."""
    choices: Callable[[Recorded], Iterable[Answer | None]]
    """Equally likely choices, for example one per starting seed; None where the records lack what it needs."""

    def choose(self, model: Recorded) -> list[Answer]:
        """Return the choices for a model; empty if its records lack what they need."""
        return [choice for choice in self.choices(model) if choice is not None]


def training_strategies() -> list[Strategy]:
    """Return the strategies that train; those that only read are rules."""
    return [
        *map(scan, _SCAN_SOURCES),
        *(find(budget) for budget in FIND_BUDGETS),
        *(sweep(n_seeds) for n_seeds in (1, 3, 5)),
        sweep(1, step=2),
        *map(once, FIND_BUDGETS[:3]),
    ]


def sweep(n_seeds: int, *, step: int = 1) -> Strategy:
    """Return the sweep of every layer with `n_seeds` seeds, which selects the highest validation mean.

    With a step of 2 it covers every second layer, down from the last: for 12 blocks the fixed layers 2, 4, ..., 12 of
    Starbucks, trained one by one here.
    """

    def choices(model: Recorded) -> Iterator[Answer]:
        layers = range(model.n_layers - 1, -1 if step == 1 else 0, -step)
        return (model.pick_best(layers, seeds) for seeds in _subsets(len(model.tuned.seeds), n_seeds))

    name = f"sweep, {n_seeds} seed{'s' if n_seeds > 1 else ''}{', every second layer' if step == 2 else ''}"
    source = "Rep, Dukic and Snajder 2024 (2402.13130)" if n_seeds == PAPER_SEEDS else "a smaller sweep"
    if step == 2:
        source = "the layers of Starbucks: Zhuang et al. 2024 (2410.13230)"
    return Strategy(name=name, source=source, choices=choices)


def once(budget: float) -> Strategy:
    """Return the strategy that fine-tunes the layers of highest InfoNCE once each, and selects the best on validation.

    It trains the layers that the budget, a share of the paper's sweep, still pays for, and skips others.
    """

    def choices(model: Recorded) -> Iterator[Answer]:
        if (infonce := model.infonce) is None:
            return
        order = sorted(range(model.n_layers), key=lambda layer: (-infonce[layer], layer))
        layers = _affordable(order, budget * model.full_sweep)
        for seed in range(len(model.tuned.seeds)):
            yield model.pick_best(layers, (seed,))

    name = f"one seed at the layers of highest {INFONCE}, {100 * budget:.0f} %"
    return Strategy(name=name, source="the simplest use of the reading", choices=choices)


def _affordable(layers: Iterable[int], block_steps: float) -> list[int]:
    """Return the layers that a budget pays for, in order; at least the first.

    Examples:
        >>> _affordable([5, 8, 1, 0], 9.0)
        [5, 1, 0]
    """
    taken: list[int] = []
    for layer in layers:
        if not taken or _block_steps([*taken, layer]) <= block_steps + 1e-9:
            taken.append(layer)
    return taken


def scan(weighting: Weighting) -> Strategy:
    """Return the strategy that selects the best layer of a scan's validation curve."""

    def choices(model: Recorded) -> Iterator[Answer]:
        for run in model.tuned.whole_scans(weighting):
            layer = best_of([score for score in run.validation if score is not None])
            yield Answer(layer=layer, cost=model.share(model.n_layers))

    return Strategy(name=f"scan, {weighting}", source=_SCAN_SOURCES[weighting], choices=choices)


_SCAN_SOURCES: dict[Weighting, str] = {
    "falling": "layerprobe; deep supervision: Lee et al. 2015 (1409.5185)",
    "equal": "the sum of the losses of all layers; deep supervision: Lee et al. 2015 (1409.5185)",
    "random": "one-shot search: Bender et al. 2018 (ICML)",
    "sandwich": "Yu and Huang 2019 (1903.05134)",
}


def find(budget: float) -> Strategy:
    """Return the search of `layerprobe.search` with a budget, a share of the paper's sweep."""

    def choices(model: Recorded) -> Iterator[Answer | None]:
        orders = range(len(model.tuned.seeds) if model.searchable else 0)
        return (model.search(budget * model.full_sweep, first=first) for first in orders)

    return Strategy(name=f"find, {100 * budget:.0f} %", source="layerprobe.search", choices=choices)


def _block_steps(layers: Iterable[int]) -> int:
    return sum(layer + 1 for layer in layers)


def _subsets(n: int, size: int) -> list[tuple[int, ...]]:
    """Return all runs of `size` consecutive numbers on a circle of n; only one if size is n.

    Examples:
        >>> _subsets(3, 2)
        [(0, 1), (1, 2), (2, 0)]
        >>> _subsets(2, 2), _subsets(1, 2)
        ([(0, 1)], [])
    """
    if size > n:
        return []
    return [tuple((first + step) % n for step in range(size)) for first in range(n if size < n else 1)]


_LOOKED: tuple[Needs, ...] = get_args(Needs)
"""In ascending order; an entry needs the highest of what it reads."""


class Trial:
    """A model as an entry sees it: free readings, and validation scores of runs at their cost.

    Seeds are counted from 0. Each trial of a model starts at another recorded seed, and the answer is
    scored on unread seeds, if any are left.
    """

    def __init__(self, model: Recorded, *, first: int = 0) -> None:
        self._model, self._first = model, first
        self._steps: dict[tuple[str, int, int], float] = {}
        self._seeds = set[int]()
        self._looked = 0

    @property
    def n_layers(self) -> int:
        """Number of layers, including the embedding output, layer 0."""
        return self._model.n_layers

    @property
    def metric(self) -> str:
        """Name of the scores' metric, x 100."""
        return self._model.entry.metric

    @property
    def n_seeds(self) -> int:
        """Number of recorded runs per layer."""
        return len(self._model.tuned.seeds)

    @property
    def n_epochs(self) -> int:
        """Number of epochs of a run."""
        return self._model.tuned.protocol.epochs

    @property
    def readings(self) -> tuple[str, ...]:
        """Names of the readings that are recorded for this model."""
        return tuple(self._model.entry.curves)

    @property
    def spent(self) -> float:
        """Cost so far, as a share of the paper's sweep of every layer with five seeds."""
        return self._model.share(sum(self._steps.values()))

    def reading(self, name: str) -> tuple[float, ...]:
        """Return the numbers by layer of a free reading; one that needs labels marks the entry as using labels.

        Raises:
            DataError: If it is not recorded for this model.
        """
        curves = self._model.entry.curves
        if name not in curves:
            raise DataError(f"expected a reading of {', '.join(curves)}, got {name!r}{nearest(name, curves)}")
        self._look("labels" if name in self._model.entry.labelled else "readings")
        return curves[name].values

    def tune(self, layer: int, *, seed: int = 0, epochs: int | None = None) -> float:
        """Return the validation score of fine-tuning the model truncated at a layer; repeating the call is free.

        A run costs (layer + 1) blocks per step. With fewer epochs it is the start of the same schedule, scored at its
        end, for that share of the cost; continuing later costs the rest.

        Raises:
            DataError: If there is no such layer, seed or epoch.
        """
        tuned = self._model.tuned
        layer, run = self._layer(layer), self._seed(seed, self.n_seeds)
        n_epochs = _number(self.n_epochs if epochs is None else epochs, "epochs", 1, self.n_epochs)
        if epochs is not None and not tuned.epochs:
            raise DataError("expected a complete run, got a number of epochs: this zoo has no scores by epoch")
        self._pay("tune", layer, run, (layer + 1) * n_epochs / self.n_epochs)
        self._seeds.add(run)
        if epochs is None:
            return tuned.validation[layer][run]
        return tuned.epochs[layer][run][n_epochs - 1]

    def scan(self, weighting: Weighting = "falling", *, seed: int = 0) -> tuple[float, ...]:
        """Return the validation scores by layer of one run with a loss at every layer; it costs one run of all blocks.

        Raises:
            DataError: If there is no such scan of this model.
        """
        check_choice(weighting, Weighting, name="weighting")
        scans = self._model.tuned.whole_scans(weighting)
        if not scans:
            raise DataError(f"expected a model with {weighting} scans, got one without: models of --searched have them")
        number = self._seed(seed, len(scans))
        self._pay(weighting, 0, number, self.n_layers)
        return tuple(float(score) for score in scans[number].validation if score is not None)

    def choice(self, answer: Any) -> Answer:
        """Return an entry's answer, a layer or an `Answer`, with the cost of everything it read.

        Raises:
            DataError: If it names no layer of the model.
        """
        if not isinstance(answer, Answer):
            answer = Answer(layer=answer)
        stated = None if answer.stated is None else tuple(sorted(set(map(self._layer, answer.stated))))
        return Answer(
            layer=self._layer(answer.layer),
            stated=stated,
            sufficient=None if answer.sufficient is None else self._layer(answer.sufficient),
            cost=self.spent,
            seeds=tuple(sorted(self._seeds)),
            needs=_LOOKED[self._looked],
        )

    def _look(self, at: Needs) -> None:
        self._looked = max(self._looked, _LOOKED.index(at))

    def _pay(self, what: str, layer: int, run: int, steps: float) -> None:
        self._look("training")
        key = (what, layer, run)
        self._steps[key] = max(self._steps.get(key, 0.0), steps)

    def _layer(self, layer: object) -> int:
        return _number(layer, "a layer", 0, self.n_layers - 1)

    def _seed(self, seed: object, n_seeds: int) -> int:
        return (_number(seed, "a seed", 0, n_seeds - 1) + self._first) % n_seeds


Entry = Callable[[Trial], int | Answer]


def load_entry(name: str) -> Strategy:
    """Import a strategy of another package, named `package:strategy`."""
    try:
        entry = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(f"expected an entry as package:strategy, {name} cannot be imported: {error}") from error
    if not callable(entry):
        raise DataError(f"expected the entry {name} to be a function of a trial, got a {type(entry).__name__}")
    return entry_strategy(name, entry)


def entry_strategy(name: str, entry: Entry) -> Strategy:
    """Wrap an entry as a strategy: it runs once with each recorded seed as its first one, all equally likely."""

    def choices(model: Recorded) -> Iterator[Answer]:
        for first in range(len(model.tuned.seeds)):
            trial = Trial(model, first=first)
            try:
                yield trial.choice(entry(trial))
            except Exception as error:
                kind = "" if isinstance(error, LayerProbeError) else f"{type(error).__name__}: "
                reason = " ".join(str(error).split())
                raise DataError(f"the entry {name} failed on {model.entry.name}: {kind}{reason}") from error

    first_line = (getattr(entry, "__doc__", None) or name).strip().splitlines()[0]
    return Strategy(name=name, source=first_line, needs=None, choices=choices)


def _number(value: Any, what: str, least: int, most: int) -> int:
    number = operator.index(value)
    if not least <= number <= most:
        raise DataError(f"expected {what} from {least} to {most}, got {value!r}")
    return number
