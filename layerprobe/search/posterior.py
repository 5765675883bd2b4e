"""Scores of runs -> what they say about every layer: a Gaussian model in closed form. Knows numbers; trains nothing.

    f_l = mu + beta r_l + h_l + a_l                 quality of layer l over new items and new seeds
    y   = f_l + e + s                               score of a fine-tuning run at layer l
    y   = f_l + b + c (l / L - 1/2) + g_l + e + s   score of a scan at layer l of L

e is the error over items, of known covariance between all scores; s is that over seeds, independent and of unknown
variance. r_l is InfoNCE at layer l, where it is known, less its mean over the blocks. h and g are Gaussian processes
over the layers with Matern's covariance of order 3/2: h over a distance that is half depth and half -log CKA summed
over the model's own neighbouring layers, the bias g of the scan over depth. a_l is what a layer has of its own; at
layer 0 that is much, because embeddings without a block are of another kind. mu is diffuse, b and c are weakly so. beta
says how much a reading without training is worth: as likely as not nothing, else a number whose mean and deviation were
fitted to recorded curves under this model and stand in `prediction/rules.json`; the scores decide between the two.
The scales and lengths have weak priors on a grid, which admits that all layers are as good; the posterior is the
mixture over all of that.

Source: Rasmussen and Williams 2006 (Gaussian Processes for Machine Learning), equations 2.25, 2.26, 2.30 and 4.17.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from layerprobe.errors import DataError
from layerprobe.metrics.seeds import best_of
from layerprobe.prediction.parameters import fitted_parameters
from layerprobe.search.values import Evidence, Score

Array = NDArray[np.float64]

DRAWS = 4096
"""Of the qualities; a chance of 95 % is then right to a third of a point of a hundred."""

# Points of the metric x 100; lengths are shares of the depth. A prior is the median and factor of a log-normal law.
LEVEL_SD = 100.0
"""Of mu, about the mean score."""
OWN_SD, EMBEDDING_SD = 0.15, 10.0
"""Of a at the blocks, and at layer 0."""
SCAN_LEVEL_SD, SCAN_SLOPE_SD, SCAN_EMBEDDING_SD = 3.0, 4.0, 3.0
"""Of b, of c, and of what the bias of layer 0 has of its own."""
SPREADS, SPREAD_PRIOR = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (2.0, 2.5)
"""Standard deviation of h, where blocks differ."""
FLAT = 0.15
"""Chance that h is 0: no block is better than another, but for what each has of its own."""
LENGTHS = (0.16, 0.32, 0.64, 1.28)
"""Of h; all are as likely."""
SCAN_SPREADS, SCAN_SPREAD_PRIOR = (0.4, 0.8, 1.6, 3.2, 6.4), (1.5, 2.5)
"""Standard deviation of g."""
SCAN_LENGTH = 0.5
"""Of g."""
SEED_SDS, SEED_PRIOR = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2), (0.4, 2.5)
"""Standard deviation of s."""
NOTHING = 0.5
"""Chance that InfoNCE says nothing about a model and task, before any score is known, in what is said."""
WORSE_SHARE = 0.25
"""Of the error that a statement allows itself, for layers that it says are worse; the rest is for the best one."""
_NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlook:
    """What is expected of scores that are not there yet, but for what seeds add to each."""

    cross: Array
    """(layers, layers): covariance of f, in rows, with the scores, in columns."""
    seen: Array
    """(layers, layers): covariance of the scores."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """What is known of the quality f of each layer, and how further runs would move that."""

    means: Array
    """(layers,): of f, x 100."""
    covariance: Array
    """(layers, layers): of f."""
    draws: Array
    """(draws, layers): f, from the mixture whose moments those are."""
    run: Outlook
    """Of the next seed's run at each layer."""
    scan: Outlook
    """Of the next seed's scan."""
    endless: Outlook
    """Of runs without end at every layer, on all items that there are."""
    run_variance: Array
    """(layers,): of a new score, over seeds."""
    items: Array
    """(layers, layers): errors of the endless runs over items, before any score is known."""
    choices: NDArray[np.intp]
    """(choices,): the layers that can be chosen, ascending; no other is the best, or within a tolerance of it."""

    @property
    def best_layer(self) -> int:
        """The layer with the highest mean, the earlier one of equals: it is expected to lose least."""
        return int(self.choices[best_of(self.means[self.choices].tolist())])

    @property
    def chances(self) -> Array:
        """(layers,): of each to be the best; they sum to 1."""
        best = self.choices[self.draws[:, self.choices].argmax(axis=1)]
        shares: Array = np.bincount(best, minlength=len(self.means)) / len(self.draws)
        return shares

    def chances_within(self, tolerance: float) -> Array:
        """Return (layers,): of each to be no worse than the best by more than the tolerance, in points."""
        highest = self.draws[:, self.choices].max(axis=1, keepdims=True)
        shares = np.zeros(len(self.means))
        shares[self.choices] = (self.draws[:, self.choices] >= highest - tolerance).mean(axis=0)
        return shares

    def candidates(self, level: float) -> tuple[int, ...]:
        """Return the fewest layers of which one is the best with at least the level, ascending."""
        return _fewest(self.chances, level)

    def statement(self, tolerance: float, level: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return layers of which one is the best, and layers that are worse than it by more than the tolerance.

        Both are true together with at least the level, and no layer is in both.
        """
        chosen = self.draws[:, self.choices]
        below = self.draws < chosen.max(axis=1, keepdims=True) - tolerance
        true = np.ones(len(self.draws), dtype=bool)
        worse = []
        for layer in sorted(self.choices.tolist(), key=lambda layer: (-below[:, layer].sum(), layer)):
            if (true & below[:, layer]).mean() < 1 - WORSE_SHARE * (1 - level):
                break
            true &= below[:, layer]
            worse.append(layer)
        best = self.choices[chosen[true].argmax(axis=1)]
        return _fewest(np.bincount(best, minlength=len(self.means)) / len(self.draws), level), tuple(sorted(worse))


def _fewest(chances: Array, level: float) -> tuple[int, ...]:
    order = np.argsort(-chances, kind="stable")
    enough = int(np.searchsorted(np.cumsum(chances[order]), level - 1e-9)) + 1
    return tuple(sorted(order[:enough].tolist()))


def layer_steps(cka: ArrayLike) -> tuple[float, ...]:
    """Return -log CKA, how far each layer lies from the one before; CKA below 0.01 counts as 0.01.

    Examples:
        >>> layer_steps([1.0, 0.5])
        (0.0, 0.6931471805599453)
    """
    steps = np.abs(np.log(np.clip(np.asarray(cka, dtype=np.float64), 0.01, 1.0)))
    return tuple(steps.tolist())


def posterior(evidence: Evidence, *, nothing: float = NOTHING) -> Posterior:
    """Return what the scores say about every layer.

    Args:
        evidence: The scores, and readings of the model.
        nothing: Chance that InfoNCE says nothing, before any score is known.

    Raises:
        DataError: If no score is finite.
    """
    rows = [row for row, score in enumerate(evidence.scores) if score.value is not None]
    if not rows:
        raise DataError("expected at least one finite score, got none: scan the model, or fine-tune a layer")
    scores, m, n = [evidence.scores[row] for row in rows], len(rows), evidence.n_blocks + 1
    infonce = fitted_parameters().search
    y = np.array([score.value for score in scores])
    errors = np.array(evidence.item_covariance)[np.ix_(rows, rows)] if evidence.item_covariance else np.zeros((m, m))
    errors, own = _with_expected_runs(errors, scores, evidence)

    # the scores, f, and the scores of the next runs, the next scan, and runs without end
    layers = np.concatenate([[score.layer for score in scores], *[np.arange(n)] * 4])
    scan = np.concatenate([[score.scan for score in scores], np.repeat([0, 0, 1, 0], n)])
    trend = infonce_trend(evidence)[layers]
    law = _Law.of(evidence, layers, scan, errors, told=infonce.slope_sd * trend)
    grid, log_weights = _grid(seeing_scan=bool(scan.any()), nothing=nothing if trend.any() else 1.0)
    expected = infonce.slope * grid[:, 4, None] * trend
    root = np.linalg.cholesky(law.at(grid, slice(m), slice(m)) + grid[:, 3, None, None] ** 2 * np.eye(m))
    level = y.mean() - expected[:, :m].mean(axis=1, keepdims=True)
    white = np.linalg.solve(root, (y - expected[:, :m] - level)[..., None])[..., 0]
    log_weights = log_weights - (white**2).sum(1) / 2 - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)
    weights = np.exp(log_weights - log_weights.max())
    kept = weights > _NEGLIGIBLE
    weights, grid = weights[kept] / weights[kept].sum(), grid[kept]

    # f and what is expected given the scores, for each point of the grid and together
    known = np.linalg.solve(root[kept], law.at(grid, slice(m), slice(m, None)))
    means = (expected[:, m:] + level)[kept] + np.einsum("gmi,gm->gi", known, white[kept])
    covariances = law.at(grid, slice(m, m + n), slice(m, m + n)) - known[..., :n].transpose(0, 2, 1) @ known[..., :n]
    mean = weights @ means
    apart, told = (
        np.sqrt(weights)[:, None] * (means - mean),
        (np.sqrt(weights)[:, None, None] * known).reshape(-1, 4 * n),
    )
    covariance = law.mean(grid, weights)[m:, m:] - told.T @ told + apart.T @ apart
    return Posterior(
        means=mean[:n],
        covariance=covariance[:n, :n],
        draws=_mixture(weights, means[:, :n], covariances),
        run=_outlook(covariance, 1, n),
        scan=_outlook(covariance, 2, n),
        endless=_outlook(covariance, 3, n),
        run_variance=np.full(n, own + float(weights @ grid[:, 3] ** 2)),
        items=errors[-n:, -n:],
        choices=np.array(evidence.contenders),
    )


def side_by_side(parts: Sequence[Posterior]) -> Posterior:
    """Return what is known of several models as of one, whose layers are theirs, one model behind the other.

    The errors of different models are taken for independent. Those over items are not: all models score the same
    items, by which their errors rise and fall together. So differences between models are known better than is said
    here, which is on the careful side: more layers stay in the set, and more runs are made before one is settled.
    """
    if len(parts) == 1:
        return parts[0]

    from scipy.linalg import block_diag

    def joined(of: Callable[[Posterior], Array]) -> Array:
        return np.asarray(block_diag(*map(of, parts)))

    def outlook(of: Callable[[Posterior], Outlook]) -> Outlook:
        return Outlook(cross=joined(lambda each: of(each).cross), seen=joined(lambda each: of(each).seen))

    starts = np.cumsum([0, *(len(each.means) for each in parts[:-1])])
    # all are drawn from the same numbers, which another order makes independent
    orders = [np.random.default_rng(i).permutation(len(each.draws)) for i, each in enumerate(parts)]
    return Posterior(
        means=np.concatenate([each.means for each in parts]),
        covariance=joined(lambda each: each.covariance),
        draws=np.hstack([each.draws[order] for each, order in zip(parts, orders, strict=True)]),
        run=outlook(lambda each: each.run),
        scan=outlook(lambda each: each.scan),
        endless=outlook(lambda each: each.endless),
        run_variance=np.concatenate([each.run_variance for each in parts]),
        items=joined(lambda each: each.items),
        choices=np.concatenate([start + each.choices for start, each in zip(starts, parts, strict=True)]),
    )


def score_covariances(evidence: Evidence) -> tuple[Array, Array]:
    """Return what is expected of finite scores of fine-tuning runs before they are known, but for what InfoNCE tells.

    Returns:
        (points, scores, scores) covariance for each point of the grid of scales and lengths, and (points,) log priors.
    """
    layers = np.array([score.layer for score in evidence.scores])
    n, everything = len(layers), slice(None)
    law = _Law.of(evidence, layers, np.zeros(n), np.zeros((n, n)), told=np.zeros(n))
    grid, log_priors = _grid(seeing_scan=False, nothing=1.0)
    return law.at(grid, everything, everything) + grid[:, 3, None, None] ** 2 * np.eye(n), log_priors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Law:
    """The covariance of scores before they are known, but for what seeds add: a sum that points of the grid weigh."""

    parts: Array
    """(parts, scores, scores): what is the same everywhere, what InfoNCE tells, h of each length, g."""

    @classmethod
    def of(
        cls, evidence: Evidence, layers: NDArray[np.intp], scan: NDArray[np.float64], errors: Array, *, told: Array
    ) -> Self:
        """Return that of scores.

        Args:
            evidence: Of the model.
            layers: (scores,) of each.
            scan: (scores,) 1 for those of scans, 0 for others.
            errors: (scores, scores) covariance over items.
            told: (scores,) standard deviation of what InfoNCE is worth at each, with its sign.
        """
        same, depth = layers[:, None] == layers, layers / evidence.n_blocks
        fixed = LEVEL_SD**2 + same * np.where(layers == 0, EMBEDDING_SD, OWN_SD) ** 2 + errors
        fixed += np.outer(scan, scan) * (
            SCAN_LEVEL_SD**2
            + SCAN_SLOPE_SD**2 * np.outer(depth - 0.5, depth - 0.5)
            + SCAN_EMBEDDING_SD**2 * (same & (layers == 0))
        )
        place = _places(evidence)[layers]
        smooth = [_matern(np.abs(place[:, None] - place) / length) for length in LENGTHS]
        bias = np.outer(scan, scan) * _matern(np.abs(depth[:, None] - depth) / SCAN_LENGTH)
        return cls(parts=np.stack([fixed, np.outer(told, told), *smooth, bias]))

    def at(self, grid: Array, rows: slice, columns: slice) -> Array:
        """Return (points, rows, columns) at points of the grid."""
        parts = self.parts[:, rows, columns]
        return (_shares(grid) @ parts.reshape(len(parts), -1)).reshape(-1, *parts.shape[1:])

    def mean(self, grid: Array, weights: Array) -> Array:
        """Return (scores, scores): the mean over points of the grid."""
        return np.tensordot(weights @ _shares(grid), self.parts, 1)


def _shares(grid: Array) -> Array:
    """Return (points, parts): what each part of the law counts."""
    of_length = grid[:, 1, None] == np.arange(len(LENGTHS))
    return np.column_stack([np.ones(len(grid)), grid[:, 4], grid[:, 0, None] ** 2 * of_length, grid[:, 2] ** 2])


def _outlook(covariance: Array, part: int, n: int) -> Outlook:
    there = slice(part * n, (part + 1) * n)
    return Outlook(cross=covariance[:n, there], seen=covariance[there, there])


def square_root(covariance: Array) -> Array:
    """Return the symmetric square root of a covariance, or of a stack of them; negative eigenvalues count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    root: Array = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :] @ np.swapaxes(vectors, -1, -2)
    return root


def standard_normal(draws: int, n: int) -> Array:
    """Return the same (draws, n) numbers at every call, so that a decision depends on nothing but its evidence."""
    return np.random.default_rng(0).standard_normal((draws, n))


def _with_expected_runs(errors: Array, scores: Sequence[Score], evidence: Evidence) -> tuple[Array, float]:
    """Return the covariance of errors over items of the scores, f and what is expected, and what a run has of its own.

    f has none. On each fold the error of a layer is taken for the mean of those of its runs there, without what each
    run has of its own; where there is no run, of the scan's there, and else of the nearest layer's. On a fold without
    scores it is independent of all others and like that on the others. A run's own part, which further seeds average
    out, is taken for the smallest eigenvalue: what no run shares with any other.
    """
    n, n_folds = evidence.n_blocks + 1, evidence.n_folds
    own = max(float(np.linalg.eigvalsh(errors)[0]), 0.0)
    shared = errors - own * np.eye(len(scores))
    with_scores, among = np.zeros((n_folds, len(scores), n)), np.zeros((n_folds, n, n))
    seen = sorted({evidence.fold(score.seed) for score in scores})
    for fold in seen:
        weights = np.zeros((len(scores), n))
        for layer in range(n):
            distances = [
                (abs(score.layer - layer), score.scan) if evidence.fold(score.seed) == fold else (math.inf, True)
                for score in scores
            ]
            nearest = [distance == min(distances) for distance in distances]
            weights[nearest, layer] = 1 / sum(nearest)
        with_scores[fold], among[fold] = shared @ weights, weights.T @ shared @ weights
    unseen = [fold for fold in range(n_folds) if fold not in seen]
    among[unseen] = among[seen].mean(axis=0)

    # how much each fold counts in what is expected: (expected, folds)
    next_folds = [evidence.fold(evidence.next_seed(layer)) for layer in range(n)]
    scan_fold = evidence.fold(evidence.next_seed(None))
    folds = np.eye(n_folds)
    parts = np.concatenate(
        [np.zeros((n, n_folds)), folds[next_folds], folds[[scan_fold] * n], np.full((n, n_folds), 1 / n_folds)]
    )
    layers = np.tile(np.arange(n), 4)
    beside = np.einsum("pf,fmp->mp", parts, with_scores[:, :, layers])
    expected = np.einsum("pf,qf,fpq->pq", parts, parts, among[:, layers[:, None], layers])
    return np.block([[errors, beside], [beside.T, expected]]), own


def infonce_trend(evidence: Evidence) -> Array:
    """Return (layers,) InfoNCE less its mean over the blocks; layer 0, of another kind, counts as layer 1."""
    if evidence.infonce is None:
        return np.zeros(evidence.n_blocks + 1)
    blocks = np.array(evidence.infonce[1:])
    blocks -= blocks.mean()
    return np.concatenate([blocks[:1], blocks])


def _places(evidence: Evidence) -> Array:
    """Return how far each layer lies from layer 0, of 1: half by depth, half by the model's own CKA."""
    steps = np.full(evidence.n_blocks, 1 / evidence.n_blocks)
    if evidence.steps is not None and sum(evidence.steps) > 0:
        steps = (steps + np.array(evidence.steps) / sum(evidence.steps)) / 2
    return np.concatenate([[0.0], np.cumsum(steps)])


def _matern(distance: Array) -> Array:
    scaled = np.sqrt(3) * distance
    correlation: Array = (1 + scaled) * np.exp(-scaled)
    return correlation


def _grid(*, seeing_scan: bool, nothing: float) -> tuple[Array, Array]:
    """Return (points, 5) and their log priors.

    The columns are the spread, the index of the length, the spread of the scan's bias, the deviation of seeds, and
    whether InfoNCE says anything, which it does not with the chance `nothing`.
    """

    def log_prior(values: Iterable[float], median: float, factor: float) -> list[tuple[float, float]]:
        logs = -((np.log(np.array(list(values)) / median) / np.log(factor)) ** 2) / 2
        return list(zip(values, logs - logsumexp(logs), strict=True))

    curves = [
        ((spread, length), log + np.log((1 - FLAT) / len(LENGTHS)))
        for spread, log in log_prior(SPREADS, *SPREAD_PRIOR)
        for length in range(len(LENGTHS))
    ]
    if FLAT:
        curves.append(((0.0, 0), np.log(FLAT)))
    scans = log_prior(SCAN_SPREADS if seeing_scan else SCAN_SPREADS[:1], *SCAN_SPREAD_PRIOR)
    told = [(told, np.log(chance)) for told, chance in ((0.0, nothing), (1.0, 1 - nothing)) if chance > 0]
    points = list(product(curves, scans, log_prior(SEED_SDS, *SEED_PRIOR), told))
    grid = np.array([(*curve[0], scan[0], seed[0], reading[0]) for curve, scan, seed, reading in points])
    return grid, np.array([sum(log for _, log in point) for point in points])


def _mixture(weights: Array, means: Array, covariances: Array) -> Array:
    """Draw from a mixture of Gaussians, from each in proportion to its weight."""
    ends = np.rint(np.cumsum(weights) * DRAWS).astype(int)
    counts = np.diff(ends, prepend=0)
    drawn, n = counts > 0, means.shape[1]
    noise = np.split(standard_normal(DRAWS, n), ends[drawn][:-1])
    parts = zip(means[drawn], square_root(covariances[drawn]), noise, strict=True)
    return np.concatenate([mean + part @ root for mean, root, part in parts])
