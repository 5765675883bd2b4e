import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from layerprobe.errors import DataError
from layerprobe.search import posterior as model
from layerprobe.search.posterior import Array, posterior
from layerprobe.search.values import Evidence, Score
from tests.search.worlds import world


@pytest.fixture(autouse=True)
def other_grids() -> Iterator[None]:
    """What is kept of one grid is not of another."""
    for kept in (model.posterior, model._grid):
        kept.cache_clear()
    yield
    for kept in (model.posterior, model._grid):
        kept.cache_clear()


def some_evidence() -> Evidence:
    """Runs at four layers of 5 blocks, one of them with two seeds."""
    evidence = world(np.random.default_rng(0), 5).evidence([(5, 0), (2, 0), (4, 0), (2, 1), (0, 0)])
    return replace(evidence, infonce=(9.0, 2.0, 2.5, 2.2, 1.6, 1.2))


def matern(distance: float) -> float:
    return (1 + math.sqrt(3) * distance) * math.exp(-math.sqrt(3) * distance)


def by_conditioning(evidence: Evidence, spread: float, length: float, seed_sd: float):
    """Mean and covariance of f by the definition of the model, entry by entry, and the log density of the scores."""
    L, scores = evidence.n_blocks, evidence.scores
    place = [0.0]
    for step in evidence.steps or ():
        place.append(place[-1] + (1 / L + step / sum(evidence.steps or ())) / 2)

    blocks = evidence.infonce[1:] if evidence.infonce else (0.0,) * L
    reading = [value - sum(blocks) / L for value in (blocks[0], *blocks)]  # layer 0 counts as layer 1

    def quality(i: int, j: int) -> float:
        own = (10.0**2 if i == 0 else 0.15**2) if i == j else 0.0
        own += 2.0**2 * reading[i] * reading[j]
        return 100.0**2 + spread**2 * matern(abs(place[i] - place[j]) / length) + own

    f = np.array([[quality(i, j) for j in range(L + 1)] for i in range(L + 1)])
    f_y = np.array([[quality(i, score.layer) for score in scores] for i in range(L + 1)])
    y = np.array(evidence.item_covariance) + seed_sd**2 * np.eye(len(scores))
    for a, b in product(range(len(scores)), repeat=2):
        y[a, b] += quality(scores[a].layer, scores[b].layer)
    values = np.array([score.value - 3.0 * reading[score.layer] for score in scores])
    mean = 3.0 * np.array(reading) + values.mean() + f_y @ np.linalg.inv(y) @ (values - values.mean())
    density = stats.multivariate_normal(np.full(len(values), values.mean()), y).logpdf(values)
    return mean, f - f_y @ np.linalg.inv(y) @ f_y.T, density


def set_grid(monkeypatch: pytest.MonkeyPatch, **grid: tuple[float, ...]) -> None:
    monkeypatch.setattr(model, "FLAT", 0.0)
    for name, values in grid.items():
        monkeypatch.setattr(model, name, values)


def test_the_closed_form_equals_conditioning(monkeypatch: pytest.MonkeyPatch) -> None:
    set_grid(monkeypatch, SPREADS=(2.0,), LENGTHS=(0.3,), SEED_SDS=(0.6,))
    known = posterior(some_evidence(), nothing=0.0)
    mean, covariance, _ = by_conditioning(some_evidence(), 2.0, 0.3, 0.6)
    np.testing.assert_allclose(known.means, mean, rtol=1e-9)
    np.testing.assert_allclose(known.covariance, covariance, atol=1e-7)


def test_the_posterior_is_the_mixture_over_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"SPREADS": (1.0, 4.0), "LENGTHS": (0.2, 0.5), "SEED_SDS": (0.3, 1.0)}
    set_grid(monkeypatch, **grid)
    weights, means, seconds = [], [], []
    for spread, length, seed_sd in product(*grid.values()):
        mean, covariance, density = by_conditioning(some_evidence(), spread, length, seed_sd)
        laws = ((spread, model.SPREAD_PRIOR), (seed_sd, model.SEED_PRIOR))
        prior = sum(-(math.log(value / median, factor) ** 2) / 2 for value, (median, factor) in laws)
        weights.append(math.exp(density + prior))
        means.append(mean)
        seconds.append(covariance + np.outer(mean, mean))
    total = np.average(means, axis=0, weights=weights)
    known = posterior(some_evidence(), nothing=0.0)
    np.testing.assert_allclose(known.means, total, atol=2e-2)  # what weighs less than a thousandth is left out
    expected = np.average(seconds, axis=0, weights=weights) - np.outer(total, total)
    np.testing.assert_allclose(known.covariance, expected, atol=5e-2)
    np.testing.assert_allclose(known.draws.mean(axis=0), known.means, atol=0.15)
    np.testing.assert_allclose(np.cov(known.draws.T), known.covariance, rtol=0.1, atol=0.1)


def with_outlier(points: float) -> Evidence:
    """The same with the run of layer 4 so many points lower."""
    evidence = some_evidence()
    scores = [replace(s, value=s.value - points) if s.layer == 4 else s for s in evidence.scores]
    return replace(evidence, scores=tuple(scores))


@pytest.mark.parametrize("points", [6.0, 30.0])
def test_runs_may_be_outliers_in_any_combination(monkeypatch: pytest.MonkeyPatch, points: float) -> None:
    set_grid(monkeypatch, SPREADS=(2.0,), LENGTHS=(0.3,), SEED_SDS=(0.6,))
    monkeypatch.setattr(model, "OUTLIER_WEIGHT", 1e-6)
    evidence, odds = with_outlier(points), model.OUTLIER / (1 - model.OUTLIER) / model.OUTLIER_RANGE
    logs, means, seconds = [], [], []
    for outliers in (set(rows) for n in range(3) for rows in combinations(range(len(evidence.scores)), n)):
        rows = [row for row in range(len(evidence.scores)) if row not in outliers]
        covariance = np.array(evidence.item_covariance)[np.ix_(rows, rows)]
        some = replace(
            evidence,
            scores=tuple(evidence.scores[row] for row in rows),
            item_covariance=tuple(map(tuple, covariance.tolist())),
        )
        mean, covariance, log = by_conditioning(some, 2.0, 0.3, 0.6)
        for layer, value in ((evidence.scores[row].layer, evidence.scores[row].value) for row in outliers):
            log += math.log(odds) + stats.norm.logcdf(
                mean[layer] - value, scale=math.hypot(0.8, covariance[layer, layer] ** 0.5)
            )
        logs.append(log)
        means.append(mean)
        seconds.append(covariance + np.outer(mean, mean))
    weights = np.exp(np.array(logs) - max(logs))
    total, beliefs = np.average(means, axis=0, weights=weights), posterior(evidence, nothing=0.0)
    np.testing.assert_allclose(beliefs.means, total, atol=0.05)
    expected = np.average(seconds, axis=0, weights=weights) - np.outer(total, total)
    np.testing.assert_allclose(beliefs.covariance, expected, atol=0.2)
    np.testing.assert_allclose(beliefs.draws.mean(axis=0), beliefs.means, atol=0.15)


def test_a_run_that_is_most_likely_an_outlier_is_no_test_of_its_layer() -> None:
    """It says no more than that its layer is better; a second run that is as low takes the doubt away."""
    values = {1: 66.0, 3: 67.0, 5: 68.0, 7: 20.0, 8: 69.0, 9: 68.5}
    evidence = Evidence(
        n_blocks=10, scores=tuple(Score(layer=layer, seed=0, value=value) for layer, value in values.items())
    )
    beliefs = posterior(evidence, claims=True)
    assert beliefs.tested.tolist() == [1, 3, 5, 8, 9]
    assert beliefs.means[7] > 60
    assert 7 in beliefs.statement(0.5, 0.95)[0]
    again = replace(evidence, scores=(*evidence.scores, Score(layer=7, seed=1, value=20.5)))
    beliefs = posterior(again, claims=True)
    assert 7 in beliefs.tested
    assert beliefs.means[7] < 30
    assert 7 in beliefs.statement(0.5, 0.95)[1]


def test_it_is_scikit_learns_process(monkeypatch: pytest.MonkeyPatch) -> None:
    set_grid(monkeypatch, SPREADS=(2.0,), LENGTHS=(0.3,), SEED_SDS=(0.6,))
    monkeypatch.setattr(model, "OWN_SD", 0.0)
    monkeypatch.setattr(model, "EMBEDDING_SD", 0.0)
    values = {0: 60.0, 3: 63.5, 4: 64.0, 8: 61.0}
    scores = tuple(Score(layer=layer, seed=0, value=value) for layer, value in values.items())
    kernel = ConstantKernel(100.0**2) + ConstantKernel(2.0**2) * Matern(length_scale=0.3, nu=1.5)
    process = GaussianProcessRegressor(kernel, alpha=0.6**2, optimizer=None)
    centre = np.mean(list(values.values()))
    process.fit(np.array(list(values))[:, None] / 8, np.array(list(values.values())) - centre)
    mean, covariance = process.predict(np.arange(9)[:, None] / 8, return_cov=True)
    known = posterior(Evidence(n_blocks=8, scores=scores))
    np.testing.assert_allclose(known.means, mean + centre, rtol=1e-9)
    np.testing.assert_allclose(known.covariance, covariance, atol=1e-6)


def test_a_failed_score_is_no_score() -> None:
    evidence = some_evidence()
    failed = replace(
        evidence,
        scores=(*evidence.scores, Score(layer=4, seed=0, value=None)),
        item_covariance=tuple(map(tuple, np.pad(evidence.item_covariance, (0, 1), constant_values=7.0).tolist())),
    )
    np.testing.assert_array_equal(posterior(failed).means, posterior(evidence).means)


def test_the_order_of_the_scores_does_not_matter() -> None:
    evidence = some_evidence()
    order = np.random.default_rng(1).permutation(len(evidence.scores))
    turned = replace(
        evidence,
        scores=tuple(evidence.scores[i] for i in order),
        item_covariance=tuple(map(tuple, np.array(evidence.item_covariance)[np.ix_(order, order)].tolist())),
    )
    np.testing.assert_allclose(posterior(turned).means, posterior(evidence).means, rtol=1e-9)


def contrasts(covariance: Array) -> Array:
    """Variances of all differences of two layers."""
    return np.diag(covariance)[:, None] + np.diag(covariance) - 2 * covariance


def test_an_error_that_all_runs_share_leaves_the_differences_as_they_are() -> None:
    evidence = some_evidence()
    shared = replace(evidence, item_covariance=tuple(map(tuple, (np.array(evidence.item_covariance) + 9.0).tolist())))
    ours, theirs = posterior(evidence), posterior(shared)
    np.testing.assert_allclose(theirs.means - theirs.means[0], ours.means - ours.means[0], atol=1e-3)
    np.testing.assert_allclose(contrasts(theirs.covariance), contrasts(ours.covariance), atol=1e-3)
    assert theirs.covariance[3, 3] > ours.covariance[3, 3] + 8


def test_one_score_says_nothing_about_differences() -> None:
    known = posterior(Evidence(n_blocks=6, scores=(Score(layer=3, seed=0, value=70.0),)))
    assert known.means[3] == pytest.approx(70.0)
    assert np.ptp(known.means) < 1e-6
    assert known.chances.sum() == pytest.approx(1.0)
    assert known.chances_within(0.0).sum() == pytest.approx(1.0)


def test_a_score_and_infonce_say_what_to_expect_elsewhere() -> None:
    evidence = Evidence(n_blocks=4, scores=(Score(layer=3, seed=0, value=70.0),), infonce=(5.0, 1.0, 1.0, 2.0, 2.0))
    means = posterior(evidence).means
    # 3 points a nat, or none: both are as likely
    np.testing.assert_allclose(means[1:], [68.5, 68.5, 70.0, 70.0], atol=0.01)
    np.testing.assert_allclose(posterior(evidence, nothing=0.0).means[1:], [67.0, 67.0, 70.0, 70.0], atol=0.01)
    refuted = (*evidence.scores, *(Score(layer=1, seed=seed, value=71.0) for seed in range(5)))
    assert posterior(replace(evidence, scores=refuted)).means[2] > 69, "expected scores to count for more"
    flat = replace(evidence, infonce=(0.0,) * 5)
    np.testing.assert_array_equal(posterior(flat).means, posterior(replace(evidence, infonce=None)).means)


def test_candidates_are_the_fewest_that_reach_the_level() -> None:
    known = posterior(some_evidence())
    chosen = list(known.candidates(0.9))
    assert chosen == sorted(chosen)
    assert known.chances[chosen].sum() >= 0.9
    assert known.chances[chosen].sum() - known.chances[chosen].min() < 0.9


def test_a_statement_is_true_as_a_whole_with_the_level() -> None:
    values = {0: 50.0, 2: 60.0, 4: 70.0, 5: 70.5, 7: 64.0, 8: 61.0}
    known = posterior(
        Evidence(n_blocks=8, scores=tuple(Score(layer=layer, seed=0, value=value) for layer, value in values.items()))
    )
    best, worse = known.statement(0.5, 0.9)
    assert worse, "expected a layer that is worse"
    assert not set(best) & set(worse)
    below = known.draws[:, worse] < known.draws.max(axis=1, keepdims=True) - 0.5
    true = below.all(axis=1) & np.isin(known.draws.argmax(axis=1), best)
    assert true.mean() >= 0.9
    assert set(known.candidates(0.9)) <= set(best)


def test_scores_decide_whether_infonce_says_anything() -> None:
    rising = tuple(float(layer) for layer in range(9))

    def slope(values: dict[int, float]) -> float:
        scores = tuple(Score(layer=layer, seed=0, value=value) for layer, value in values.items())
        means = posterior(Evidence(n_blocks=8, scores=scores, infonce=rising)).means
        return float(means[8] - means[5])

    assert slope({2: 60.0, 5: 69.0}) > 6  # 3 points a nat, as expected of it
    assert abs(slope({1: 65.0, 2: 65.1, 4: 64.9, 5: 65.0})) < 1


def test_there_must_be_a_score() -> None:
    with pytest.raises(DataError, match="at least one finite score, got none: fine-tune a layer"):
        posterior(Evidence(n_blocks=6, scores=(Score(layer=3, seed=0, value=None),)))
