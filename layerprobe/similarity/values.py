"""What was measured between the layers of models, how, and how surely."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from layerprobe.checks import check_choice
from layerprobe.errors import DataError

Kernel = Literal["linear", "rbf"]
Estimator = Literal["debiased", "biased"]
Normalize = Literal["raw", "zscore"]
Alignment = Literal["same-index", "relative-depth", "best-match", "previous-layer"]
MeasureName = Literal["cka", "mutual-knn", "cknna", "rsa", "procrustes", "svcca", "pwcca"]


NEIGHBOUR_MEASURES = ("mutual-knn", "cknna")

Matrix = tuple[tuple[float, ...], ...]
"""matrix[i][j]: layer i of the model, layer j of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How two layers are compared: everything that a similarity depends on beside the data.

    Example:
        >>> Measure(kernel="rbf", bandwidth_multiplier=1.0).title
        'debiased RBF CKA'
        >>> Measure(name="mutual-knn", kernel=None, estimator=None, neighbours=10, normalize="zscore").title
        'mutual kNN (k = 10) of z-scored features'
    """

    name: MeasureName = "cka"
    """cka, or one of the measures beside it."""
    normalize: Normalize = "raw"
    """raw features, or each divided by its standard deviation."""
    kernel: Kernel | None = "linear"
    """cka: linear, or rbf with K = exp(-d^2 / (2 sigma^2)); None for other measures."""
    estimator: Estimator | None = "debiased"
    """cka: debiased (Song et al. 2012) or biased (Gretton et al. 2005); None for other measures."""
    bandwidth_multiplier: float | None = None
    """rbf: sigma = multiplier x the square root of the median of d^2 over i < j."""
    neighbours: int | None = None
    """mutual-knn, cknna: how many nearest neighbours of each sample count."""

    def __post_init__(self) -> None:
        check_choice(self.name, MeasureName, name="measure")
        check_choice(self.normalize, Normalize, name="normalize")
        if (self.name == "cka") != (self.kernel is not None) or (self.name == "cka") != (self.estimator is not None):
            raise DataError(f"expected a kernel and an estimator for cka and for no other measure, got {self}")
        if self.name == "cka":
            check_choice(self.kernel, Kernel, name="kernel")
            check_choice(self.estimator, Estimator, name="estimator")
        if (self.kernel == "rbf") != (self.bandwidth_multiplier is not None):
            raise DataError(f"expected a bandwidth multiplier for the rbf kernel and for no other, got {self}")
        if self.bandwidth_multiplier is not None and not 0 < self.bandwidth_multiplier < math.inf:
            raise DataError(
                f"bandwidth_multiplier is {self.bandwidth_multiplier}, expected a positive finite number such as 1.0"
            )
        if (self.name in NEIGHBOUR_MEASURES) != (self.neighbours is not None):
            raise DataError(f"expected neighbours for {' and '.join(NEIGHBOUR_MEASURES)} alone, got {self}")
        if self.neighbours is not None and self.neighbours < 1:
            raise DataError(f"expected at least one neighbour, got {self.neighbours}")

    @property
    def title(self) -> str:
        """What people call it."""
        names = {
            "mutual-knn": f"mutual kNN (k = {self.neighbours})",
            "cknna": f"CKNNA (k = {self.neighbours})",
            "rsa": "RSA",
            "procrustes": "Procrustes similarity",
            "svcca": "SVCCA",
            "pwcca": "PWCCA",
        }
        features = "" if self.normalize == "raw" else " of z-scored features"
        if self.name != "cka":
            return names[self.name] + features
        kernel = "RBF" if self.kernel == "rbf" else "linear"
        width = "" if self.bandwidth_multiplier in (None, 1.0) else f" (bandwidth x {self.bandwidth_multiplier:g})"
        return f"{self.estimator} {kernel} CKA{width}{features}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value, such as a similarity of two layers, and how far it may be from that of all texts like these."""

    value: float
    """The similarity, not clamped, or the mean of a score."""
    standard_error: float
    """Of the value."""
    lower: float
    """Of the interval at `level`."""
    upper: float
    """Of the interval at `level`."""
    level: float
    """Confidence level, such as 0.95."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapUncertainty:
    """How far each value of a map may be from that of all texts like these."""

    level: float
    """Confidence level of the intervals, such as 0.95."""
    standard_errors: Matrix
    """Of the values."""
    lower: Matrix
    """Of the pointwise interval."""
    upper: Matrix
    """Of the pointwise interval."""
    method: str
    """How the standard errors were had, in a few words."""
    n_clusters: int | None = None
    """Documents, where they and not texts are the independent units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutationNull:
    """What a map would show if the samples of the two models were not the same."""

    permutations: int
    """How often the texts of one model were shuffled."""
    level: float
    """Of the threshold, such as 0.95."""
    mean: Matrix
    """Mean similarity over the permutations."""
    threshold: Matrix
    """The level's quantile over the permutations and the value itself: similarity that chance reaches."""
    p_values: Matrix
    """(1 + permutations at least as similar) / (1 + permutations)."""
    calibrated: Matrix
    """(value - threshold) / (1 - threshold), 0 at chance and below, 1 for the same layer."""
    maximum_threshold: float
    """The same quantile of the largest value of a map: what is above it is above chance, however many pairs of layers
    were looked at."""
    maximum_p_value: float
    """Of the largest value of the map among the largest of each permutation."""
    maximum_calibrated: float
    """The largest value of the map, calibrated by `maximum_threshold`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityMap:
    """Every layer of one model against every layer of another."""

    measure: Measure
    """What the values are."""
    values: Matrix
    """Debiased values can be negative; nothing is clamped."""
    n_samples: int
    """Distinct texts."""
    sigma_squared: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """rbf: sigma^2 of every layer of the model and of the reference."""
    sigma_samples: int | None = None
    """rbf: how many samples the median was taken over; fewer than `n_samples` where there are many."""
    uncertainty: MapUncertainty | None = None
    """Of every value; None where a measure or an estimator has no intervals of maps."""
    null: PermutationNull | None = None
    """What chance shows; None where no permutations were asked for."""

    def __post_init__(self) -> None:
        widths = sorted({len(row) for row in self.values})
        if len(widths) != 1 or widths == [0]:
            raise DataError(f"expected a similarity map with rows of one length, got rows of lengths {widths}")
        if self.sigma_squared is not None and tuple(map(len, self.sigma_squared)) != self.shape:
            raise DataError(
                f"expected a sigma^2 for each of {self.shape} layers, got {tuple(map(len, self.sigma_squared))}"
            )
        for part in (self.uncertainty, self.null):
            for name, matrix in _matrices(part):
                if {(len(matrix), len(row)) for row in matrix} != {self.shape}:
                    raise DataError(f"expected {name} of {self.shape} layers, as the map has, got another shape")

    @property
    def shape(self) -> tuple[int, int]:
        """Layers of the model and of the reference."""
        return len(self.values), len(self.values[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveUncertainty:
    """How far a curve may be from that of all texts like these."""

    level: float
    """Confidence level of interval and band, such as 0.95."""
    lower: tuple[float, ...]
    """Of the pointwise interval of each layer."""
    upper: tuple[float, ...]
    """Of the pointwise interval of each layer."""
    band_lower: tuple[float, ...]
    """Of the band that holds the whole curve at the level."""
    band_upper: tuple[float, ...]
    """Of the same band."""
    covariance: Matrix
    """Of the errors of two layers of the model: samples that raise one often raise the next."""
    method: str = ""
    """How the errors were had, in a few words."""
    n_clusters: int | None = None
    """Documents, where they and not texts are the independent units."""

    def __post_init__(self) -> None:
        ends = (self.lower, self.upper, self.band_lower, self.band_upper, self.covariance, *self.covariance)
        if len({len(end) for end in ends}) != 1:
            raise DataError(f"expected ends and covariances of the same layers, got {[len(end) for end in ends]}")

    @property
    def n_layers(self) -> int:
        """Layers of the curve."""
        return len(self.lower)

    @property
    def standard_errors(self) -> tuple[float, ...]:
        """Of the values."""
        return tuple(math.sqrt(row[layer]) for layer, row in enumerate(self.covariance))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityCurve:
    """One similarity for every layer of a model."""

    values: tuple[float, ...]
    """By layer of the model."""
    reference_layers: tuple[int, ...]
    """The layer of the reference that each layer is compared with."""
    alignment: Alignment
    """How those were chosen."""
    uncertainty: CurveUncertainty | None = None
    """Of the values; None where there are too few texts, the estimator has no intervals, or none were asked for."""

    def __post_init__(self) -> None:
        if not self.values or len(self.values) != len(self.reference_layers):
            raise DataError(
                f"expected a curve with a reference layer for each value, got {len(self.values)} values and "
                f"{len(self.reference_layers)} reference layers"
            )
        if self.uncertainty is not None and self.uncertainty.n_layers != len(self.values):
            raise DataError(f"expected intervals of {len(self.values)} layers, got {self.uncertainty.n_layers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A paired difference of two similarities or scores on the same samples."""

    label: str
    """What less what, such as "layer 3: bert less roberta"."""
    value: float
    """The first less the second."""
    standard_error: float
    """Of the difference."""
    lower: float
    """Of the interval at `level`."""
    upper: float
    """Of the interval at `level`."""
    level: float
    """Confidence level, such as 0.95."""
    p_value: float
    """Two-sided, of no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDiagnostics:
    """What a similarity of this layer can suffer from."""

    n_samples: int
    """Distinct texts."""
    n_features: int
    """Width of an embedding."""
    dtype: str
    """Of the stored embeddings."""
    norm: Literal["none", "final", "raw"]
    """none: post-norm; final: the model's final norm is applied at every layer; raw: it was left out."""
    duplicates: int
    """Rows that are copies of an earlier row."""
    constant_features: int
    """Features that are the same for all samples."""
    mean_norm: float
    """Mean length of a row."""
    mean_cosine: float
    """Mean cosine of two different rows: anisotropy, near 1 where all embeddings point the same way."""
    top_dimension_share: float
    """Share of the total variance in the feature that varies most, 0 .. 1."""
    top_three_share: float
    """Share in the three features that vary most."""
    effective_rank: float
    """exp of the entropy of the shares of the covariance's eigenvalues: 1 .. min(n - 1, d)."""
    intrinsic_dimension: float | None
    """From the ratio of the distances to the two nearest neighbours; None where copies leave none."""
    chance_cka: float
    """Biased linear CKA of independent layers with this spectrum: near 0 for many samples, near 1 for few."""


def _matrices(part: MapUncertainty | PermutationNull | None) -> list[tuple[str, Matrix]]:
    """Return the fields of a value that are matrices, by their names in words."""
    if part is None:
        return []
    fields = [(f.name, getattr(part, f.name)) for f in dataclasses.fields(part)]
    return [(name.replace("_", " "), value) for name, value in fields if isinstance(value, tuple)]
