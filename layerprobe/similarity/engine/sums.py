"""Sums of the engine, and CKA computed from them. Knows numbers; knows no layers.

For U-centred Gram matrices A and B, <A, B> = n (n - 3) HSIC_1. With delta_i = k_ii minus the terms that U-centring
would subtract, the biased <HKH, HLH> is <A, B> + (1 - 2 / n) sum delta_i epsilon_i + sum delta sum epsilon / n^2:
K is A plus terms that H removes plus diag(delta). So one pass serves both estimators.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DegenerateLayerError
from layerprobe.similarity.checks import Array
from layerprobe.similarity.values import Estimator

ROUNDING = 100
"""Rounding, in units in the last place, of the norm of a Gram matrix that should be zero after centring."""

MOMENT_ROUNDING = 32
"""Rounding, in units in the last place, of the fourth moments of two equal layers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSums:
    """Sums of one U-centred Gram matrix A."""

    name: str
    inner: float
    """<A, A>."""
    diagonal: Array
    """(n,) delta."""
    spacing: float
    """Relative spacing of the layer's numbers."""
    per_sample: Array | None = None
    """(n,) sum_j A_ij^2."""
    fourth: float | None = None
    """sum_ij A_ij^4."""
    sigma_squared: float | None = None
    sigma_samples: int | None = None

    @property
    def parts(self) -> Array:
        """(n,) shares of the samples in <A, A>: they add up to 1."""
        assert self.per_sample is not None
        shares: Array = self.per_sample / self.inner
        return shares

    @property
    def biased(self) -> float:
        """<HKH, HKH>."""
        n, delta = len(self.diagonal), self.diagonal
        return self.inner + float((1 - 2 / n) * (delta @ delta) + delta.sum() * delta.sum() / n**2)

    def norm(self, estimator: Estimator) -> float:
        """Return the root of the inner product with itself."""
        inner = self.inner if estimator == "debiased" else self.biased
        # Written so that NaN fails as well.
        if not inner > (ROUNDING * self.spacing) ** 2 * abs(self.biased):
            raise DegenerateLayerError(
                f"{self.name} has a {estimator} HSIC with itself that is not positive, expected samples with different "
                "distances: compare models on more and different texts, or with another "
                "bandwidth"
            )
        return float(np.sqrt(inner))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Sums over the U-centred Gram matrices of every layer of one model (A) and of another (B) by one measure."""

    rows: list[LayerSums]
    """Sums by layer of the model."""
    columns: list[LayerSums]
    """Sums by layer of the reference."""
    inner: Array
    """(layers, layers) <A, B>."""
    per_sample: NDArray[np.floating] | None = None
    """(layers, layers, n) sum_j A_ij B_ij, in the dtype of products."""
    moments: tuple[Array, Array, Array] | None = None
    """(layers, layers) sums of A^2 B^2, of A^3 B and of A B^3."""

    def cka(self, estimator: Estimator) -> Array:
        """Return (layers, layers) CKA."""
        norms = [np.array([layer.norm(estimator) for layer in layers]) for layers in (self.rows, self.columns)]
        inner = self.inner
        if estimator == "biased":
            first, second = (np.stack([layer.diagonal for layer in layers]) for layers in (self.rows, self.columns))
            n = first.shape[1]
            inner = inner + (1 - 2 / n) * first @ second.T + np.outer(first.sum(axis=1), second.sum(axis=1)) / n**2
        values: Array = inner / np.outer(*norms)
        return values

    def influence(self, at: tuple[int, int]) -> Array:
        """Return the (n,) influence of every sample on the debiased CKA of layers at[0] and at[1] of the two models.

        psi_i = n (2 h_i(A, B) - theta (h_i(A, A) + h_i(B, B))) for A and B with norm 1, with h_i the part of the inner
        product that involves sample i: the derivative of the ratio of U-statistics by the weight of a sample. Its
        mean is 0, and its variance over n is that of theta, to first order.
        """
        first, second = self.rows[at[0]], self.columns[at[1]]
        norms = first.norm("debiased") * second.norm("debiased")
        theta = self.inner[at] / norms
        shares = first.parts + second.parts
        assert self.per_sample is not None
        psi: Array = len(shares) * (2 * self.per_sample[at].astype(np.float64) / norms - theta * shares)
        return psi

    def norm_influence(self, at: tuple[int, int]) -> Array:
        """Return the (n,) influence, with mean 0, of every sample on (<A, A> + <B, B>) / 2 for A and B with norm 1.

        The influence on <A, B> - x (<A, A> + <B, B>) / 2, for any x instead of theta, is psi - (x - theta) times it.
        """
        shares = self.rows[at[0]].parts + self.columns[at[1]].parts
        centred: Array = len(shares) * shares - 2
        return centred

    def pair_variance(self) -> Array:
        """Return the (layers, layers) parts of the variance of debiased CKA that come from pairs of samples.

        2 zeta_2 / (n (n - 1)), with zeta_2 the mean square of the kernel of order two whose mean is the value,
        n^2 (A_ij B_ij - theta (A_ij^2 + B_ij^2) / 2).
        """
        assert self.moments is not None
        a = np.array([layer.norm("debiased") for layer in self.rows])[:, None]
        b = np.array([layer.norm("debiased") for layer in self.columns])
        n = len(self.rows[0].diagonal)
        theta = self.inner / (a * b)
        both, left, right = self.moments
        fourth_a, fourth_b = (
            np.array([layer.fourth for layer in layers], dtype=np.float64) for layers in (self.rows, self.columns)
        )
        terms: NDArray[np.float64] = (4 + 2 * theta**2) * both / (a * b) ** 2 + theta**2 * (
            fourth_a[:, None] / a**4 + fourth_b / b**4
        )
        fourth = terms - 4 * theta * (left / (a**3 * b) + right / (a * b**3))
        assert self.per_sample is not None
        rounding = MOMENT_ROUNDING * np.finfo(self.per_sample.dtype).eps * terms
        zeta = n**4 * np.where(fourth > rounding, fourth, 0) / 4 / (n * (n - 1))
        variance: Array = 2 * zeta / (n * (n - 1))
        return variance
