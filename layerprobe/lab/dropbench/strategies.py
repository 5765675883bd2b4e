"""Strategies that choose a layer, replayed on recorded runs: what each looks at, and what that costs. Numbers only.

A strategy sees validation scores of runs that it pays for, and readings for nothing; never test scores. Costs are
shares of the paper's sweep, every layer with five seeds; a step at layer l costs l + 1 blocks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.finetuning.values import Weighting
from layerprobe.lab.dropbench.results import Needs
from layerprobe.lab.dropbench.zoo import TunedLayers, ZooEntry
from layerprobe.readings.reading import INFONCE, SELF_CKA
from layerprobe.search.plan import answer, next_run
from layerprobe.search.posterior import layer_steps
from layerprobe.search.values import Evidence, Score, SearchSettings
from layerprobe.stats.values import best_of

Array = NDArray[np.float64]
PAPER_SEEDS = 5
FIND_BUDGETS = (0.05, 0.10, 0.15, 0.20)
"""Shares of the paper's sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A strategy's answer for one model; of an entry's the bench itself says what it cost and what it looked at."""

    layer: int
    """That it takes."""
    stated: tuple[int, ...] | None = None
    """The set of layers that it says holds the best one."""
    sufficient: int | None = None
    """The smallest layer that it says is no worse than the best by more than half a point."""
    cost: float = 0.0
    """Share of the paper's sweep, of choosing alone: a final run of the chosen layer is not in it."""
    seeds: tuple[int, ...] = ()
    """Positions of the TMFT seeds that it looked at, which are not those that it is scored on where others are left."""
    score: float | None = None
    """Test score of the model that it hands over, where that is not TMFT at the layer."""
    needs: Needs | None = None
    """What it looked at, of a strategy that does not say."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """A model with all its runs under one budget of fine-tuning, on which searches can be replayed."""

    entry: ZooEntry
    tuned: TunedLayers

    @property
    def n_layers(self) -> int:
        """Layers, the embedding output among them."""
        return self.tuned.n_layers

    @property
    def validation(self) -> Array:
        """(layers, seeds)."""
        return np.array(self.tuned.validation)

    @property
    def full_sweep(self) -> float:
        """Cost of the paper's sweep in block-steps."""
        return PAPER_SEEDS * self.n_layers * (self.n_layers + 1) / 2

    def share(self, block_steps: float) -> float:
        """Return a cost as a share of the paper's sweep."""
        return block_steps / self.full_sweep

    @property
    def searchable(self) -> bool:
        """Whether searches can be played: errors over validation items are known."""
        return self.tuned.validation_errors is not None

    @property
    def infonce(self) -> tuple[float, ...] | None:
        """By layer, as searches have it."""
        metrics = self.entry.metrics
        return metrics[INFONCE].values if self.searchable and INFONCE in metrics else None

    def best_of(self, layers: Iterable[int], seeds: tuple[int, ...]) -> Answer:
        """Return the layer of the highest mean over seeds on validation, for a run of every layer with every seed."""
        tried = sorted(layers)
        means = self.validation[np.ix_(tried, seeds)].mean(axis=1).tolist()
        return Answer(layer=tried[best_of(means)], cost=self.share(len(seeds) * _block_steps(tried)), seeds=seeds)

    def search(self, budget_steps: float, *, first: int = 0) -> Answer | None:
        """Search until it ends by itself or the next run would exceed a budget in block-steps.

        A seed is left, where there are three, to score the choice on. The search is given the seeds in a circle from
        the one at position `first` on.

        Returns:
            None where the budget is too small for the first run.
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
        """Return what runs scored on validation, with their errors over items; seeds count from the first.

        Readings say how far layers lie from each other, and where to look first.
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
            item_covariance=tuple(map(tuple, errors.covariance([(*run, False) for run in runs]).tolist())),
            steps=layer_steps(metrics[SELF_CKA].values[1:]) if SELF_CKA in metrics else None,
            infonce=self.infonce,
            n_items=round(errors.units),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strategy:
    """A way to choose a layer."""

    name: str
    source: str
    """Who proposed it, or what it is a control for."""
    needs: Needs | None
    """What it looks at; None: that of each choice, which says so."""
    choose: Callable[[Recorded], Sequence[Answer]]
    """Equally likely choices, such as one for each seed to begin with; none where the records lack what it needs."""


def training_strategies() -> list[Strategy]:
    """Return the strategies that train; those that read alone are rules, see `rule_strategy`."""
    return [
        *(scan(weighting) for weighting in ("falling", "equal", "random", "sandwich")),
        scan("falling", seeds=2),
        scan("falling", epochs=0.5),
        scan("falling", own_model=True),
        halving(),
        *(find(budget) for budget in FIND_BUDGETS),
        *(sweep(n_seeds) for n_seeds in (1, 3, 5)),
        sweep(1, step=2),
        *(once(order, budget) for order in ORDERS for budget in FIND_BUDGETS[:3]),
    ]


def rule_strategy(name: str, layers: Mapping[str, Sequence[int]], *, source: str, needs: Needs) -> Strategy:
    """Return the strategy that follows a rule, given the layers it recommends for each model."""
    return _strategy(
        name, source, lambda model: (Answer(layer=layer, cost=0.0) for layer in layers[model.entry.name]), needs=needs
    )


def _strategy(
    name: str, source: str, choices: Callable[[Recorded], Iterable[Answer | None]], *, needs: Needs = "training"
) -> Strategy:
    """Return the strategy of some choices; those of None do not count."""

    def choose(model: Recorded) -> list[Answer]:
        return [choice for choice in choices(model) if choice is not None]

    return Strategy(name=name, source=source, needs=needs, choose=choose)


# ---- sweeps -----------------------------------------------------------------------------------------------------


def sweep(n_seeds: int, *, step: int = 1) -> Strategy:
    """Return the sweep of every layer with so many seeds, which takes the highest mean on validation.

    With a step of 2 it is of every second layer, from the last on: of 12 blocks the fixed layers 2, 4, ..., 12 of
    Starbucks, which are trained one by one here.
    """

    def choices(model: Recorded) -> Iterator[Answer]:
        layers = range(model.n_layers - 1, -1 if step == 1 else 0, -step)
        return (model.best_of(layers, seeds) for seeds in _subsets(len(model.tuned.seeds), n_seeds))

    name = f"sweep, {n_seeds} seed{'s' if n_seeds > 1 else ''}{', every second layer' if step == 2 else ''}"
    source = "Rep, Dukic and Snajder 2024 (2402.13130)" if n_seeds == PAPER_SEEDS else "a smaller sweep"
    return _strategy(name, source if step == 1 else "the layers of Starbucks: Zhuang et al. 2024 (2410.13230)", choices)


# ---- one run at some layers -------------------------------------------------------------------------------------


def once(order: str, budget: float) -> Strategy:
    """Return the strategy that fine-tunes layers once each, in some order, and takes the highest on validation.

    It takes the layers whose runs the budget, a share of the paper's sweep, still pays for, and leaves out others.
    """

    def choices(model: Recorded) -> Iterator[Answer]:
        for seed in range(len(model.tuned.seeds)):
            for layers in ORDERS[order](model):
                yield model.best_of(_affordable(layers, budget * model.full_sweep), (seed,))

    source = "the simplest use of the reading" if INFONCE in order else "a control for where to look"
    return _strategy(f"one seed at {order}, {budget:.0%}", source, choices)


def _affordable(layers: Iterable[int], block_steps: float) -> list[int]:
    """Return the layers that a budget pays for, taken in order, ascending; at least the first.

    Examples:
        >>> _affordable([5, 8, 1, 0], 9.0)
        [0, 1, 5]
    """
    taken: list[int] = []
    for layer in layers:
        if not taken or _block_steps([*taken, layer]) <= block_steps + 1e-9:
            taken.append(layer)
    return sorted(taken)


def _by_infonce(model: Recorded) -> list[list[int]]:
    infonce = model.infonce
    return [] if infonce is None else [sorted(range(model.n_layers), key=lambda layer: (-infonce[layer], layer))]


def _evenly(model: Recorded) -> list[list[int]]:
    """Return all layers, the middle first, each next one furthest from those before it."""
    order = [model.n_layers // 2]
    while len(order) < model.n_layers:
        left = [layer for layer in range(model.n_layers) if layer not in order]
        order.append(max(left, key=lambda layer: (min(abs(layer - other) for other in order), -layer)))
    return [order]


def _at_random(model: Recorded) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.permutation(model.n_layers).tolist() for _ in range(RANDOM_ORDERS)]


RANDOM_ORDERS = 20
ORDERS: dict[str, Callable[[Recorded], list[list[int]]]] = {
    f"the layers of highest {INFONCE}": _by_infonce,
    "evenly spaced layers": _evenly,
    "random layers": _at_random,
}


# ---- scans ------------------------------------------------------------------------------------------------------


def scan(weighting: Weighting, *, seeds: int = 1, epochs: float = 1.0, own_model: bool = False) -> Strategy:
    """Return the strategy that takes the best layer of a scan's validation curve, the mean of so many seeds.

    With a share of the epochs the curve is that of a prefix of the same schedule. With `own_model` the model of
    the scan, truncated at the layer, is handed over in place of TMFT's.
    """

    def choices(model: Recorded) -> Iterator[Answer]:
        runs = model.tuned.whole_scans(weighting)
        for subset in _subsets(len(runs), seeds):
            curves, trained = [], 0.0
            for run in (runs[number] for number in subset):
                last = max(1, round(epochs * len(run.epochs)))
                scores = run.validation if epochs == 1 else run.epochs[last - 1]
                curves.append([score for score in scores if score is not None])
                trained += last / len(run.epochs)
            layer = best_of(np.array(curves).mean(axis=0).tolist())
            score = runs[subset[0]].test[layer] if own_model else None
            yield Answer(layer=layer, cost=model.share(trained * model.n_layers), score=score)

    name = f"scan, {weighting}"
    name += f", {seeds} seeds" if seeds > 1 else ""
    name += ", half of its epochs" if epochs < 1 else ""
    return _strategy(f"{name}{', its own model' if own_model else ''}", _SCAN_SOURCES[weighting], choices)


_SCAN_SOURCES: dict[Weighting, str] = {
    "falling": "layerprobe; deep supervision: Lee et al. 2015 (1409.5185)",
    "equal": "the sum of the losses of all layers; deep supervision: Lee et al. 2015 (1409.5185)",
    "random": "one-shot search: Bender et al. 2018 (ICML)",
    "sandwich": "Yu and Huang 2019 (1903.05134)",
}


# ---- halving -----------------------------------------------------------------------------------------------------


def halving() -> Strategy:
    """Return successive halving on epochs: all layers for one epoch, the better half for two, and so on to the end.

    Runs are prefixes of the final schedule; the last ones are chosen among by the best of their epochs.
    """

    def choices(model: Recorded) -> Iterator[Answer]:
        scores = np.array(model.tuned.epochs)  # (layers, seeds, epochs)
        for seed in range(scores.shape[1] if len(scores) else 0):
            layer, epochs = halved(scores[:, seed])
            cost = float((epochs / scores.shape[2] * np.arange(1, model.n_layers + 1)).sum())
            yield Answer(layer=layer, cost=model.share(cost), seeds=(seed,))

    return _strategy("successive halving on epochs", "Jamieson and Talwalkar 2016 (1502.07943)", choices)


def halved(scores: Array) -> tuple[int, Array]:
    """Return the layer that is left of (layers, epochs) scores, and how many epochs each layer was trained.

    Examples:
        >>> layer, epochs = halved(np.array([[1.0, 9.0], [2.0, 3.0], [3.0, 2.0]]))
        >>> layer, epochs.tolist()
        (1, [1.0, 2.0, 2.0])
    """
    n_layers, n_epochs = scores.shape
    left, trained = np.arange(n_layers), np.zeros(n_layers)
    epoch = 1
    while True:
        trained[left] = epoch
        if epoch == n_epochs:
            best = scores[left].max(axis=1)
            return int(left[best.argmax()]), trained
        order = np.argsort(-scores[left, epoch - 1], kind="stable")[: (len(left) + 1) // 2]
        left, epoch = np.sort(left[order]), min(2 * epoch, n_epochs)


# ---- find -------------------------------------------------------------------------------------------------------


def find(budget: float) -> Strategy:
    """Return the search of `layerprobe.search` with a budget, a share of the paper's sweep."""

    def choices(model: Recorded) -> Iterator[Answer | None]:
        orders = range(len(model.tuned.seeds) if model.searchable else 0)
        return (model.search(budget * model.full_sweep, first=first) for first in orders)

    return _strategy(f"find, {budget:.0%}", "layerprobe.search", choices)


def _block_steps(layers: Iterable[int]) -> int:
    return sum(layer + 1 for layer in layers)


def _subsets(n: int, size: int) -> list[tuple[int, ...]]:
    """Return every run of `size` consecutive numbers on a circle of n; only one where size is n.

    Examples:
        >>> _subsets(3, 2)
        [(0, 1), (1, 2), (2, 0)]
        >>> _subsets(2, 2), _subsets(1, 2)
        ([(0, 1)], [])
    """
    if size > n:
        return []
    return [tuple((first + step) % n for step in range(size)) for first in range(n if size < n else 1)]
