"""The posterior of every layer's quality, given scores of runs: a Gaussian model in closed form. Trains nothing.

    f_l = mu + beta r_l + h_l + a_l  quality of layer l over new items and new seeds
    y   = f_l + e + s                score of a fine-tuning run at layer l

e is the error over items, with a known covariance between all scores; s is the error over seeds, independent and with
unknown variance. r_l is InfoNCE at layer l, if known, minus its mean over the blocks. h is a Gaussian process over the
layers with Matern's covariance of order 3/2, over a distance that is half depth and half -log CKA summed over the
model's adjacent layers. a_l is the layer's own deviation, large at layer 0, since embeddings without a block are of
another kind. mu is diffuse. beta is the value of a reading without training: 0 with even chance, or else normal, with
mean and deviation fitted to recorded curves under this model (`prediction/rules.json`); the scores decide between the
two. Scales and lengths have weak priors on a grid, which includes equal quality of all layers. A run may be an outlier,
whose score lies anywhere below the quality of its layer. The posterior is the mixture over all of these.

Source: Rasmussen and Williams 2006 (Gaussian Processes for Machine Learning), equations 2.25, 2.26, 2.30 and 4.17.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp

from layerprobe.errors import DataError
from layerprobe.prediction.rule import fitted_parameters
from layerprobe.search.values import Evidence, Score
from layerprobe.stats.values import best_of

Array = NDArray[np.float64]

DRAWS = 4096
"""Number of draws of the qualities; a chance of 95 % is then accurate to a third of a percentage point."""

# Points of the metric x 100; lengths are shares of the depth. A prior is the median and factor of a log-normal law.
LEVEL_SD = 100.0
"""Standard deviation of mu around the mean score."""
OWN_SD = 0.15
"""Standard deviation of a at the blocks."""
EMBEDDING_SD = 10.0
"""Standard deviation of a at layer 0."""
SPREADS, SPREAD_PRIOR = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (2.0, 2.5)
"""Standard deviations of h if blocks differ, and their prior."""
FLAT = 0.15
"""Chance that h is 0: blocks differ only by their own deviations a."""
LENGTHS = (0.16, 0.32, 0.64, 1.28)
"""Length scales of h, equally likely."""
SEED_SDS, SEED_PRIOR = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2), (0.4, 2.5)
"""Standard deviations of s, and their prior."""
NOTHING = 0.5
"""Prior chance that InfoNCE is uninformative for a model and task, in statements."""
# For statements:
CHANGE = 0.6
"""Chance of a change within few blocks."""
CHANGES, WIDTHS = (3.0, 8.0, 25.0), (1, 2, 3)
"""Its standard deviations around 0, and its widths in blocks, besides a quarter of all; equally likely."""
GROWTHS, GROWTH_PRIOR = (1.0, 4.0, 16.0), (2.0, 2.5)
"""Ratios of the deviation of s at the last layer to that at layer 0, and their prior."""
LIKE_BLOCKS, ALIKE_SD = 0.5, 1.0
"""Chance that a at layer 0 is small, and its standard deviation then."""
UNRUN_SD = 2.0
"""Extra standard deviation of a layer without a run, in bounds on how far the best one is ahead."""
OUTLIER, OUTLIER_RANGE = 0.02, 40.0
"""Chance that a run is an outlier, and the range in points below its layer's quality over which its score is then
uniform."""
OUTLIER_SETS, OUTLIER_WEIGHT = 8, 0.01
"""Largest number of sets of runs to try as outliers, and their smallest weight relative to the likeliest."""
_LOG_OUTLIER = math.log(OUTLIER / (1 - OUTLIER) / OUTLIER_RANGE)
_NEGLIGIBLE, _LEAST = 1e-3, -30.0


Outlook = tuple[Array, Array]
"""Expected future scores, without errors over seeds: the (layers, layers) covariance of f (rows) with the scores
(columns), and the covariance of the scores."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """The posterior of the quality f of each layer, and the effect of further runs."""

    means: Array
    """(layers,) means of f, x 100."""
    covariance: Array
    """(layers, layers) covariance of f."""
    draws: Array
    """(draws, layers) draws of f from the mixture with these moments."""
    run: Outlook
    """Outlook of the next seed's run at each layer."""
    endless: Outlook
    """Outlook of infinitely many runs at every layer, on all available items."""
    run_variance: Array
    """(layers,) variance of a new score over seeds."""
    items: Array
    """(layers, layers) prior covariance of the errors of the endless runs over items."""
    choices: NDArray[np.intp]
    """(choices,) layers that can be chosen, ascending; no other is the best, or within a tolerance of it."""
    tested: NDArray[np.intp]
    """Choices with a fine-tuning run that has a score."""
    starts: NDArray[np.intp]
    """(models,) indices of the models' layers 0."""

    @property
    def best_layer(self) -> int:
        """The layer with the highest mean, the earlier of equals: its expected loss is the smallest."""
        return int(self.choices[best_of(self.means[self.choices].tolist())])

    @property
    def chances(self) -> Array:
        """(layers,) chances to be the best; they sum to 1."""
        return self._chances(self.choices)

    def _chances(self, layers: NDArray[np.intp]) -> Array:
        best = layers[self.draws[:, layers].argmax(axis=1)]
        return np.bincount(best, minlength=len(self.means)) / len(self.draws)

    def chances_within(self, tolerance: float) -> Array:
        """Return the (layers,) chances to be within the tolerance, in points, of the best."""
        highest = self.draws[:, self.choices].max(axis=1, keepdims=True)
        shares = np.zeros(len(self.means))
        shares[self.choices] = (self.draws[:, self.choices] >= highest - tolerance).mean(axis=0)
        return shares

    def behind(self, tolerance: float, level: float) -> Array:
        """Return (layers,) upper bounds on the points that the best is ahead of each, one by one at the level.

        A layer without a run may differ from its expectation by more than the model assumes, see `UNRUN_SD`, unless
        its chance to be within the tolerance reaches the level without that.
        """
        apart = UNRUN_SD * standard_normal(len(self.draws), 2 * len(self.means))[:, len(self.means) :]
        apart = apart * ~np.isin(np.arange(len(self.means)), self.tested)
        highest = (f[:, self.choices].max(axis=1, keepdims=True) for f in (self.draws, self.draws + apart))
        most, wide = (np.quantile(top - self.draws, level, axis=0, method="inverted_cdf") for top in highest)
        return np.where(most <= tolerance, most, np.maximum(most, wide)).clip(min=0)

    def candidates(self, level: float, layers: NDArray[np.intp] | None = None) -> tuple[int, ...]:
        """Return the smallest set of the given layers, or of all choices, with the best one at the level, ascending."""
        if layers is not None and not len(layers):
            return ()
        chances = self._chances(self.choices if layers is None else layers)
        order = np.argsort(-chances, kind="stable")
        enough = int(np.searchsorted(np.cumsum(chances[order]), level - 1e-9)) + 1
        return tuple(sorted(order[:enough].tolist()))

    def statement(self, tolerance: float, level: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return layers that include the best, and layers that are worse than it by more than the tolerance.

        No layer is in both. Only layers with a run are called worse, compared with the best of those, and jointly at
        the level. A layer without a run leaves the set only if it adds little to the set's chance, and the previous
        layer with a run is not the best of those with one, at the level: scores may fall in any block without a run
        after it. The coverage of these sets is measured in research/statements.md.
        """
        highest = self.draws[:, self.tested].max(axis=1, keepdims=True, initial=-np.inf)
        shares, least = (self.draws < highest - tolerance).mean(axis=0), 1 - (1 - level) / max(len(self.tested), 1)
        worse = {layer for layer in self.tested.tolist() if shares[layer] >= least}
        best, best_tested = ({*self.candidates(level, layers)} for layers in (self.choices, self.tested))
        before = dict(zip(self.choices.tolist(), self._before.tolist(), strict=True))
        unseen = {layer for layer, run in before.items() if run != layer and (run < 0 or run in best_tested)}
        return tuple(sorted((best | best_tested | unseen) - worse)), tuple(sorted(worse))

    @property
    def _before(self) -> NDArray[np.intp]:
        """(choices,) last layer of the same model up to each one that has a run; -1 if there is none."""
        earlier = np.where(np.isin(self.choices, self.tested), self.choices, -1)
        first = self.starts[np.searchsorted(self.starts, self.choices, side="right") - 1]
        last = np.maximum.accumulate(earlier)
        return np.where(last >= first, last, -1)


def layer_steps(cka: ArrayLike) -> tuple[float, ...]:
    """Return -log CKA, the distance of each layer from the one before; CKA below 0.01 counts as 0.01.

    Examples:
        >>> layer_steps([1.0, 0.5])
        (0.0, 0.6931471805599453)
    """
    steps = np.abs(np.log(np.clip(np.asarray(cka, dtype=np.float64), 0.01, 1.0)))
    return tuple(steps.tolist())


@lru_cache(maxsize=16)  # shared by a decision and the next answer; of several models, only one has a new score
def posterior(evidence: Evidence, *, nothing: float = NOTHING, claims: bool = False) -> Posterior:
    """Return the posterior of every layer.

    Args:
        evidence: The scores, and readings of the model.
        nothing: Prior chance that InfoNCE is uninformative.
        claims: Allow for what would make a statement false: InfoNCE is uninformative, scores change within few blocks,
            the error of seeds grows with depth, and layer 0 is like the others. This does not improve searches.

    Any fine-tuning run may be an outlier: sets of runs are left out, the likeliest first, and the posteriors of the
    other scores are weighted by how likely these are.
    """
    rows = frozenset(row for row, score in enumerate(evidence.scores) if score.value is not None)
    if not rows:
        raise DataError("expected at least one finite score, got none: fine-tune a layer first")
    parts, logs, guesses = dict[frozenset[int], Posterior](), list[float](), {rows: 0.0}
    while guesses and len(parts) < OUTLIER_SETS:
        ordinary = max(guesses, key=guesses.__getitem__)
        if guesses.pop(ordinary) < max(logs, default=-np.inf) + math.log(OUTLIER_WEIGHT):
            break
        part, log, odds = _without_outliers(evidence, sorted(ordinary), nothing=nothing, claims=claims)
        spread = np.sqrt(part.run[1].diagonal() + part.run_variance)
        for row in rows - ordinary:
            layer, value = evidence.scores[row].layer, evidence.scores[row].value
            log += _LOG_OUTLIER + float(log_ndtr((part.means[layer] - value) / spread[layer]))
        parts[ordinary] = part
        logs.append(log)
        for row, more in odds.items():
            fewer = ordinary - {row}
            if fewer and fewer not in parts:
                guesses[fewer] = max(guesses.get(fewer, -np.inf), log + more)
    return _averaged(evidence, parts, np.exp(np.array(logs) - logsumexp(logs)))


def _without_outliers(
    evidence: Evidence, rows: Sequence[int], *, nothing: float, claims: bool
) -> tuple[Posterior, float, dict[int, float]]:
    """Return the posterior given scores without outliers, their log density, and log odds that each is an outlier.

    The odds ignore changes, which takes a tenth of the time: they only choose the sets to try.
    """
    scores, m, n = [evidence.scores[row] for row in rows], len(rows), evidence.n_blocks + 1
    infonce = fitted_parameters()
    y = np.array([score.value for score in scores])
    errors = np.array(evidence.item_covariance)[np.ix_(rows, rows)] if evidence.item_covariance else np.zeros((m, m))
    errors, of_run = _with_expected_runs(errors, scores, evidence)

    # the scores, f, and the scores of the next runs and of endless runs
    layers = np.concatenate([[score.layer for score in scores], *[np.arange(n)] * 3])
    trend = infonce_trend(evidence)[layers]
    law = _law(evidence, layers, errors, infonce.slope_sd * trend)
    nothing = nothing if trend.any() and not claims else 1.0
    grid, log_weights = _grid(nothing=nothing, claims=claims)
    expected = infonce.slope * grid[:, 3, None] * trend
    of_seeds = _seed_variances(grid, layers / evidence.n_blocks)
    roots = np.linalg.cholesky(_weighed(law[:, :m, :m], grid) + of_seeds[:, :m, None] * np.eye(m))
    level = y.mean() - expected[:, :m].mean(axis=1, keepdims=True)
    shapes, log_priors = _changes(evidence.n_blocks, CHANGE if claims else 0.0)
    stepped = np.broadcast_to(shapes[:, layers[:m]].T, (len(grid), m, len(shapes)))
    whitened = _solved(roots, np.concatenate([(y - expected[:, :m] - level)[..., None], stepped], axis=2))
    white, steps = whitened[..., 0], whitened[..., 1:]
    log_weights = log_weights - (white**2).sum(1) / 2 - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
    odds = dict(zip(rows, _outlier_odds(roots, white, log_weights), strict=True))

    # a change of each shape and size, normally distributed given a point of the grid
    precision, pull = np.einsum("gmj,gmj->gj", steps, steps), np.einsum("gmj,gm->gj", steps, white)
    variances = 1 / (1 / np.square(CHANGES) + precision[..., None])  # (points, shapes, sizes)
    log_weights = log_weights[:, None, None] + log_priors + np.log(variances / np.square(CHANGES)) / 2
    log_weights += variances * pull[..., None] ** 2 / 2
    log_density = float(logsumexp(log_weights)) - m * math.log(2 * math.pi) / 2
    weights = np.exp(np.maximum(log_weights - log_weights.max(), _LEAST))  # subnormal numbers are slow
    likely = weights.sum(axis=(1, 2)) > _NEGLIGIBLE * weights.sum(axis=(1, 2)).max()
    weights, grid = weights[likely] / weights[likely].sum(), grid[likely]
    variances, sizes = variances[likely], variances[likely] * pull[likely][..., None]
    points = weights.sum(axis=(1, 2))

    # f and the outlooks given the scores, for each point of the grid and combined
    explained = _solved(roots[likely], _weighed(law[:, :m, m:], grid))
    means = (expected[:, m:] + level)[likely] + np.einsum("gmi,gm->gi", explained, white[likely])
    layer_part, explained_f = slice(m, m + n), explained[..., :n]
    covariances = _weighed(law[:, layer_part, layer_part], grid) - explained_f.transpose(0, 2, 1) @ explained_f
    ahead, steps = shapes[:, layers[m:]], steps[likely]  # a change of size 1, and (points, scores, shapes)
    sized, squared = (weights * sizes).sum(axis=2), (weights * (variances + sizes**2)).sum(axis=2)
    moved = sized @ ahead - np.einsum("gm,gmi->gi", np.einsum("gmj,gj->gm", steps, sized), explained)
    mean = points @ means + moved.sum(axis=0)

    def summed(left: Array, right: Array) -> Array:
        return left.reshape(-1, 3 * n).T @ right.reshape(-1, 3 * n)

    apart, weighed = means - mean, steps * squared[:, None]
    beside = summed(weighed @ ahead, explained)
    covariance = np.tensordot(points @ _shares(grid), law, 1)[m:, m:] - summed(
        points[:, None, None] * explained, explained
    )
    covariance += (points[:, None] * apart).T @ apart + apart.T @ moved + moved.T @ apart
    covariance += (ahead.T * squared.sum(axis=0)) @ ahead - beside - beside.T
    covariance += summed(weighed @ steps.transpose(0, 2, 1) @ explained, explained)
    draws = _draws(weights, sizes, variances)
    part = Posterior(
        means=mean[:n],
        covariance=covariance[:n, :n],
        draws=_mixture(draws, means[:, :n], covariances, shapes, steps, explained_f),
        run=_outlook(covariance, 1, n),
        endless=_outlook(covariance, 2, n),
        run_variance=of_run + points @ _seed_variances(grid, np.arange(n) / evidence.n_blocks),
        items=errors[-n:, -n:],
        choices=np.array(evidence.contenders),
        tested=np.array(evidence.contenders),
        starts=np.zeros(1, dtype=np.intp),
    )
    return part, log_density, odds


def _outlier_odds(roots: NDArray[np.floating], white: Array, log_weights: Array) -> list[float]:
    """Return log odds that each score alone is an outlier, against none: that it lies below its expectation.

    Source, for a score given all others: Rasmussen and Williams 2006, equations 5.10 to 5.12.
    """
    inverse = _solved(roots, np.broadcast_to(np.eye(white.shape[1]), roots.shape))
    precision = np.einsum("gij,gij->gj", inverse, inverse)
    z = np.einsum("gij,gi->gj", inverse, white) / np.sqrt(precision)
    logs = log_weights[:, None] + log_ndtr(-z) + z**2 / 2 + np.log(2 * np.pi / precision) / 2
    return (_LOG_OUTLIER + logsumexp(logs, axis=0) - logsumexp(log_weights)).tolist()


def _averaged(evidence: Evidence, parts: Mapping[frozenset[int], Posterior], weights: Array) -> Posterior:
    """Return the mixture over sets of outliers; a layer is tested if one of its runs is likely not an outlier."""
    whole, chances = [*parts.values()], np.zeros(len(evidence.scores))
    for rows, weight in zip(parts, weights, strict=True):
        chances[[*rows]] += weight
    with_run = {score.layer for score, chance in zip(evidence.scores, chances, strict=True) if chance > 0.5}
    means: Array = weights @ np.stack([part.means for part in whole])

    def mixed(of: Callable[[Posterior], Array]) -> Array:
        # outlooks move with f
        moves = [np.outer(part.means - means, part.means - means) for part in whole]
        return np.tensordot(weights, np.stack([of(part) + move for part, move in zip(whole, moves, strict=True)]), 1)

    def outlook(of: Callable[[Posterior], Outlook]) -> Outlook:
        return mixed(lambda part: of(part)[0]), mixed(lambda part: of(part)[1])

    # the draws of a part are in the order of its points, so that a random share of them represents all
    order = np.random.default_rng(0).permutation(DRAWS)
    part_of_draw = np.searchsorted(np.cumsum(weights), (order + 0.5) / DRAWS).clip(max=len(whole) - 1)
    return replace(
        whole[0],
        means=means,
        covariance=mixed(lambda part: part.covariance),
        draws=np.stack([part.draws for part in whole])[part_of_draw, np.arange(DRAWS)],
        run=outlook(lambda part: part.run),
        endless=outlook(lambda part: part.endless),
        run_variance=weights @ np.stack([part.run_variance for part in whole]),
        tested=np.array([i for i in evidence.contenders if i in with_run], dtype=np.intp),
    )


def side_by_side(parts: Sequence[Posterior]) -> Posterior:
    """Return one posterior of several models, with the layers of all of them in turn.

    Errors of different models are treated as independent. Those over items are not: all models are scored on the same
    items, so that their errors are correlated. Differences between models are therefore known better than stated
    here, which is conservative: more layers stay in the set, and more runs are made before a choice is settled.
    """
    if len(parts) == 1:
        return parts[0]

    from scipy.linalg import block_diag

    def joined(of: Callable[[Posterior], Array]) -> Array:
        return np.asarray(block_diag(*map(of, parts)))

    def outlook(of: Callable[[Posterior], Outlook]) -> Outlook:
        return joined(lambda part: of(part)[0]), joined(lambda part: of(part)[1])

    starts = np.cumsum([0, *(len(part.means) for part in parts[:-1])])
    # all use the same random numbers; shuffling makes them independent
    orders = [np.random.default_rng(i).permutation(len(part.draws)) for i, part in enumerate(parts)]
    return Posterior(
        means=np.concatenate([part.means for part in parts]),
        covariance=joined(lambda part: part.covariance),
        draws=np.hstack([part.draws[order] for part, order in zip(parts, orders, strict=True)]),
        run=outlook(lambda part: part.run),
        endless=outlook(lambda part: part.endless),
        run_variance=np.concatenate([part.run_variance for part in parts]),
        items=joined(lambda part: part.items),
        choices=np.concatenate([start + part.choices for start, part in zip(starts, parts, strict=True)]),
        tested=np.concatenate([start + part.tested for start, part in zip(starts, parts, strict=True)]),
        starts=starts,
    )


def _law(evidence: Evidence, layers: NDArray[np.intp], errors: Array, slopes: Array) -> Array:
    """Return the prior covariance of scores, without errors over seeds, in parts that the grid weights.

    The (parts, scores, scores) are: the common level, InfoNCE, h of each length, layer 0. `slopes` are the standard
    deviations of InfoNCE's contribution by score, with its sign.
    """
    same = layers[:, None] == layers
    fixed = LEVEL_SD**2 + (same & (layers > 0)) * OWN_SD**2 + errors
    place = _places(evidence)[layers]
    smooth = [_matern(np.abs(place[:, None] - place) / length) for length in LENGTHS]
    return np.stack([fixed, np.outer(slopes, slopes), *smooth, 1.0 * (same & (layers == 0))])


def _weighed(parts: Array, grid: Array) -> Array:
    """Return the (points, rows, columns) covariance at points of the grid, from its parts."""
    return (_shares(grid) @ parts.reshape(len(parts), -1)).reshape(-1, *parts.shape[1:])


def _shares(grid: Array) -> Array:
    """Return the (points, parts) weights of the parts of the covariance."""
    of_length = grid[:, 1, None] == np.arange(len(LENGTHS))
    ones, h = np.ones(len(grid)), grid[:, 0, None] ** 2 * of_length
    return np.column_stack([ones, grid[:, 3], h, grid[:, 5] ** 2])


def _solved(roots: NDArray[np.floating], right: Array) -> Array:
    """Return (points, scores, columns) X with roots X = right, for lower triangular (points, scores, scores) roots."""
    solved = np.empty_like(right)
    for row in range(roots.shape[1]):
        before = (roots[:, row, None, :row] @ solved[:, :row])[:, 0]
        solved[:, row] = (right[:, row] - before) / roots[:, row, row, None]
    return solved


def _outlook(covariance: Array, part: int, n: int) -> Outlook:
    rows = slice(part * n, (part + 1) * n)
    return covariance[:n, rows], covariance[rows, rows]


@lru_cache
def standard_normal(draws: int, n: int) -> Array:
    """Return the same (draws, n) numbers at every call, so that a decision depends only on its evidence."""
    numbers = np.random.default_rng(0).standard_normal((draws, n))
    numbers.flags.writeable = False
    return numbers


def _with_expected_runs(errors: Array, scores: Sequence[Score], evidence: Evidence) -> tuple[Array, float]:
    """Return the covariance of errors over items of the scores, f and the outlooks, and the own error of a run.

    f has no error. On each fold, the error of a layer is the mean of those of its runs there, without each run's own
    part; without a run, that of the nearest layer. On a fold without scores it is independent of all others and as
    large as theirs. A run's own part, which further seeds average
    out, is estimated by the smallest eigenvalue: the part that no run shares with any other.
    """
    n, n_folds = evidence.n_blocks + 1, evidence.n_folds
    least = max(float(np.linalg.eigvalsh(errors)[0]), 0.0)
    shared = errors - least * np.eye(len(scores))
    with_scores, among = np.zeros((n_folds, len(scores), n)), np.zeros((n_folds, n, n))
    seen = sorted({evidence.fold(score.seed) for score in scores})
    for fold in seen:
        weights = np.zeros((len(scores), n))
        for layer in range(n):
            distances = [
                abs(score.layer - layer) if evidence.fold(score.seed) == fold else math.inf for score in scores
            ]
            nearest = [distance == min(distances) for distance in distances]
            weights[nearest, layer] = 1 / sum(nearest)
        with_scores[fold], among[fold] = shared @ weights, weights.T @ shared @ weights
    unseen = [fold for fold in range(n_folds) if fold not in seen]
    among[unseen] = among[seen].mean(axis=0)

    # (expected, folds) weights of the folds in the outlooks
    next_folds = [evidence.fold(evidence.next_seed(layer)) for layer in range(n)]
    folds = np.eye(n_folds)
    parts = np.concatenate([np.zeros((n, n_folds)), folds[next_folds], np.full((n, n_folds), 1 / n_folds)])
    layers = np.tile(np.arange(n), 3)
    beside = np.einsum("pf,fmp->mp", parts, with_scores[:, :, layers])
    expected = np.einsum("pf,qf,fpq->pq", parts, parts, among[:, layers[:, None], layers])
    return np.block([[errors, beside], [beside.T, expected]]), least


def infonce_trend(evidence: Evidence) -> Array:
    """Return (layers,) InfoNCE minus its mean over the blocks; layer 0, of another kind, counts as layer 1."""
    if evidence.infonce is None:
        return np.zeros(evidence.n_blocks + 1)
    blocks = np.array(evidence.infonce[1:])
    blocks -= blocks.mean()
    return np.concatenate([blocks[:1], blocks])


def _places(evidence: Evidence) -> Array:
    """Return the distance of each layer from layer 0, scaled to 1: half depth, half the model's own CKA."""
    steps = np.full(evidence.n_blocks, 1 / evidence.n_blocks)
    if evidence.steps is not None and sum(evidence.steps) > 0:
        steps = (steps + np.array(evidence.steps) / sum(evidence.steps)) / 2
    return np.concatenate([[0.0], np.cumsum(steps)])


def _matern(distance: Array) -> Array:
    scaled = np.sqrt(3) * distance
    return (1 + scaled) * np.exp(-scaled)


@lru_cache
def _grid(*, nothing: float, claims: bool) -> tuple[Array, Array]:
    """Return the (points, 6) grid and its log priors.

    The columns are the spread, the index of the length, the deviation of seeds at half the depth, whether InfoNCE is
    informative (not so with the chance `nothing`), the ratio of the deviation of seeds at the last layer to that at
    layer 0, and the deviation of a at layer 0.
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
    informative = [(informs, np.log(chance)) for informs, chance in ((0.0, nothing), (1.0, 1 - nothing)) if chance > 0]
    growths = log_prior(GROWTHS, *GROWTH_PRIOR) if claims else [(1.0, 0.0)]
    embeddings = [(EMBEDDING_SD, np.log(1 - LIKE_BLOCKS)), (ALIKE_SD, np.log(LIKE_BLOCKS))][: 1 + claims]
    points = list(product(curves, log_prior(SEED_SDS, *SEED_PRIOR), informative, growths, embeddings))
    grid = np.array([(*curve[0], *(part[0] for part in parts)) for curve, *parts in points])
    return grid, np.array([sum(log for _, log in point) for point in points])


def _draws(weights: Array, sizes: Array, variances: Array) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Draw points, shapes and sizes of a change from their (points, shapes, sizes) weights, in order of the points."""
    drawn = np.searchsorted(np.cumsum(weights), (np.arange(DRAWS) + 0.5) / DRAWS).clip(max=weights.size - 1)
    point, shape, _ = np.unravel_index(drawn, weights.shape)
    noise = standard_normal(DRAWS, 1)[:, 0]
    return point, shape, sizes.ravel()[drawn] + np.sqrt(variances.ravel()[drawn]) * noise


def _mixture(
    drawn: tuple[NDArray[np.intp], NDArray[np.intp], Array],
    means: Array,
    covariances: Array,
    shapes: Array,
    steps: Array,
    explained: Array,
) -> Array:
    """Draw (draws, layers) f from a mixture of Gaussians, by points of the grid, and shapes and sizes of a change.

    Means and covariances, by point, are those without a change; `shapes` are (shapes, layers), `steps` the same at the
    whitened scores, (points, scores, shapes), and `explained` their effect on f, (points, scores, layers).
    """
    point, shape, size = drawn
    noise = standard_normal(DRAWS, means.shape[1])
    numbers, place = np.unique(point, return_inverse=True)
    roots = np.linalg.cholesky(covariances[numbers]).transpose(0, 2, 1)
    f = np.empty_like(noise)
    for rows in np.split(np.arange(DRAWS), DRAWS // 512):  # one root per draw takes memory
        of, change = point[rows], shape[rows]
        moves = shapes[change] - (steps[of, :, change][:, None] @ explained[of])[:, 0]
        f[rows] = means[of] + size[rows, None] * moves + (noise[rows, None] @ roots[place[rows]])[:, 0]
    return f


def _changes(n_blocks: int, chance: float) -> tuple[Array, Array]:
    """Return (shapes, layers) from 0 to 1 and (shapes, sizes) log priors: no change, and one over some blocks.

    A change over w blocks from block k is 0 up to layer k - 1, and 1 from layer k + w - 1. The first block has none,
    since layer 0 has its own level.
    """
    layers, shapes, chances = np.arange(n_blocks + 1), [np.zeros(n_blocks + 1)], [1 - chance]
    widths = {width for width in (*WIDTHS, round(n_blocks / 4)) if 0 < width < n_blocks} if chance else set()
    for width in sorted(widths):
        begins = range(2, n_blocks - width + 2)
        shapes += [np.clip((layers - begin + 1) / width, 0.0, 1.0) for begin in begins]
        chances += [chance / len(widths) / len(begins)] * len(begins)
    return np.array(shapes), np.log(np.array(chances))[:, None] - np.log(len(CHANGES))


def _seed_variances(grid: Array, depth: Array) -> Array:
    """Return (points, scores) variances over seeds at depths from 0 to 1."""
    return np.square(grid[:, 2, None] * grid[:, 4, None] ** (depth - 0.5))
