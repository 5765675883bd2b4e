"""What a nat of InfoNCE is worth, by the curves of models: its likelihood by another formula, and a worth put in."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from benchmarks.fit_rules import log_likelihoods, score_covariances
from layerprobe.search.values import Evidence, Score

CHOICES = [(0.0, 0.0), (3.0, 0.0), (3.0, 2.0), (-4.0, 5.0)]


def test_the_likelihood_is_that_of_a_mixture_of_normal_laws() -> None:
    rng = np.random.default_rng(0)
    scores = tuple(
        Score(layer=layer, seed=seed, value=float(rng.normal(50, 3))) for layer in range(7) for seed in range(2)
    )
    infonce = tuple(rng.normal(-3, 1, size=7).tolist())
    evidence = Evidence(n_blocks=6, scores=scores, infonce=infonce)
    layers = np.array([score.layer for score in scores])
    y, blocks = np.array([score.value for score in scores]), np.array(infonce[1:])
    r = np.array([blocks[0], *blocks])[layers] - blocks.mean()  # layer 0 counts as layer 1
    covariances, log_priors = score_covariances(evidence)

    def direct(slope: float, slope_sd: float) -> float:
        mean = y.mean() + slope * (r - r.mean())
        laws = [
            multivariate_normal(mean, covariance + slope_sd**2 * np.outer(r, r)).logpdf(y) for covariance in covariances
        ]
        return float(logsumexp(log_priors + laws))

    expected = np.array([direct(*choice) for choice in CHOICES])
    given = log_likelihoods(evidence, CHOICES)
    np.testing.assert_allclose(given - given[0], expected - expected[0], rtol=1e-8, atol=1e-8)
