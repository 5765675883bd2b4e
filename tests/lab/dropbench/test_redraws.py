"""Percentiles of few clusters, expanded: they hold a mean about as often as they say."""

import numpy as np
import pytest
from scipy import stats

from layerprobe.lab.dropbench.bench import expanded, redrawn


def test_many_clusters_need_nothing_and_one_has_nothing() -> None:
    assert expanded(0.95, 10**6) == pytest.approx(0.95, abs=1e-5)
    assert expanded(0.95, 1) == 0.95
    levels = [expanded(0.95, n) for n in (4, 6, 20)]
    assert levels == sorted(levels, reverse=True)
    assert levels == pytest.approx([0.99976, 0.99514, 0.96824], abs=1e-5)


def test_of_normal_values_the_ends_are_those_of_student() -> None:
    """Percentiles of a bootstrap are those of a normal distribution of variance s^2 (n - 1) / n / n, nearly."""
    n, level = 12, 0.9
    ends = stats.norm.interval(expanded(level, n), scale=np.sqrt((n - 1) / n / n))
    assert ends == pytest.approx(stats.t.interval(level, n - 1, scale=1 / np.sqrt(n)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "skewed", "least"), [(4, False, 0.85), (6, False, 0.92), (20, False, 0.94), (6, True, 0.85), (20, True, 0.91)]
)
def test_a_mean_is_held(n: int, skewed: bool, least: float) -> None:
    """As the rules of entry say; plain percentiles hold it less often in each case."""
    rng, names = np.random.default_rng(0), [str(name) for name in range(n)]
    counts = redrawn(names, draws=2000, seed=0)
    held = np.zeros(2)
    for _ in range(2000):
        values = rng.exponential(size=n) - 1 if skewed else rng.standard_normal(n)
        means = counts @ values / n
        for number, level in enumerate((0.95, expanded(0.95, n))):
            lower, upper = np.quantile(means, ((1 - level) / 2, (1 + level) / 2))
            held[number] += lower <= 0 <= upper
    plain, wider = held / 2000
    assert plain < wider
    assert wider >= least
