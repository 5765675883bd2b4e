"""Evidence -> the run that tells most, or why the search is over. A pure function: the same evidence, the same run."""

import math

import numpy as np
from scipy.special import ndtr

from layerprobe.errors import DataError
from layerprobe.metrics.seeds import best_of
from layerprobe.search.posterior import Array, Outlook, Posterior, posterior, square_root, standard_normal
from layerprobe.search.sentence import stop_reason
from layerprobe.search.values import SWEPT_BLOCKS, Decision, Evidence, PlannedRun, SearchSettings, StopReason

LEAST_RUN_GAIN = 0.001
"""Points that a single run must promise: a cheap one that cannot matter is not made to spend what is left."""
LEAST_GAIN = 0.02
"""Points of the metric x 100 that further seeds, without end, must promise together."""


def next_run(evidence: Evidence, settings: SearchSettings | None = None) -> Decision:
    """Decide what to do next.

    1. Models of up to 4 blocks: every layer once.
    2. Others: a scan, where one is requested; without it, or where it tells nothing, the layer to begin with.
    3. The layer that seems the best, if it has had no run of its own.
    4. The run, or the further scan, that is expected to raise the highest posterior mean most for its cost, the first
       of equals.

    It ends where the best layer is within the tolerance at the level; where seeds without end would not improve the
    choice by 0.02 points; where all layers that may be the best have all their seeds; and where the next run exceeds
    the budget.

    Raises:
        DataError: If the budget is too small for the first run.

    Source: the knowledge gradient for correlated beliefs, Frazier, Powell and Dayanik 2009 (INFORMS Journal on
    Computing 21, 599-613), per unit of cost.
    """
    settings = settings or SearchSettings()
    left = settings.block_steps(evidence.n_blocks) - evidence.spent
    decision = _opening(evidence, settings)
    if decision is None:
        return _by_gain(evidence, settings, left)
    if decision.run is None or decision.run.cost <= left:
        return decision
    if evidence.scores:
        return _over("budget", settings)
    full, cost = settings.full_sweep(evidence.n_blocks), decision.run.cost
    raise DataError(
        f"expected a budget for at least one run, got {left / full:.1%} of a full sweep: the first run "
        f"costs {cost / full:.1%}, so give at least {math.ceil(1000 * cost / full) / 10}%"
    )


def gain_of_run(known: Posterior, layer: int) -> float:
    """Return by how many points one more run at a layer is expected to raise the highest posterior mean, at least 0."""
    moves = known.run.cross[:, layer] / np.sqrt(known.run.seen[layer, layer] + known.run_variance)
    means, moves = known.means[known.first_layer :], moves[known.first_layer :]
    return max(_expected_maximum(means, moves) - float(means.max()), 0.0)


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


def _opening(evidence: Evidence, settings: SearchSettings) -> Decision | None:
    """Return what comes before gains are weighed; None where they can be."""
    n_blocks, layers = evidence.n_blocks, evidence.choices
    fresh = [layer for layer in layers if not evidence.runs_at(layer)]
    if n_blocks <= SWEPT_BLOCKS and fresh:
        return _fine_tune(evidence, fresh[0], f"with up to {SWEPT_BLOCKS} blocks, every layer is fine-tuned")
    if n_blocks > SWEPT_BLOCKS and settings.scan and not any(score.scan for score in evidence.scores):
        return _scan(evidence, "one run scores all layers")
    if any(score.value is not None for score in evidence.scores):
        return None
    start = _start(evidence)
    layer = min(layers, key=lambda layer: (len(evidence.runs_at(layer)), abs(layer - start), layer))
    return _fine_tune(evidence, layer, "the search starts here")


def _start(evidence: Evidence) -> int:
    if evidence.start is not None:
        return evidence.start
    if evidence.infonce is not None:
        return 1 + best_of(evidence.infonce[1:])
    return evidence.n_blocks // 2


def _by_gain(evidence: Evidence, settings: SearchSettings, left: float) -> Decision:
    known = posterior(evidence)
    best = known.best_layer
    if not evidence.runs_at(best) and best + 1 <= left:
        return _fine_tune(evidence, best, "this layer looks best and has no run of its own yet")
    if known.chances_within(settings.tolerance)[best] >= settings.level:
        return _over("settled", settings)
    open_layers = [layer for layer in evidence.choices if len(evidence.runs_at(layer)) < settings.seeds]
    if not set(known.candidates(settings.level)) & set(open_layers):
        return _over("seeds", settings)
    if gain_of_seeds(known) < LEAST_GAIN:
        return _over("gain", settings)
    gains = {layer: gain_of_run(known, layer) for layer in open_layers if layer + 1 <= left}
    scanned = evidence.n_blocks > SWEPT_BLOCKS and settings.scan and evidence.next_seed(None) < settings.seeds
    of_scan = gain_of_scan(known) if scanned and evidence.n_blocks + 1 <= left else 0.0
    if len(gains) < len(open_layers) and max([*gains.values(), of_scan], default=0.0) < LEAST_RUN_GAIN:
        return _over("budget", settings)
    rates = {layer: round(gain / (layer + 1), 9) for layer, gain in gains.items()}
    if of_scan / (evidence.n_blocks + 1) > max(rates.values(), default=0.0):
        return _scan(evidence, "another run of all layers at once promises most for its cost")
    layer = min(rates, key=lambda layer: (-rates[layer], layer))
    return _fine_tune(evidence, layer, "another seed at this layer promises most for its cost")


def _over(stop: StopReason, settings: SearchSettings) -> Decision:
    return Decision(run=None, stop=stop, why=stop_reason(stop, settings))


def _fine_tune(evidence: Evidence, layer: int, why: str) -> Decision:
    run = PlannedRun(layer=layer, seed=evidence.next_seed(layer), scan=False, cost=layer + 1)
    return Decision(run=run, stop=None, why=why)


def _scan(evidence: Evidence, why: str) -> Decision:
    run = PlannedRun(layer=evidence.n_blocks, seed=evidence.next_seed(None), scan=True, cost=evidence.n_blocks + 1)
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
