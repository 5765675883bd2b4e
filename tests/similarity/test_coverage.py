"""Intervals, bands and tests keep their level: simulations of known similarities.

Truth is the value of 200,000 samples, whose own error is a fifteenth of that at n = 1000 or less. A frequency is
bounded by the wanted range and two Monte-Carlo standard errors, sqrt(p (1 - p) / repetitions) at p = 0.95.
"""

import functools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.checks import LEVEL
from layerprobe.similarity.cka import cka_interval, estimate_cka
from layerprobe.similarity.diagnostics import infonce_influences, rank_influences
from layerprobe.similarity.inference import curve_uncertainty, mean_spread
from layerprobe.similarity.maps import MapEstimate, measure_layers
from layerprobe.similarity.measures import CKA, Procrustes
from tests.similarity.oracle import LINEAR, RBF

pytestmark = pytest.mark.slow

Array = NDArray[np.float32]
Layers = tuple[list[Array], list[Array]]
Model = Callable[[np.random.Generator, int], Layers]

MANY = 200_000
REPETITIONS = {100: 4000, 300: 2000, 1000: 1000}


def weights(*shape: int, seed: int = 9) -> Array:
    """A fixed random map, which keeps the size of what it is applied to."""
    drawn = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return drawn / np.float32(np.sqrt(shape[0]))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def few_factors(rng: np.random.Generator, n: int) -> Layers:
    """Eight Gaussian factors, through a linear map, with noise."""
    factors = normal(rng, n, 8)
    return [factors + 0.7 * normal(rng, n, 8)], [factors @ weights(8, 12) + 0.7 * normal(rng, n, 12)]


def faint_factors(rng: np.random.Generator, n: int) -> Layers:
    """Thirty-two factors, of which noise leaves a CKA of about 0.1: pairs of samples weigh much at n = 100."""
    factors = normal(rng, n, 32)
    return [factors + 1.5 * normal(rng, n, 32)], [factors @ weights(32, 48) + 1.5 * normal(rng, n, 48)]


def heavy_tails(rng: np.random.Generator, n: int) -> Layers:
    """Student's t with five degrees of freedom: the influence values have hardly a fourth moment."""
    factors = rng.standard_t(5, size=(n, 16)).astype(np.float32)
    return [factors], [np.tanh(factors @ weights(16, 16)) + 0.3 * normal(rng, n, 16)]


def power_law(rng: np.random.Generator, n: int) -> Layers:
    """Factors with standard deviations k^-0.7, as in real embeddings; a CKA of about 0.95."""
    scale = np.arange(1, 65, dtype=np.float32) ** np.float32(-0.7)
    factors = scale * normal(rng, n, 64)
    noisy = factors + 0.1 * scale * normal(rng, n, 64)
    return [noisy], [factors @ weights(64, 64) + 0.05 * normal(rng, n, 64)]


def wide_power_law(rng: np.random.Generator, n: int) -> Layers:
    """Three hundred features, more than samples at n = 100, of standard deviations k^-0.5."""
    scale = np.arange(1, 301, dtype=np.float32) ** np.float32(-0.5)
    factors = scale * normal(rng, n, 300)
    return [factors], [factors @ weights(300, 300) + 0.3 * normal(rng, n, 300)]


def independent(rng: np.random.Generator, n: int) -> Layers:
    return [normal(rng, n, 32)], [normal(rng, n, 48)]


def independent_and_narrow(rng: np.random.Generator, n: int) -> Layers:
    return [normal(rng, n, 3)], [normal(rng, n, 3)]


def through_a_map(factors: Array, rng: np.random.Generator, *, noise: float = 0.7, width: int = 12) -> Layers:
    n, k = factors.shape
    factors = factors.astype(np.float32)
    return [factors + noise * normal(rng, n, k)], [factors @ weights(k, width) + noise * normal(rng, n, width)]


def clusters(rng: np.random.Generator, n: int) -> Layers:
    """Six topics, a CKA of 0.87."""
    centres = 3 * weights(6, 8) * np.float32(np.sqrt(6))
    return through_a_map(centres[rng.integers(6, size=n)] + normal(rng, n, 8), rng, noise=1.0)


def discrete(rng: np.random.Generator, n: int) -> Layers:
    return through_a_map(rng.integers(0, 2, (n, 8)) * 2.0 - 1, rng)


def sparse(rng: np.random.Generator, n: int) -> Layers:
    return through_a_map(3 * (rng.random((n, 24)) < 0.15) * normal(rng, n, 24), rng, width=24)


def nearly_alike(rng: np.random.Generator, n: int) -> Layers:
    return through_a_map(normal(rng, n, 8), rng, noise=0.02, width=64)


def lognormal(sigma: float) -> Model:
    return lambda rng, n: through_a_map(rng.lognormal(0, sigma, (n, 8)), rng)


def lognormal_in_both(rng: np.random.Generator, n: int) -> Layers:
    """Exponentials of correlated factors: the estimate is biased upwards for few samples."""
    factors = normal(rng, n, 16)
    return [np.exp(0.7 * factors)], [np.exp(0.7 * factors @ weights(16, 16)) + 0.3 * normal(rng, n, 16)]


def student(freedom: int) -> Model:
    return lambda rng, n: through_a_map(rng.standard_t(freedom, (n, 8)), rng)


def far_texts(times: float, *, both: bool = True) -> Model:
    """Five of a hundred samples are so much further from the mean than the others, in both layers or in one."""

    def draw(rng: np.random.Generator, n: int) -> Layers:
        (X,), (Y,) = through_a_map(normal(rng, n, 8), rng)
        scale = np.where(rng.random((n, 1)) < 0.05, np.float32(times), np.float32(1))
        return [scale * X], [scale * Y if both else Y]

    return draw


ORDINARY: dict[str, Model] = {
    "clusters": clusters,
    "discrete": discrete,
    "sparse": sparse,
    "nearly alike": nearly_alike,
}
UGLY: dict[str, Model] = {
    "lognormal 0.5": lognormal(0.5),
    "lognormal 0.7": lognormal(0.7),
    "lognormal 1.0": lognormal(1.0),
    "lognormal in both": lognormal_in_both,
    "student 5": student(5),
    "student 3": student(3),
    "far texts, 3 times": far_texts(3),
    "far texts, 10 times": far_texts(10),
    "far texts, 100 times": far_texts(100),
    "far texts in one layer, 5 times": far_texts(5, both=False),
}
UGLY_REPETITIONS = {30: 1500, 60: 1500, 200: 1000, 800: 500}


def estimate(layers: Layers, measure: CKA = LINEAR, *, level: float | None = LEVEL) -> MapEstimate:
    (found,) = estimate_cka([("model", layers[0]), ("reference", layers[1])], measures=[measure], level=level)
    return found


@functools.cache
def truth(model: Model, measure: CKA = LINEAR) -> NDArray[np.float64]:
    """(layers, layers) CKA of all samples there are."""
    rng = np.random.default_rng(1)
    if measure.kernel == "linear":
        return np.array(estimate(model(rng, MANY), level=None).map.values)
    # Gram matrices take time that is quadratic in n.
    return np.mean([estimate(model(rng, 4000), measure, level=None).map.values for _ in range(50)], axis=0)


def frequency(hits: NDArray[np.bool_]) -> float:
    return float(np.mean(hits))


def assert_within(found: float, low: float, high: float, *, repetitions: int, p: float = 0.95) -> None:
    error = np.sqrt(p * (1 - p) / repetitions)
    print(f"{found:.4f}, Monte-Carlo standard error {error:.4f}")
    assert low - 2 * error <= found <= high + 2 * error


def covered(model: Model, n: int, value: float, *, measure: CKA = LINEAR, repetitions: int) -> float:
    """How often the interval holds the value."""
    rng = np.random.default_rng(n)
    hits = []
    for _ in range(repetitions):
        errors = estimate(model(rng, n), measure).map.uncertainty
        assert errors is not None
        hits.append(errors.lower[0][0] <= value <= errors.upper[0][0])
    return frequency(np.array(hits))


@pytest.mark.parametrize("model", [few_factors, faint_factors, heavy_tails, power_law, wide_power_law])
@pytest.mark.parametrize("n", [100, 300, 1000])
def test_intervals_hold_the_truth_at_their_level(model: Model, n: int) -> None:
    found = covered(model, n, float(truth(model)[0, 0]), repetitions=REPETITIONS[n])
    assert_within(found, 0.93, 0.98, repetitions=REPETITIONS[n])


def drawn(model: Model, n: int, *, measure: CKA = LINEAR, repetitions: int) -> tuple[NDArray[np.bool_], ...]:
    """Whether the interval holds the truth, and whether it is said to be doubtful, by repetition."""
    value, rng = float(truth(model, measure)[0, 0]), np.random.default_rng(n)
    found = []
    for _ in range(repetitions):
        (X,), (Y,) = model(rng, n)
        one = cka_interval(X, Y, measure=measure)
        found.append((one.interval[0] <= value <= one.interval[1], one.doubtful))
    held, doubtful = np.array(found).T
    print(f"held {held.mean():.3f}, doubtful {doubtful.mean():.3f}, held or doubtful {(held | doubtful).mean():.3f}")
    return held, doubtful


@pytest.mark.parametrize("model", ORDINARY)
@pytest.mark.parametrize("n", UGLY_REPETITIONS)
def test_intervals_of_ordinary_samples_hold_the_truth_and_are_not_doubted(model: str, n: int) -> None:
    held, doubtful = drawn(ORDINARY[model], n, repetitions=UGLY_REPETITIONS[n])
    assert_within(frequency(held), 0.93, 0.98, repetitions=len(held))
    assert frequency(doubtful) < 0.15


@pytest.mark.parametrize("model", UGLY)
@pytest.mark.parametrize("n", UGLY_REPETITIONS)
def test_intervals_of_ugly_samples_hold_the_truth_or_are_doubted(model: str, n: int) -> None:
    """What no sample shows cannot be doubted: one in five samples of 30 has no far text, one in twenty of 60."""
    held, doubtful = drawn(UGLY[model], n, repetitions=UGLY_REPETITIONS[n])
    assert_within(frequency(held | doubtful), 0.93, 1.0, repetitions=len(held))
    assert frequency(held) > 0.86


@pytest.mark.parametrize("model", UGLY)
@pytest.mark.parametrize("n", [60, 200])
def test_gaussian_kernels_bound_what_a_text_weighs(model: str, n: int) -> None:
    """What the warning tells to do helps: without a doubt, and the intervals hold the truth."""
    held, doubtful = drawn(UGLY[model], n, measure=RBF, repetitions=500)
    assert_within(frequency(held), 0.92, 0.985, repetitions=len(held))
    assert frequency(doubtful) < 0.01


@pytest.mark.parametrize("model", [few_factors, heavy_tails])
@pytest.mark.parametrize("n", [100, 300])
def test_intervals_of_gaussian_kernels_hold_the_truth_at_their_level(model: Model, n: int) -> None:
    """The bandwidth is estimated as well, which the influence values leave out."""
    found = covered(model, n, float(truth(model, RBF)[0, 0]), measure=RBF, repetitions=REPETITIONS[n])
    assert_within(found, 0.93, 0.98, repetitions=REPETITIONS[n])


@pytest.mark.parametrize("model", [independent, independent_and_narrow])
@pytest.mark.parametrize("n", [100, 300, 1000])
def test_intervals_of_independent_layers_hold_zero(model: Model, n: int) -> None:
    """The estimate is degenerate there, no longer normal: few features leave an interval that is too wide."""
    assert_within(covered(model, n, 0.0, repetitions=REPETITIONS[n]), 0.93, 1.0, repetitions=REPETITIONS[n])


def documents(rng: np.random.Generator, n: int) -> Layers:
    """Groups of five texts, which share half of their variance."""
    model, reference = few_factors(rng, n // 5)
    return tuple(  # type: ignore[return-value]
        [np.repeat(X, 5, axis=0) + normal(rng, n, X.shape[1])] for (X,) in (model, reference)
    )


def deep(rng: np.random.Generator, n: int) -> Layers:
    """Six layers, each a little further from the reference: what one layer errs, the next does too."""
    factors = normal(rng, n, 8)
    layers = [factors + 0.3 * normal(rng, n, 8)]
    for step in range(5):
        layers.append(np.tanh(layers[-1] @ weights(8, 8, seed=step)) * 2 + 0.3 * normal(rng, n, 8))
    return layers, [factors @ weights(8, 12) + 0.7 * normal(rng, n, 12)]


@pytest.mark.parametrize("n", [100, 300])
def test_bands_hold_the_whole_curve_at_their_level(n: int) -> None:
    values, repetitions = truth(deep)[:, 0], 2000
    assert np.ptp(values) > 0.2
    rng = np.random.default_rng(n)
    whole, pointwise = [], []
    for _ in range(repetitions):
        errors = estimate(deep(rng, n)).curve("best-match").uncertainty
        assert errors is not None
        whole.append(((errors.band_lower <= values) & (values <= errors.band_upper)).all())
        pointwise.append(((errors.lower <= values) & (values <= errors.upper)).all())
    assert_within(frequency(np.array(whole)), 0.93, 0.97, repetitions=repetitions)
    # What the band is for.
    assert frequency(np.array(pointwise)) < 0.9


def test_bands_of_other_measures_hold_the_whole_curve_at_their_level() -> None:
    """Of the mean over as many samples, for thirteen layers whose errors have nothing to do with each other."""
    rng, repetitions = np.random.default_rng(100), 500
    curves = []
    for _ in range(repetitions):
        X = rng.normal(size=(13, 100, 8))
        curves.append(measure_layers(X, X + rng.normal(size=X.shape), Procrustes()).curve("same-index"))
    values = np.mean([curve.values for curve in curves], axis=0)
    bands = [curve.uncertainty for curve in curves if curve.uncertainty is not None]
    whole = [((band.band_lower <= values) & (values <= band.band_upper)).all() for band in bands]
    assert len(whole) == repetitions
    assert_within(frequency(np.array(whole)), 0.93, 0.97, repetitions=repetitions)


@pytest.mark.parametrize("n", [100, 300, 1000])
def test_equal_similarities_differ_as_often_as_they_should(n: int) -> None:
    """Two models at the same distance of a reference, and of the same samples."""
    rng, repetitions = np.random.default_rng(n), 2000
    rejected = []
    for _ in range(repetitions):
        factors = normal(rng, n, 8)
        reference = factors @ weights(8, 12) + 0.7 * normal(rng, n, 12)
        models = [(name, [factors + 0.7 * normal(rng, n, 8)]) for name in ("first", "second")]
        first, second = estimate_cka([*models, ("reference", [reference])], pairs=[(0, 2), (1, 2)])
        (difference,) = first.differences(second, [((0, 0), (0, 0))])
        rejected.append(difference.p_value < 0.05)
    assert_within(frequency(np.array(rejected)), 0.03, 0.07, repetitions=repetitions)


def test_intervals_of_groups_hold_the_truth_at_their_level() -> None:
    """Two hundred groups of five texts: taken for a thousand texts, they would miss it."""
    rng, n, repetitions = np.random.default_rng(0), 1000, 1000
    value, labels = float(truth(documents)[0, 0]), np.repeat(np.arange(200), 5)
    hits = []
    for _ in range(repetitions):
        model, reference = documents(rng, n)
        models = [("model", model), ("reference", reference)]
        bounds = [estimate_cka(models, groups=groups)[0].map.uncertainty for groups in (labels, None)]
        hits.append([u.lower[0][0] <= value <= u.upper[0][0] for u in bounds if u is not None])
    by_group, by_text = np.mean(hits, axis=0)
    assert_within(by_group, 0.93, 0.97, repetitions=repetitions)
    assert by_text < 0.9


@pytest.mark.parametrize("model", [few_factors, heavy_tails, power_law])
@pytest.mark.parametrize("n", [100, 1000])
def test_ranks_and_their_band_keep_the_level(model: Model, n: int) -> None:
    """Of the mean rank of as many samples: that fewer samples have a lower rank is no part of the error.

    Where all eigenvalues are about the same, as of few factors, the entropy has hardly a first derivative, and the
    intervals are a little wide.
    """
    drawn = []
    for seed in range(REPETITIONS[n]):
        layers = model(np.random.default_rng(seed), n)
        values, influences = zip(*map(rank_influences, (*layers[0], *layers[1])), strict=True)
        drawn.append((values, curve_uncertainty(values, [*map(mean_spread, influences)], level=0.95)))
    ranks = np.array([values for values, _ in drawn])
    truth = ranks.mean(axis=0)
    inside = np.array([(np.array(e.lower) <= truth) & (truth <= np.array(e.upper)) for _, e in drawn])
    together = np.mean(
        [((np.array(e.band_lower) <= truth) & (truth <= np.array(e.band_upper))).all() for _, e in drawn]
    )
    slack = 2 * np.sqrt(0.95 * 0.05 / len(drawn))
    assert (inside.mean(axis=0) > 0.93 - slack).all(), inside.mean(axis=0)
    assert (inside.mean(axis=0) < 0.985 + slack).all(), inside.mean(axis=0)
    assert 0.93 - slack < together < 0.985 + slack


@pytest.mark.parametrize("noise", [0.3, 1.0])
@pytest.mark.parametrize("n", [100, 300])
def test_intervals_of_infonce_keep_the_level(noise: float, n: int) -> None:
    """Of the mean over as many texts. Near its bound, log n, few pairs decide, and the intervals are a little wide."""
    drawn = []
    for seed in range(REPETITIONS[n]):
        rng = np.random.default_rng(seed)
        texts = rng.standard_t(8, size=(n, 16))
        value, influences = infonce_influences(texts + noise * rng.standard_normal((2, n, 16)))
        drawn.append((value, curve_uncertainty([value], [mean_spread(influences)], level=0.95)))
    truth = np.mean([value for value, _ in drawn])
    inside = np.mean([errors.lower[0] <= truth <= errors.upper[0] for _, errors in drawn])
    slack = 2 * np.sqrt(0.95 * 0.05 / len(drawn))
    assert 0.93 - slack < inside < 0.98 + slack
