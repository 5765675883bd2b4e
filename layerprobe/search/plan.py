"""Evidence -> the run that tells most, or why the search is over. A pure function: the same evidence, the same run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from layerprobe.errors import DataError
from layerprobe.metrics.seeds import best_of
from layerprobe.search.posterior import Array, Outlook, Posterior, posterior, square_root, standard_normal
from layerprobe.search.sentence import stop_reason
from layerprobe.search.values import (
    SWEPT_BLOCKS,
    Decision,
    Evidence,
    PlannedRun,
    Score,
    SearchSettings,
    StopReason,
)

LEAST_RUN_GAIN = 0.001
"""Points that a single run must promise: a cheap one that cannot matter is not made to spend what is left."""
LEAST_GAIN = 0.02
"""Points of the metric x 100 that further seeds, without end, must promise together."""
LOOKING = 0.0
"""Chance that InfoNCE says nothing, where the next run is chosen: readings choose where to look, runs what is said."""


def next_run(
    evidence: Evidence, settings: SearchSettings | None = None, pending: Sequence[PlannedRun] = ()
) -> Decision:
    """Decide what to do next, while some runs are being made whose scores are not known yet.

    1. Models of up to 4 blocks: every layer once.
    2. Others: a scan, where one is requested; without it, or where it tells nothing, the layer to begin with.
    3. The layer that seems the best, if it has had no run of its own, and the first block, if that is layer 0.
    4. The run, or the further scan, that is expected to raise the highest posterior mean most for its cost, the first
       of equals. Beside pending runs it is one at a layer without a run, if there is one, by how much more it promises
       than they alone. What a run promises is judged as if InfoNCE did say something; all else is not.

    It ends where the best layer is within the tolerance at the level; where seeds without end would not improve the
    choice by 0.02 points; where all layers that may be the best have all their seeds; and where the next run exceeds
    the budget.

    Raises:
        DataError: If the budget is too small for the first run.

    Source: the knowledge gradient for correlated beliefs, Frazier, Powell and Dayanik 2009 (INFORMS Journal on
    Computing 21, 599-613), per unit of cost.
    """
    settings = settings or SearchSettings()
    left = settings.block_steps(evidence.n_blocks) - evidence.spent - sum(run.cost for run in pending)
    decision = _opening(evidence, settings, pending)
    if decision is None:
        return _by_gain(evidence, settings, left, pending)
    if decision.run is None or decision.run.cost <= left:
        return decision
    if evidence.scores or pending:
        return _over("budget", settings)
    full, cost = settings.full_sweep(evidence.n_blocks), decision.run.cost
    raise DataError(
        f"expected a budget for at least one run, got {left / full:.1%} of a full sweep: the first run "
        f"costs {cost / full:.1%}, so give at least {math.ceil(1000 * cost / full) / 10}%"
    )


class Schedule:
    """The runs of a search several at a time: each takes as long as it costs.

    So what comes next depends on scores alone, not on how fast a machine is, and a search that is made again makes the
    same runs.
    """

    def __init__(self, settings: SearchSettings, at_a_time: int = 1) -> None:
        self.settings, self.at_a_time = settings, at_a_time
        self._clock = 0.0
        self._running: list[tuple[float, PlannedRun]] = []

    @property
    def pending(self) -> list[PlannedRun]:
        """Runs whose scores are not known."""
        return [run for _, run in self._running]

    @property
    def free(self) -> int:
        """How many more could run."""
        return self.at_a_time - len(self._running)

    def begin(self, evidence: Evidence) -> Iterator[PlannedRun]:
        """Give the runs that begin now."""
        while self.free:
            run = next_run(evidence, self.settings, self.pending).run
            if run is None:
                return
            self._running.append((self._clock + run.cost, run))
            yield run

    def end(self) -> PlannedRun | None:
        """Return the run that ends next, whose scores are known before others begin; None where the search is over."""
        if not self._running:
            return None
        ended = min(self._running, key=lambda running: running[0])
        self._running.remove(ended)
        self._clock = ended[0]
        return ended[1]


def gain_of_run(known: Posterior, layer: int, beside: Sequence[int] = ()) -> float:
    """Return by how many points one more run at a layer is expected to raise the highest posterior mean, at least 0.

    With runs beside it, at these layers, by how many more points than they alone.
    """
    means = known.means[known.first_layer :]
    if not beside:
        moves = known.run.cross[:, layer] / np.sqrt(known.run.seen[layer, layer] + known.run_variance)
        return max(_expected_maximum(means, moves[known.first_layer :]) - float(means.max()), 0.0)
    layers = [*beside, layer]
    seen = known.run.seen[np.ix_(layers, layers)] + known.run_variance * np.eye(len(layers))
    moves = np.linalg.solve(np.linalg.cholesky(seen), known.run.cross[known.first_layer :, layers].T)
    drawn = standard_normal(len(known.draws), len(layers))
    without = means + drawn[:, :-1] @ moves[:-1]
    gained = (without + np.outer(drawn[:, -1], moves[-1])).max(axis=1) - without.max(axis=1)
    return max(float(gained.mean()), 0.0)


def gain_of_scan(known: Posterior) -> float:
    """Return the same for one more scan."""
    return _gain_of_all(known, known.scan, known.run_variance)


def gain_of_seeds(known: Posterior) -> float:
    """Return the same for runs without end at every layer, on all items that there are."""
    return _gain_of_all(known, known.endless, 0.0)


def _gain_of_all(known: Posterior, outlook: Outlook, run_variance: float) -> float:
    seen = outlook.seen + run_variance * np.eye(len(known.means))
    explained = outlook.cross @ np.linalg.pinv(seen, rcond=1e-9, hermitian=True) @ outlook.cross.T
    moves = standard_normal(len(known.draws), len(known.means)) @ square_root(explained)
    means, moves = known.means[known.first_layer :], moves[:, known.first_layer :]
    return max(float((means + moves).max(axis=1).mean() - means.max()), 0.0)


def _opening(evidence: Evidence, settings: SearchSettings, pending: Sequence[PlannedRun]) -> Decision | None:
    """Return what comes before gains are weighed; None where they can be."""
    n_blocks, layers = evidence.n_blocks, evidence.choices
    fresh = [layer for layer in layers if not _seeds(evidence, layer, pending)]
    if n_blocks <= SWEPT_BLOCKS and fresh:
        return _fine_tune(evidence, fresh[0], f"with up to {SWEPT_BLOCKS} blocks, every layer is fine-tuned", pending)
    scanned = any(score.scan for score in evidence.scores) or any(run.scan for run in pending)
    if n_blocks > SWEPT_BLOCKS and settings.scan and not scanned:
        return _scan(evidence, "one run scores all layers", pending)
    if pending or any(score.value is not None for score in evidence.scores):
        return None
    start = _start(evidence)
    layer = min(layers, key=lambda layer: (len(evidence.runs_at(layer)), abs(layer - start), layer))
    return _fine_tune(evidence, layer, "the search starts here", pending)


def _start(evidence: Evidence) -> int:
    if evidence.start is not None:
        return evidence.start
    if evidence.infonce is not None:
        return 1 + best_of(evidence.infonce[1:])
    return evidence.n_blocks // 2


def _by_gain(evidence: Evidence, settings: SearchSettings, left: float, pending: Sequence[PlannedRun]) -> Decision:
    scored = any(score.value is not None for score in evidence.scores)
    seen = evidence if scored else _imagined(evidence, pending)
    known, hoped = posterior(seen), posterior(seen, nothing=LOOKING)
    best = known.best_layer
    if not _seeds(evidence, best, pending) and best + 1 <= left:
        return _fine_tune(evidence, best, "this layer looks best and has no run of its own yet", pending)
    if best == 0 and not _seeds(evidence, 1, pending) and left >= 2:
        return _fine_tune(evidence, 1, "layer 0 looks best, and runs at other blocks say little of the first", pending)
    open_layers = [layer for layer in evidence.choices if _seeds(evidence, layer, pending) < settings.seeds]
    if scored:
        if known.chances_within(settings.tolerance)[best] >= settings.level:
            return _over("settled", settings)
        if not set(known.candidates(settings.level)) & set(open_layers):
            return _over("seeds", settings)
        if gain_of_seeds(known) < LEAST_GAIN:
            return _over("gain", settings)
    beside = [run.layer for run in pending if not run.scan]
    fresh = [layer for layer in open_layers if beside and not _seeds(evidence, layer, pending)]
    gains = {layer: gain_of_run(hoped, layer, beside) for layer in fresh or open_layers if layer + 1 <= left}
    scanned = evidence.n_blocks > SWEPT_BLOCKS and settings.scan and evidence.next_seed(None, pending) < settings.seeds
    of_scan = gain_of_scan(hoped) if scanned and evidence.n_blocks + 1 <= left else 0.0
    if len(gains) < len(open_layers) and max([*gains.values(), of_scan], default=0.0) < LEAST_RUN_GAIN:
        return _over("budget", settings)
    rates = {layer: round(gain / (layer + 1), 9) for layer, gain in gains.items()}
    if of_scan / (evidence.n_blocks + 1) > max(rates.values(), default=0.0):
        return _scan(evidence, "another run of all layers at once promises most for its cost", pending)
    layer = min(rates, key=lambda layer: (-rates[layer], layer))
    return _fine_tune(evidence, layer, "another seed at this layer promises most for its cost", pending)


def _imagined(evidence: Evidence, pending: Sequence[PlannedRun]) -> Evidence:
    """Return the evidence with any score for the first pending run: one alone says nothing about differences."""
    run = pending[0]
    layers = evidence.choices if run.scan else (run.layer,)
    scores = tuple(Score(layer=layer, seed=run.seed, value=0.0, scan=run.scan) for layer in layers)
    return replace(evidence, scores=scores, item_covariance=())


def _seeds(evidence: Evidence, layer: int, pending: Sequence[PlannedRun]) -> int:
    """Return how many runs a layer has, or will have."""
    return len(evidence.runs_at(layer)) + sum(run.layer == layer and not run.scan for run in pending)


def _over(stop: StopReason, settings: SearchSettings) -> Decision:
    return Decision(run=None, stop=stop, why=stop_reason(stop, settings))


def _fine_tune(evidence: Evidence, layer: int, why: str, pending: Sequence[PlannedRun]) -> Decision:
    run = PlannedRun(layer=layer, seed=evidence.next_seed(layer, pending), scan=False, cost=layer + 1)
    return Decision(run=run, stop=None, why=why)


def _scan(evidence: Evidence, why: str, pending: Sequence[PlannedRun]) -> Decision:
    seed = evidence.next_seed(None, pending)
    run = PlannedRun(layer=evidence.n_blocks, seed=seed, scan=True, cost=evidence.n_blocks + 1)
    return Decision(run=run, stop=None, why=why)


def _expected_maximum(means: Array, moves: Array) -> float:
    """Return E max_i (means_i + moves_i Z) of a standard normal Z, exactly: each line where it is the highest."""
    above, steeper = means[:, None] - means, moves[:, None] - moves
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -above / steeper
    low = np.where(steeper > 0, crossing, -np.inf).max(axis=1)
    high = np.where(steeper < 0, crossing, np.inf).min(axis=1)
    first = np.arange(len(means))
    doubled = ((steeper == 0) & ((above < 0) | ((above == 0) & (first[:, None] > first)))).any(axis=1)
    top = (low < high) & ~doubled
    low, high, means, moves = low[top], high[top], means[top], moves[top]
    return float(means @ (ndtr(high) - ndtr(low)) + moves @ (_density(low) - _density(high)))


def _density(z: Array) -> Array:
    density: Array = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return density
