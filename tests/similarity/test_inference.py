"""Standard errors, intervals, bands and tests against second formulas; `test_coverage` has their levels."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from layerprobe.errors import DataError
from layerprobe.similarity.cka import cka_interval, estimate_cka, named_layers, sums_of
from layerprobe.similarity.inference import (
    Spread,
    band_width,
    covariance,
    curve_uncertainty,
    difference,
    effective_share,
    group_numbers,
    interval,
    spread,
)
from layerprobe.similarity.maps import MapEstimate
from layerprobe.similarity.measures import CKA
from layerprobe.similarity.sums import Sums
from tests.similarity import oracle
from tests.similarity.oracle import LINEAR, MEASURES, RBF

Array = NDArray[np.float64]

seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None)
debiased = pytest.mark.parametrize(
    "measure", [m for m in MEASURES if m.estimator == "debiased"], ids=lambda measure: measure.title
)


def related(n: int, *, layers: int = 1, seed: int = 0) -> tuple[list[Array], list[Array]]:
    """Two models of some layers, which see the same five factors."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, 5))
    models = [
        [factors @ rng.normal(size=(5, d)) + rng.normal(size=(n, d)) for d in range(6, 6 + layers)] for _ in range(2)
    ]
    return models[0], models[1]


def estimate(n: int, *, layers: int = 1, seed: int = 0, measure: CKA = LINEAR, **options: Any) -> MapEstimate:
    model, reference = related(n, layers=layers, seed=seed)
    (found,) = estimate_cka([("model", model), ("reference", reference)], measures=[measure], **options)
    return found


def psi_of(found: MapEstimate, at: tuple[int, int] = (0, 0)) -> Array:
    error = found.spread(at)
    assert error is not None
    return error.influences


def sums_by(*models: Any, measure: CKA = LINEAR) -> Sums:
    return sums_of([named_layers("a", models[0]), named_layers("b", models[1])], [measure], [(0, 1)])[measure, (0, 1)]


# ---- influence -------------------------------------------------------------------------------------------------


@debiased
def test_influence_is_that_of_leaving_a_sample_out(measure: CKA) -> None:
    model, reference = related(60)
    found = estimate(60, measure=measure)
    pseudo = oracle.jackknife(oracle.gram(model[0], measure), oracle.gram(reference[0], measure))
    assert np.corrcoef(psi_of(found), pseudo)[0, 1] > 0.99
    error = np.std(pseudo, ddof=1) / np.sqrt(60)
    np.testing.assert_allclose(found.spread((0, 0)).standard_error, error, rtol=0.1)


@debiased
def test_influence_is_its_formula(measure: CKA) -> None:
    model, reference = related(30, layers=2)
    found = estimate(30, layers=2, measure=measure)
    for at in np.ndindex(2, 2):
        A, B = (oracle.unit(oracle.gram(X, measure)) for X in (model[at[0]], reference[at[1]]))
        expected = 30 * (2 * A * B - np.vdot(A, B) * (A**2 + B**2)).sum(axis=1)
        np.testing.assert_allclose(psi_of(found, at), expected, rtol=0, atol=1e-10)


@debiased
@pytest.mark.parametrize("n", [12, 300])
def test_pair_variance_is_its_definition(measure: CKA, n: int) -> None:
    """2 zeta_2 / (n (n - 1)), zeta_2 the mean square of n^2 (A_ij B_ij - theta (A_ij^2 + B_ij^2) / 2) over i != j."""
    model, reference = related(n, layers=2)
    sums = sums_by(model, reference, measure=measure)
    for at in np.ndindex(2, 2):
        A, B = (oracle.unit(oracle.gram(X, measure)) for X in (model[at[0]], reference[at[1]]))
        kernel = n**2 * (A * B - np.vdot(A, B) * (A**2 + B**2) / 2)
        zeta = (kernel[~np.eye(n, dtype=bool)] ** 2).mean()
        np.testing.assert_allclose(sums.pair_variance(at), 2 * zeta / (n * (n - 1)), rtol=1e-9)


# ---- standard errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 20, 200])
def test_the_standard_error_is_its_formula(n: int) -> None:
    psi = np.random.default_rng(0).standard_t(4, size=n)
    psi -= psi.mean()
    first = psi.var(ddof=1) / n * ((n - 1) / (n - 4)) ** 2
    for part in (0.0, 0.1 * first, 0.9 * first, 2 * first):
        found = spread(psi, pair_variance=part)
        np.testing.assert_allclose(found.standard_error**2, max(first - part, part), rtol=1e-12)
        np.testing.assert_array_equal(found.influences, psi)
    kurtosis = stats.kurtosis(psi, fisher=False)
    np.testing.assert_allclose(found.freedom, np.clip(2 * n / (kurtosis - 1), 3, n - 1), rtol=1e-12)


@given(seed=seeds, n=st.integers(5, 60))
@quick
def test_groups_of_one_sample_are_samples(seed: int, n: int) -> None:
    """But for the factor of a statistic of four samples."""
    rng = np.random.default_rng(seed)
    psi = rng.normal(size=n)
    alone, grouped = spread(psi), spread(psi, groups=rng.permutation(n))
    np.testing.assert_allclose(grouped.standard_error * (n - 1) / (n - 4), alone.standard_error, rtol=1e-12)
    np.testing.assert_allclose(grouped.freedom, alone.freedom, rtol=1e-9)


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_in_one_cluster_count_once(copies: int) -> None:
    psi = np.random.default_rng(0).normal(size=30)
    once = spread(psi, groups=np.arange(30))
    repeated = spread(np.repeat(psi, copies), groups=np.repeat(np.arange(30), copies))
    np.testing.assert_allclose(repeated.standard_error, once.standard_error, rtol=1e-12)
    np.testing.assert_allclose(repeated.freedom, once.freedom, rtol=1e-12)
    np.testing.assert_allclose(repeated.influences, copies * psi, rtol=1e-12)
    # As if they were samples of their own, the error is too small by the root of how many there are.
    naive = spread(np.repeat(psi, copies)).standard_error
    np.testing.assert_allclose(naive * np.sqrt(copies), once.standard_error, rtol=0.1)


def test_groups_widen_the_intervals_of_their_texts() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    X = rng.normal(size=(40, 6))[groups] + 0.1 * rng.normal(size=(200, 6))
    models = [("a", [X]), ("b", [np.tanh(X) + 0.1 * rng.normal(size=(200, 6))])]
    labels = np.array([f"group {i}" for i in groups])
    (texts,), (by_group,) = estimate_cka(models), estimate_cka(models, groups=labels)
    assert by_group.map.uncertainty.n_groups == 40
    assert by_group.map.uncertainty.method == "influence of each group"
    assert texts.map.uncertainty.n_groups is None
    assert by_group.map.values == texts.map.values
    ratio = by_group.spread((0, 0)).standard_error / texts.spread((0, 0)).standard_error
    assert 1.5 < ratio < np.sqrt(5) + 0.2


@pytest.mark.parametrize("groups", [None, np.array([0, 0, 1, 2, 3, 3, 2])])
def test_too_few_units_have_no_interval(groups: Any) -> None:
    psi = np.arange(4.0) if groups is None else np.arange(7.0)
    with pytest.raises(DataError, match="expected at least 5 samples or groups for an interval, got 4"):
        spread(psi, groups=groups)


def test_labels_are_counted() -> None:
    np.testing.assert_array_equal(group_numbers(["b", "a", "b", "c"], 4), [1, 0, 1, 2])
    with pytest.raises(DataError, match=r"expected a group for each of 4 samples, got an array of shape \(3,\)"):
        group_numbers([1, 2, 3], 4)
    with pytest.raises(DataError, match=r"expected a group for each of 30 samples, got an array of shape \(30, 1\)"):
        estimate(30, groups=np.zeros((30, 1)))


# ---- intervals -------------------------------------------------------------------------------------------------


def some_spread(error: float, *, freedom: float = 50.0) -> Spread:
    return Spread(standard_error=error, freedom=freedom, influences=np.zeros(9))


@given(value=st.floats(-0.999, 0.999), error=st.floats(1e-5, 1), freedom=st.floats(3, 1e4), level=st.floats(0.5, 0.99))
@example(value=0.9646363847544879, error=1.0, freedom=3, level=0.9375)
@example(value=0.96875, error=0.962890625, freedom=454.25, level=0.962890625)
@quick
def test_an_interval_holds_the_value_and_grows_with_the_level(
    value: float, error: float, freedom: float, level: float
) -> None:
    found = some_spread(error, freedom=freedom)
    low, high = interval(value, found, level=level)
    assert -1 <= low < value < high <= 1
    lower, higher = interval(value, found, level=level + 0.005)
    assert lower <= low
    assert high <= higher


def test_a_small_error_has_the_interval_of_student() -> None:
    low, high = interval(0.5, some_spread(1e-4, freedom=7), level=0.9)
    np.testing.assert_allclose([0.5 - low, high - 0.5], stats.t.ppf(0.95, 7) * 1e-4, rtol=1e-3)


def test_the_interval_of_a_value_near_one_is_longer_below() -> None:
    low, high = interval(0.95, some_spread(0.02), level=0.95)
    assert 0.95 - low > 1.2 * (high - 0.95)
    z = np.arctanh(np.sqrt([low, 0.95, high]))
    half = stats.t.ppf(0.975, 50) * 0.02 / (2 * np.sqrt(0.95) * 0.05)
    np.testing.assert_allclose(np.diff(z), half, rtol=1e-12)


def test_the_interval_of_one_feature_is_that_of_fisher() -> None:
    """The correlation of two normal features is known to 1 / sqrt(n) on the scale of z."""
    correlation, n = 0.6, 10_000
    error = some_spread(2 * correlation * (1 - correlation**2) / np.sqrt(n), freedom=1e9)
    low, high = interval(correlation**2, error, level=0.95)
    expected = np.tanh(np.arctanh(correlation) + np.array([-1, 1]) * stats.norm.ppf(0.975) / np.sqrt(n))
    np.testing.assert_allclose([low, high], expected**2, rtol=1e-6)


@pytest.mark.parametrize("value", [-0.3, -0.01, 0.0, 0.01])
def test_the_interval_of_a_value_near_zero_is_longer_above(value: float) -> None:
    low, high = interval(value, some_spread(0.02), level=0.95)
    half = stats.t.ppf(0.975, 50) * 0.02
    assert 0.8 * half < value - low < half < high - value < 1.3 * half


@pytest.mark.parametrize("value", [0.0799999, 0.08])
def test_the_interval_does_not_jump_where_the_scale_changes(value: float) -> None:
    np.testing.assert_allclose(
        interval(value, some_spread(0.02), level=0.95), interval(0.0800001, some_spread(0.02), level=0.95), atol=1e-6
    )


@pytest.mark.parametrize("width", [1.5, 2.5, 3.5])
def test_a_band_has_the_quantile_of_student_at_its_width(width: float) -> None:
    found = some_spread(0.02, freedom=9)
    level = 1 - 2 * stats.norm.sf(width)
    np.testing.assert_allclose(interval(0.4, found, level=0.95, width=width), interval(0.4, found, level=level))


def test_an_uncertain_norm_widens_the_interval_to_what_its_test_does_not_reject() -> None:
    """The values x at which sum (u_i - x d_i) is no more than t of its standard errors, by a search."""
    rng = np.random.default_rng(0)
    norms = rng.standard_t(3, size=40)
    psi = rng.normal(size=40) + 0.3 * norms
    psi, norms = 0.6 * (psi - psi.mean()), norms - norms.mean()
    found, value = spread(psi, norms, pair_variance=0.001), 0.4
    t, factor = stats.t.ppf(0.95, found.freedom), found.standard_error**2 / (psi @ psi)
    x = np.linspace(-1, 1, 200_001)
    of_error = psi - (x[::100, None] - value) * norms
    np.testing.assert_allclose(
        factor * (of_error**2).sum(axis=1),
        found.standard_error**2
        - 2 * (x[::100] - value) * found.norm_covariance
        + (x[::100] - value) ** 2 * found.norm_variance,
        rtol=1e-9,
    )
    squares = factor * (psi @ psi - 2 * (x - value) * (psi @ norms) + (x - value) ** 2 * (norms @ norms))
    kept = x[(x - value) ** 2 <= t**2 * squares]
    without = interval(value, dataclasses.replace(found, norm_variance=0.0), level=0.9)
    expected = min(kept[0], without[0]), max(kept[-1], without[1])
    np.testing.assert_allclose(interval(value, found, level=0.9), expected, rtol=0, atol=2e-5)
    assert expected[0] < without[0]


def test_a_norm_of_which_nothing_is_known_rules_nothing_out() -> None:
    assert interval(0.4, dataclasses.replace(some_spread(0.1), norm_variance=0.3), level=0.95) == (-1, 1)
    lower, upper = interval(0.4, dataclasses.replace(some_spread(0.1), norm_variance=0.2), level=0.95)
    assert -1 <= lower < 0.15 < 0.6 < upper < 1


@debiased
def test_the_error_of_the_norms_is_that_of_their_parts(measure: CKA) -> None:
    model, reference = related(30)
    found = estimate(30, measure=measure).spread((0, 0))
    A, B = (oracle.unit(oracle.gram(X, measure)) for X in (model[0], reference[0]))
    norms = 30 * (A**2 + B**2).sum(axis=1) - 2
    factor = found.standard_error**2 / (found.influences @ found.influences)
    np.testing.assert_allclose(found.norm_variance, factor * (norms @ norms), rtol=1e-9)
    np.testing.assert_allclose(found.norm_covariance, factor * (norms @ found.influences), rtol=0, atol=1e-12)


# ---- how many samples decide ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("decide", [1, 7, 50])
def test_the_effective_share_is_that_of_the_samples_with_a_part(decide: int) -> None:
    parts = np.where(np.arange(50) < decide, 2.5, 0.0)
    assert effective_share(parts) == decide / 50
    assert effective_share(np.repeat(parts, 3), groups=np.repeat(np.arange(50), 3)) == decide / 50


@debiased
def test_the_effective_share_is_its_formula(measure: CKA) -> None:
    model, reference = related(40, layers=2)
    shares = estimate(40, layers=2, measure=measure).map.effective_shares
    for layers, found in zip((model, reference), shares, strict=True):
        parts = [(oracle.unit(oracle.gram(X, measure)) ** 2).sum(axis=1) for X in layers]
        np.testing.assert_allclose(found, [1 / (40 * (part**2).sum()) for part in parts], rtol=1e-9)
    pair = cka_interval(model[0], reference[0], measure=measure)
    assert pair.effective_share == min(shares[0][0], shares[1][0])


def test_far_samples_make_a_linear_interval_doubtful_and_not_a_gaussian_one() -> None:
    (X,), (Y,) = related(100)
    assert not cka_interval(X, Y).doubtful
    far = X * np.where(np.arange(100) < 5, 10, 1)[:, None]
    assert cka_interval(far, Y).doubtful
    assert cka_interval(Y, far).doubtful
    assert not cka_interval(far, Y, measure=RBF).doubtful
    plain, doubted = cka_interval(X, Y), cka_interval(far, Y)
    widths = [(found.interval[1] - found.interval[0]) / found.standard_error for found in (plain, doubted)]
    assert widths[1] > 1.5 * widths[0]


@debiased
@pytest.mark.parametrize(
    ("n", "dtype", "width"), [(50, np.float64, 1e-12), (50, np.float32, 2e-6), (600, np.float32, 2e-6)]
)
def test_copies_have_an_interval_of_no_width(measure: CKA, n: int, dtype: type, width: float) -> None:
    X = related(n)[0][0].astype(dtype)
    (found,) = estimate_cka([("a", [X]), ("b", [X, (2 * X).astype(dtype)])], measures=[measure])
    errors = found.map.uncertainty
    np.testing.assert_allclose(found.map.values, 1, rtol=0, atol=width)
    np.testing.assert_allclose(errors.standard_errors, 0, rtol=0, atol=width)
    np.testing.assert_allclose(errors.lower, 1, rtol=0, atol=5 * width)
    np.testing.assert_allclose(errors.upper, 1, rtol=0, atol=5 * width)


@debiased
def test_a_map_has_the_interval_of_every_value(measure: CKA) -> None:
    found = estimate(80, layers=3, measure=measure)
    errors = found.map.uncertainty
    assert (errors.level, errors.method) == (0.95, "influence of each sample")
    for i, j in np.ndindex(3, 3):
        low, high = interval(found.map.values[i][j], found.spread((i, j)), level=0.95)
        assert errors.standard_errors[i][j] == found.spread((i, j)).standard_error
        assert (errors.lower[i][j], errors.upper[i][j]) == (low, high)
        assert -1 <= low < found.map.values[i][j] < high <= 1


def test_other_estimators_and_levels_have_no_interval() -> None:
    for found in (estimate(30, measure=CKA(estimator="biased")), estimate(30, level=None)):
        assert found.map.uncertainty is None
        assert found.curve("same-index").uncertainty is None
        assert found.differences(found, [((0, 0), (1, 1))]) == ()
        assert found.differences(found, [((0, 0), (0, 0))]) == ()
    both = estimate_cka(
        [(name, layers) for name, layers in zip("ab", related(30), strict=True)],
        measures=[CKA(estimator="biased"), LINEAR],
    )
    assert [found.map.uncertainty is None for found in both] == [True, False]


def test_intervals_need_five_samples() -> None:
    assert estimate(4).map.uncertainty is None
    assert estimate(5).map.uncertainty is not None
    assert estimate(20, groups=np.arange(20) % 4).map.uncertainty is None
    assert estimate(20, groups=np.arange(20) % 5).map.uncertainty is not None


@debiased
def test_two_layers_have_the_interval_of_their_map(measure: CKA) -> None:
    (X,), (Y,) = related(40)
    found, of_map = cka_interval(X, Y, measure=measure, level=0.9), estimate(40, measure=measure, level=0.9).map
    errors = of_map.uncertainty
    assert (found.value, found.standard_error) == (of_map.values[0][0], errors.standard_errors[0][0])
    assert (*found.interval, found.level) == (errors.lower[0][0], errors.upper[0][0], 0.9)
    groups = np.arange(40) // 4
    grouped = cka_interval(X, Y, measure=measure, groups=groups)
    expected = estimate(40, measure=measure, groups=groups).map.uncertainty.standard_errors[0][0]
    assert grouped.standard_error == expected
    with pytest.raises(DataError, match="expected the debiased estimator for an interval, got biased linear CKA"):
        cka_interval(X, Y, measure=CKA(estimator="biased"))


# ---- curves ----------------------------------------------------------------------------------------------------


def test_the_covariance_has_the_squared_errors_on_its_diagonal() -> None:
    found = estimate(80, layers=4)
    errors = [found.spread((layer, layer)) for layer in range(4)]
    of_curve = np.array(found.curve("same-index").uncertainty.covariance)
    np.testing.assert_allclose(of_curve, covariance(errors), rtol=1e-12)
    np.testing.assert_allclose(of_curve.diagonal(), [e.standard_error**2 for e in errors], rtol=1e-12)
    correlations = of_curve / np.sqrt(np.outer(of_curve.diagonal(), of_curve.diagonal()))
    np.testing.assert_allclose(correlations, np.corrcoef([e.influences for e in errors]), rtol=0, atol=1e-10)
    assert np.linalg.eigvalsh(of_curve).min() > 0


def test_a_layer_without_error_is_correlated_with_none() -> None:
    zero = Spread(standard_error=0.0, freedom=8.0, influences=np.zeros(9))
    some = spread(np.arange(9.0) - 4)
    expected = np.diag([0, some.standard_error**2])
    np.testing.assert_array_equal(covariance([zero, some]), expected)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_the_band_of_one_layer_is_its_interval(level: float) -> None:
    quantile = stats.norm.ppf((1 + level) / 2)
    np.testing.assert_allclose(band_width(np.array([[0.3]]), level=level), quantile, rtol=0.02)
    # Layers that vary together are one.
    np.testing.assert_allclose(band_width(np.full((5, 5), 0.3), level=level), quantile, rtol=0.02)
    # Without errors, or with one layer that has some.
    assert band_width(np.zeros((3, 3)), level=level) == pytest.approx(quantile)
    np.testing.assert_allclose(band_width(np.diag([0, 0.3, 0]), level=level), quantile, rtol=0.02)


@given(seed=seeds, k=st.integers(1, 12), level=st.sampled_from([0.8, 0.9, 0.95]))
@quick
def test_a_band_is_between_one_interval_and_those_of_bonferroni(seed: int, k: int, level: float) -> None:
    factors = np.random.default_rng(seed).normal(size=(k, 4))
    found = band_width(factors @ factors.T, level=level)
    assert 0.98 * stats.norm.ppf((1 + level) / 2) < found < 1.02 * stats.norm.isf((1 - level) / (2 * k))
    assert found == band_width(factors @ factors.T, level=level)


@pytest.mark.parametrize("k", [2, 13])
def test_the_band_of_independent_layers_is_that_of_sidak(k: int) -> None:
    expected = stats.norm.ppf((1 + 0.95 ** (1 / k)) / 2)
    np.testing.assert_allclose(band_width(np.diag(np.arange(1.0, k + 1)), level=0.95), expected, rtol=0.02)


@pytest.mark.parametrize("freedom", [4, 9, 99])
def test_a_band_by_student_has_the_chance_of_its_normal_one(freedom: int) -> None:
    """That of Sidak for thirteen independent layers, at Student's quantile."""
    errors = [Spread(standard_error=1.0, freedom=freedom, influences=row) for row in np.eye(13)]
    found = curve_uncertainty([0.0] * 13, errors, level=0.95)
    expected = stats.t(freedom).isf((1 - 0.95 ** (1 / 13)) / 2)
    np.testing.assert_allclose(found.band_upper, expected, rtol=0.04)
    alone = curve_uncertainty([0.0], errors[:1], level=0.95)
    np.testing.assert_allclose(alone.band_upper, alone.upper, rtol=0.02)


# ---- differences -----------------------------------------------------------------------------------------------


def test_a_difference_is_that_of_paired_influences() -> None:
    found = estimate(120, layers=2)
    a, b = found.spread((0, 0)), found.spread((1, 1))
    result = difference(0.7, 0.6, (a, b), label="one less other", level=0.9)
    assert (result.label, result.level) == ("one less other", 0.9)
    np.testing.assert_allclose(result.value, 0.1)
    # The errors are those of the influences but for the parts of pairs of samples.
    paired = np.std(a.influences - b.influences, ddof=1) / np.sqrt(120)
    np.testing.assert_allclose(result.standard_error, paired, rtol=0.1)
    half = stats.t.ppf(0.95, min(a.freedom, b.freedom)) * result.standard_error
    np.testing.assert_allclose(result.interval, [0.1 - half, 0.1 + half])
    p_value = 2 * stats.t.sf(0.1 / result.standard_error, min(a.freedom, b.freedom))
    np.testing.assert_allclose(result.p_value, p_value)


def test_equal_similarities_do_not_differ() -> None:
    found = estimate(60)
    (same,) = found.differences(found, [((0, 0), (0, 0))])
    assert (same.value, same.p_value, same.label) == (0, 1, "layer 0")
    assert same.standard_error == pytest.approx(0, abs=1e-8)
    for error in (0.1, 0.0):
        some = some_spread(error)
        assert difference(0.5, 0.5, (some, some), label="").p_value == 1
    assert difference(0.5, 0.4, (some_spread(0.0), some_spread(0.0)), label="").p_value < 1e-9


@debiased
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_layers_do_not_differ(measure: CKA, dtype: type) -> None:
    """As where the first layers were frozen: all is rounding, the values and their errors."""
    layers = [np.random.default_rng(d).normal(size=(300, d)).astype(dtype) for d in (20, 30, 64, 40, 50)]
    (found,) = estimate_cka([("base", layers), ("tuned", layers)], measures=[measure])
    steps = found.differences(found, [((i, i), (i + 1, i + 1)) for i in range(4)])
    np.testing.assert_allclose([step.value for step in steps], 0, rtol=0, atol=1e-6)
    assert min(step.p_value for step in steps) > 0.3


def test_differences_are_of_the_other_estimate_less_this_one() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 8))
    models = [("reference", [X]), *((str(s), [X + s * rng.normal(size=X.shape)] * 2) for s in (0.5, 1))]
    near, far = estimate_cka(models, pairs=[(1, 0), (2, 0)])
    (found,) = near.differences(far, [((1, 0), (1, 0))])
    assert found.label == "layer 1"
    assert found.value == far.map.values[1][0] - near.map.values[1][0] < 0
    assert found.interval[0] < found.value < found.interval[1]


def test_steps_follow_the_curve_to_its_partners() -> None:
    found = estimate(60, layers=4)
    for alignment in ("same-index", "best-match"):
        curve = found.curve(alignment)
        steps = found.differences(found, list(itertools.pairwise(enumerate(curve.reference_layers))))
        np.testing.assert_allclose([step.value for step in steps], np.diff(curve.values), rtol=0, atol=1e-15)
        assert [step.label for step in steps] == [f"layer {i + 1} minus layer {i}" for i in range(3)]
