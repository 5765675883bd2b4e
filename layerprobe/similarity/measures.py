"""The measures of similarity: CKA, mutual nearest neighbours, Procrustes and SVCCA. Knows arrays; knows no models.

The values of CKA come from `layerprobe.similarity.cka`; here are its kernel and estimator.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.checks import check_choice
from layerprobe.errors import DataError, DegenerateLayerError, option
from layerprobe.files.serialisation import RARE
from layerprobe.similarity.checks import Array, centred_layer, finite_matrix, unit_rows
from layerprobe.similarity.values import CHANCE, ROTATIONS, Diagnosed, Estimator, Kernel, LayerMeasure, Measure

SOURCES: dict[Estimator, str] = {"debiased": "Song et al. 2012", "biased": "Gretton et al. 2005"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CKA(Measure):
    """Centred kernel alignment with the linear kernel, or the Gaussian one, K = exp(-d^2 / (2 sigma^2)).

    Examples:
        >>> CKA(estimator="biased").title
        'biased linear CKA'
        >>> CKA(kernel="rbf", bandwidth_multiplier=0.5, normalize="zscore").title
        'debiased RBF CKA (bandwidth x 0.5) of z-scored features'
    """

    name = "cka"
    short_name = "CKA"
    source = "Kornblith et al. 2019 (arXiv 1905.00414)"
    range = (-1.0, 1.0)
    invariances = ROTATIONS | {"translation"}

    kernel: Kernel = "linear"
    """linear, or rbf: the Gaussian one."""
    estimator: Estimator = "debiased"
    """debiased (Song et al. 2012) or biased (Gretton et al. 2005)."""
    bandwidth_multiplier: float | None = field(default=None, metadata=RARE)
    """rbf: sigma = multiplier x the square root of the median of d^2 over i < j, by default 1; None of linear CKA."""

    def __post_init__(self) -> None:
        Measure.__post_init__(self)
        check_choice(self.kernel, Kernel, name="kernel")
        check_choice(self.estimator, Estimator, name="estimator")
        if self.kernel == "rbf" and self.bandwidth_multiplier is None:
            object.__setattr__(self, "bandwidth_multiplier", 1.0)
        width = self.bandwidth_multiplier
        if self.kernel == "linear" and width is not None:
            raise DataError(f"expected no bandwidth with the linear kernel, got {width}: use {option('kernel', 'rbf')}")
        if width is not None and not 0 < width < math.inf:
            raise DataError(f"bandwidth_multiplier is {width}, expected a positive finite number such as 1.0")

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        if self.kernel == "linear":
            return f"{self.estimator} linear CKA"
        width = "" if self.bandwidth_multiplier == 1.0 else f" (bandwidth x {self.bandwidth_multiplier:g})"
        return f"{self.estimator} RBF CKA{width}"

    @property
    def conventions(self) -> tuple[str, ...]:
        """Kernel, bandwidth and estimator."""
        kernel = "linear kernel"
        if self.kernel == "rbf":
            width = f"σ = {self.bandwidth_multiplier:g} × the root of the median of d² over i < j"
            kernel = f"RBF kernel exp(−d²/2σ²), {width}"
        return kernel, f"{self.estimator} HSIC ({SOURCES[self.estimator]})"

    @property
    def robustly(self) -> str:
        """Advice in words for comparisons dominated by a few texts."""
        if self.kernel == "rbf":
            return "on more texts"
        return "with the kernel rbf, where no text weighs much more than another"

    def chance_warning(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean biased linear CKA of independent layers, sqrt(a b) with their chance CKAs a and b.

        Source: Josse and Holmes 2016 (arXiv 1307.7383).
        """
        first, second = (max(layers, key=lambda layer: layer.chance_cka) for _, layers in (model, reference))
        level = math.sqrt(first.chance_cka * second.chance_cka)
        if self.estimator == "debiased" or level <= CHANCE:
            return None
        # the last of equals: a layer 0 that is left out repeats layer 1
        where = " and ".join(
            f"layer {len(layers) - 1 - layers[::-1].index(layer)} of {name}"
            for (name, layers), layer in ((model, first), (reference, second))
        )
        # Both flatten the spectrum, which raises the level.
        more = " or more" if self.normalize == "zscore" or self.kernel == "rbf" else ""
        return (
            f"{where}: independent layers with these spectra would show a biased CKA of {level:.2f}{more}, a "
            f"baseline of all values: compare with {option('estimator', 'debiased')}, or on more texts"
        )


BLOCK = 512
"""Rows whose cosines with all others are in memory at once."""


Pairs = NDArray[np.int64]
"""(n k,) i n + j for every neighbour j of every sample i, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualKNN(LayerMeasure[Pairs]):
    """The mean share of nearest neighbours common to two layers.

    m = 1 / n sum_i |N_X(i) & N_Y(i)| / k, where N(i) are the k other samples with the largest cosine to sample i.
    By the inner product, rows with a large norm would be everyone's neighbours. Rows are not centred. Independent
    layers share k / (n - 1) on average. The choice among equal cosines is not specified: leave out duplicate samples.

    Source: Huh et al. 2024 (arXiv 2405.07987), with the L2-normalised features of its code.

    Examples:
        >>> MutualKNN(neighbours=10, normalize="zscore").title
        'mutual kNN (k = 10) of z-scored features'
    """

    name = "mutual-knn"
    short_name = "mutual kNN"
    source = "Huh et al. 2024 (arXiv 2405.07987)"
    range = (0.0, 1.0)
    invariances = ROTATIONS | {"row-scaling"}
    by_cosine = True

    neighbours: int = 10
    """Number of nearest neighbours per sample."""

    def __post_init__(self) -> None:
        LayerMeasure.__post_init__(self)
        if self.neighbours < 1:
            raise DataError(f"expected at least one neighbour, got {self.neighbours}")

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        return f"{self.short_name} (k = {self.neighbours})"

    @property
    def least_samples(self) -> int:
        """Smallest number of texts: with as many neighbours as other samples, every value is 1 with error 0."""
        return self.neighbours + 2

    def prepare(self, layer: ArrayLike, *, name: str) -> Pairs:
        """Return the nearest neighbours of its samples; it needs memory for a block of rows of n cosines."""
        centred_layer(layer, name=name)  # for its checks
        units = unit_rows(finite_matrix(layer, name=name), name=name)
        n = len(units)
        if self.neighbours >= n:
            raise DataError(
                f"neighbours is {self.neighbours}, expected 1 to {n - 1}, the other samples of {name}: "
                "use fewer neighbours or more texts"
            )
        return np.concatenate([_nearest(units, start, self.neighbours) for start in range(0, n, BLOCK)])

    def compare(self, first: Pairs, second: Pairs) -> float:
        """Return the mean share of common neighbours of two layers."""
        return float(np.isin(first, second, assume_unique=True).mean())

    def chance_warning(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean share of independent layers, k / (n - 1)."""
        level = min(self.neighbours / (n - 1), 1.0)
        if level <= CHANCE:
            return None
        return (
            f"{self.neighbours} neighbours among {n} texts are many: independent layers would share "
            f"{100 * level:.0f} % of them: compare with fewer neighbours, or on more texts"
        )


def _nearest(units: Array, start: int, neighbours: int) -> Pairs:
    """Return the pairs of a block of rows."""
    cosines = units[start : start + BLOCK] @ units.T
    rows = np.arange(start, start + len(cosines))
    cosines[rows - start, rows] = -np.inf
    nearest = np.sort(np.argpartition(cosines, -neighbours, axis=1)[:, -neighbours:], axis=1)
    return (rows[:, None] * len(units) + nearest).ravel()


QUARTER_CIRCLE = 8 / (3 * math.pi)
"""Ratio of mean to root mean square of the singular values of a large random matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procrustes(LayerMeasure[Array]):
    """How well a rotation maps one layer onto another.

    s = |X^T Y|_* for centred X and Y of Frobenius norm 1, the sum of singular values: the largest tr(Q^T X^T Y)
    over rotations Q. arccos s is the angular shape distance, a metric, and 2 - 2 s the squared Procrustes distance.
    With few samples and many features it is near 1 for independent layers.

    Source: Williams et al. 2021 (arXiv 2110.14739), the angular distance.

    Examples:
        >>> from layerprobe.similarity.maps import layer_similarity
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(layer_similarity(X, 3 * X[:, ::-1] + 1, Procrustes()), 12)
        1.0
    """

    name = "procrustes"
    short_name = "Procrustes"
    source = "Williams et al. 2021 (arXiv 2110.14739)"
    range = (0.0, 1.0)
    invariances = ROTATIONS | {"translation"}

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        return "Procrustes similarity"

    def prepare(self, layer: ArrayLike, *, name: str) -> Array:
        """Return the layer without mean, size and orientation.

        It is (n, min(n, d)) with columns of mean 0 and Frobenius norm 1; rotated into n columns if there are more
        features.
        """
        centred = centred_layer(layer, name=name)
        # Products with another layer have the same singular values for any rotation: X = R^T Q^T, and R^T is enough.
        columns = centred if centred.shape[1] <= len(centred) else np.linalg.qr(centred.T).R.T
        return columns / np.linalg.norm(columns)

    def compare(self, first: Array, second: Array) -> float:
        """Return the sum of singular values of X^T Y."""
        return float(np.linalg.norm(first.T @ second, ord="nuc"))

    def chance_warning(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean sum of singular values of X^T Y for independent layers.

        Their squares sum to 1 / (n - 1) on average; of r values that fill a quarter circle, the sum is then
        8 / (3 pi) sqrt(r / (n - 1)). With r the effective rank this is 1 to 25 % too low.
        """
        rank = min(max(layer.effective_rank for layer in layers) for _, layers in (model, reference))
        level = QUARTER_CIRCLE * math.sqrt(rank / (n - 1))
        if level <= CHANCE:
            return None
        return (
            f"{model[0]} and {reference[0]} have layers of effective rank {rank:.0f} or more: on {n} "
            f"texts independent ones would show a Procrustes similarity of {level:.2f} or more: use cka, or compare "
            "with the value for shuffled texts"
        )


RANK = 1e-6
"""Singular values below this share of the largest are rounding: embeddings are stored in float32."""


Subspace = tuple[str, Array]
"""Name of a layer, and the (n, k) orthonormal directions, with mean 0, in which its samples vary most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SVCCA(LayerMeasure[Subspace]):
    """The mean canonical correlation of the principal components of two layers.

    Of each centred layer the fewest components are kept whose squared singular values reach a share of their sum; the
    value is the mean of the min(k_X, k_Y) singular values of U_X^T U_Y. It is the same for any invertible map only
    with all of the variance. Independent layers are far from 0 unless n is much larger than the number of components:
    about sqrt(k / n). It is blind to the scale of features, so that every direction of noise that is kept counts as
    much as any other. Layers that keep more than n - 1 components in total share directions whatever the data: such a
    pair is refused instead of called similar.

    Source: Raghu et al. 2017 (arXiv 1706.05806).

    Examples:
        >>> from layerprobe.similarity.maps import layer_similarity
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(layer_similarity(X, 3 * X[:, ::-1] + 1, SVCCA()), 12), layer_similarity(X, X**2, SVCCA()) < 0.5
        (1.0, True)
    """

    name = "svcca"
    short_name = "SVCCA"
    source = "Raghu et al. 2017 (arXiv 1706.05806)"
    range = (0.0, 1.0)
    invariances = ROTATIONS | {"translation"}

    variance: float = 0.99
    """Share of the variance to keep; components below 1e-6 of the largest singular value are never kept."""

    def __post_init__(self) -> None:
        LayerMeasure.__post_init__(self)
        if not 0 < self.variance <= 1:
            raise DataError(f"variance is {self.variance}, expected a share above 0 and at most 1 such as 0.99")

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        return "SVCCA" if self.variance == 0.99 else f"SVCCA ({100 * self.variance:g} % of the variance)"

    def prepare(self, layer: ArrayLike, *, name: str) -> Subspace:
        """Return the directions of most of its variance."""
        return name, principal_subspace(layer, name=name, variance=self.variance)

    def compare(self, first: Subspace, second: Subspace) -> float:
        """Return the mean of the canonical correlations, the singular values of U_X^T U_Y."""
        (name, basis), (other_name, other_basis) = first, second
        (n, size), other_size = basis.shape, other_basis.shape[1]
        forced = size + other_size - (n - 1)
        if forced > 0:
            raise DegenerateLayerError(
                f"{name} and {other_name} keep {size} and {other_size} dimensions of {n} samples, expected at most "
                f"{n - 1} together: {forced} canonical correlations are 1 whatever the data; compare on at least "
                f"{n + forced} texts, or use CKA or Procrustes similarity"
            )
        return float(np.linalg.svd(basis.T @ other_basis, compute_uv=False).mean())

    def chance_warning(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean squared canonical correlation of independent layers, max(d, e) / (n - 1)."""
        width, name = max((layer.n_features, name) for name, layers in (model, reference) for layer in layers)
        level = width / (n - 1)
        if level <= CHANCE:
            return None
        start = f"{name} has {width} features on {n} texts: "
        advice = f"use cka, or at least {math.ceil(width / CHANCE) + 1} texts"
        if n <= width:
            return f"{start}any two layers of full rank then correlate fully, so {self.title} is meaningless: {advice}"
        return (
            f"{start}independent layers would show canonical correlations of up to about {math.sqrt(level):.2f}: "
            f"{advice}"
        )


def principal_subspace(X: ArrayLike, *, name: str, variance: float) -> Array:
    """Return the fewest principal components that reach a share of the variance, without rounding noise."""
    left, scales, _ = np.linalg.svd(centred_layer(X, name=name), full_matrices=False)
    rank = int((scales > RANK * scales[0]).sum())
    shares = np.cumsum((scales / scales[0]) ** 2)
    return left[:, : min(rank, int(np.searchsorted(shares, variance * shares[-1])) + 1)]
