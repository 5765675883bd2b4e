"""Scores of runs -> what they say about every layer: a Gaussian model in closed form. Knows numbers; trains nothing.

    f_l = mu + beta r_l + h_l + a_l                 quality of layer l over new items and new seeds
    y   = f_l + e + s                               score of a fine-tuning run at layer l
    y   = f_l + b + c (l / L - 1/2) + g_l + e + s   score of a scan at layer l of L

e is the error over items, of known covariance between all scores; s is that over seeds, independent and of unknown
variance. r_l is InfoNCE at layer l, where it is known, less its mean over the blocks. h and g are Gaussian processes
over the layers with Matern's covariance of order 3/2: h over a distance that is half depth and half -log CKA summed
over the model's own neighbouring layers, the bias g of the scan over depth. a_l is what a layer has of its own; at
layer 0 that is much, because embeddings without a block are of another kind. mu is diffuse, b and c are weakly so. beta
says how much a reading without training is worth: its mean and deviation were fitted to recorded curves under this
model, and stand in `prediction/rules.json`. The scales and lengths have weak priors on a grid; the posterior is the
mixture over it.

Source: Rasmussen and Williams 2006 (Gaussian Processes for Machine Learning), equations 2.25, 2.26, 2.30 and 4.17.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
OWN_SD, EMBEDDING_SD = 0.3, 10.0
"""Of a at the blocks, and at layer 0."""
SCAN_LEVEL_SD, SCAN_SLOPE_SD, SCAN_EMBEDDING_SD = 3.0, 4.0, 3.0
"""Of b, of c, and of what the bias of layer 0 has of its own."""
SPREADS, SPREAD_PRIOR = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (2.0, 3.0)
"""Standard deviation of h."""
LENGTHS = (0.08, 0.16, 0.32, 0.64)
"""Of h; all are as likely."""
SCAN_SPREADS, SCAN_SPREAD_PRIOR = (0.4, 0.8, 1.6, 3.2, 6.4), (1.5, 2.5)
"""Standard deviation of g."""
SCAN_LENGTH = 0.5
"""Of g."""
SEED_SDS, SEED_PRIOR = (0.2, 0.4, 0.8, 1.6, 3.2), (0.7, 2.0)
"""Standard deviation of s."""
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
    run_variance: float
    """Of a new score, over seeds."""
    items: Array
    """(layers, layers): errors of the endless runs over items, before any score is known."""
    first_layer: int = 0
    """The first layer that can be chosen; no earlier one is the best, or within a tolerance of it."""

    @property
    def best_layer(self) -> int:
        """The layer with the highest mean, the earlier one of equals: it is expected to lose least."""
        return self.first_layer + best_of(self.means[self.first_layer :].tolist())

    @property
    def chances(self) -> Array:
        """(layers,): of each to be the best; they sum to 1."""
        best = self.first_layer + self.draws[:, self.first_layer :].argmax(axis=1)
        shares: Array = np.bincount(best, minlength=len(self.means)) / len(self.draws)
        return shares

    def chances_within(self, tolerance: float) -> Array:
        """Return (layers,): of each to be no worse than the best by more than the tolerance, in points."""
        highest = self.draws[:, self.first_layer :].max(axis=1, keepdims=True)
        shares: Array = (self.draws >= highest - tolerance).mean(axis=0)
        shares[: self.first_layer] = 0
        return shares

    def candidates(self, level: float) -> tuple[int, ...]:
        """Return the fewest layers whose chances to be the best sum to at least the level, ascending."""
        chances = self.chances
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


def posterior(evidence: Evidence) -> Posterior:
    """Return what the scores say about every layer.

    Raises:
        DataError: If no score is finite.
    """
    rows = [row for row, score in enumerate(evidence.scores) if score.value is not None]
    if not rows:
        raise DataError("expected at least one finite score, got none: scan the model, or fine-tune a layer")
    scores, m, n = [evidence.scores[row] for row in rows], len(rows), evidence.n_blocks + 1
    infonce = fitted_parameters().search
    expected = infonce.slope * infonce_trend(evidence)
    y = np.array([score.value for score in scores]) - expected[[score.layer for score in scores]]
    errors = np.array(evidence.item_covariance)[np.ix_(rows, rows)] if evidence.item_covariance else np.zeros((m, m))
    errors, own = _with_expected_runs(errors, scores, evidence)

    # the scores, f, and the scores of the next runs, the next scan, and runs without end
    layers = np.concatenate([[score.layer for score in scores], *[np.arange(n)] * 4])
    scan = np.concatenate([[score.scan for score in scores], np.repeat([0, 0, 1, 0], n)])
    joint = _joint_law(evidence, layers, scan, errors, slope_sd=infonce.slope_sd)
    grid, log_weights = _grid(seeing_scan=bool(scan.any()))
    root = np.linalg.cholesky(joint(grid, slice(m)) + grid[:, 3, None, None] ** 2 * np.eye(m))
    white = np.linalg.solve(root, np.broadcast_to((y - y.mean())[:, None], (len(grid), m, 1)))[..., 0]
    log_weights = log_weights - (white**2).sum(1) / 2 - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)
    weights = np.exp(log_weights - log_weights.max())
    kept = weights > _NEGLIGIBLE
    weights = weights[kept] / weights[kept].sum()

    # f and what is expected given the scores, for each point of the grid and together
    prior = joint(grid[kept], slice(None))
    known = np.linalg.solve(root[kept], prior[:, :m, m:])
    means = expected[layers[m:]] + y.mean() + np.einsum("gmi,gm->gi", known, white[kept])
    covariances = prior[:, m:, m:] - known.transpose(0, 2, 1) @ known
    mean = weights @ means
    apart = means - mean
    covariance = np.einsum("g,gij->ij", weights, covariances) + (weights[:, None] * apart).T @ apart
    return Posterior(
        means=mean[:n],
        covariance=covariance[:n, :n],
        draws=_mixture(weights, means[:, :n], covariances[:, :n, :n]),
        run=_outlook(covariance, 1, n),
        scan=_outlook(covariance, 2, n),
        endless=_outlook(covariance, 3, n),
        run_variance=own + float(weights @ grid[kept, 3] ** 2),
        items=errors[-n:, -n:],
        first_layer=evidence.first_layer,
    )


def score_covariances(evidence: Evidence) -> tuple[Array, Array]:
    """Return what is expected of finite scores of fine-tuning runs before they are known, but for what InfoNCE tells.

    Returns:
        (points, scores, scores) covariance for each point of the grid of scales and lengths, and (points,) log priors.
    """
    layers = np.array([score.layer for score in evidence.scores])
    joint = _joint_law(evidence, layers, np.zeros(len(layers)), np.zeros((len(layers), len(layers))), slope_sd=0.0)
    grid, log_priors = _grid(seeing_scan=False)
    return joint(grid, slice(None)) + grid[:, 3, None, None] ** 2 * np.eye(len(layers)), log_priors


def _joint_law(
    evidence: Evidence, layers: NDArray[np.intp], scan: NDArray[np.float64], errors: Array, *, slope_sd: float
) -> Callable[[Array, slice], Array]:
    """Return the covariance of scores by points of the grid and the part of them that is looked at, but for seeds.

    Args:
        evidence: Of the model.
        layers: (scores,) of each.
        scan: (scores,) 1 for those of scans, 0 for others.
        errors: (scores, scores) covariance over items.
        slope_sd: What InfoNCE is worth varies by so much.
    """
    same, depth, trend = layers[:, None] == layers, layers / evidence.n_blocks, infonce_trend(evidence)[layers]
    fixed = LEVEL_SD**2 + same * np.where(layers == 0, EMBEDDING_SD, OWN_SD) ** 2 + errors
    fixed += np.outer(scan, scan) * (
        SCAN_LEVEL_SD**2
        + SCAN_SLOPE_SD**2 * np.outer(depth - 0.5, depth - 0.5)
        + SCAN_EMBEDDING_SD**2 * (same & (layers == 0))
    )
    fixed += slope_sd**2 * np.outer(trend, trend)
    place = _places(evidence)[layers]
    smooth = np.stack([_matern(np.abs(place[:, None] - place) / length) for length in LENGTHS])
    bias = np.outer(scan, scan) * _matern(np.abs(depth[:, None] - depth) / SCAN_LENGTH)

    def joint(grid: Array, part: slice) -> Array:
        spread, length, scan_spread, _ = grid.T[..., None, None]
        which = length[:, 0, 0].astype(int)
        total: Array = fixed[part, part] + spread**2 * smooth[which, part, part] + scan_spread**2 * bias[part, part]
        return total

    return joint


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


def _grid(*, seeing_scan: bool) -> tuple[Array, Array]:
    """Return (points, 4): spread, index of the length, spread of the scan's bias, seeds' deviation; and log priors."""
    scan_spreads = SCAN_SPREADS if seeing_scan else SCAN_SPREADS[:1]
    grid = np.array(list(product(SPREADS, range(len(LENGTHS)), scan_spreads, SEED_SDS)))
    priors: Iterable[tuple[int, tuple[float, float]]] = ((0, SPREAD_PRIOR), (2, SCAN_SPREAD_PRIOR), (3, SEED_PRIOR))
    log_prior = sum(
        -((np.log(grid[:, column] / median) / np.log(factor)) ** 2) / 2 for column, (median, factor) in priors
    )
    return grid, np.asarray(log_prior)


def _mixture(weights: Array, means: Array, covariances: Array) -> Array:
    """Draw from a mixture of Gaussians, from each in proportion to its weight."""
    ends = np.rint(np.cumsum(weights) * DRAWS).astype(int)
    counts = np.diff(ends, prepend=0)
    drawn, n = counts > 0, means.shape[1]
    noise = np.split(standard_normal(DRAWS, n), ends[drawn][:-1])
    parts = zip(means[drawn], square_root(covariances[drawn]), noise, strict=True)
    return np.concatenate([mean + part @ root for mean, root, part in parts])
