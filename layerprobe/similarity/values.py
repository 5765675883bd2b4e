"""Measures of similarity, and maps and curves of layers with their uncertainty."""

from __future__ import annotations

import abc
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE, to_dict
from layerprobe.registry import Registry
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown, mask_left_out
from layerprobe.results.table import Chart, Column, Form, Line, Quantity, Table, interval_title

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Kernel = Literal["linear", "rbf"]
Estimator = Literal["debiased", "biased"]
Normalize = Literal["raw", "zscore"]
Alignment = Literal["same-index", "relative-depth", "best-match", "previous-layer"]
Invariance = Literal[
    "translation",
    "isotropic-scaling",
    "permutation",
    "orthogonal",
    "invertible-linear",
    "row-scaling",
]
"""Maps of either layer: X + 1 c^T; aX with a > 0; permuted features; XQ with orthogonal Q; XA with
invertible A; D X with positive diagonal D."""
ROTATIONS: frozenset[Invariance] = frozenset({"isotropic-scaling", "permutation", "orthogonal"})

CHANCE = 0.05
"""Similarity of independent layers from which to warn: more than the width of intervals with 100 texts."""
SETTINGS = {
    "kernel": "string",
    "estimator": "string",
    "normalize": "string",
    "bandwidth_multiplier": "float64",
    "neighbours": "Int64",
}
"""Settings of measures that are columns in tables of pairs of layers, with their dtypes; empty for other measures."""
MEASURES: Registry[type] = Registry(
    "layerprobe.measures",
    type,
    what="measure",
    shipped={
        "cka": "layerprobe.similarity.measures:CKA",
        "mutual-knn": "layerprobe.similarity.measures:MutualKNN",
        "procrustes": "layerprobe.similarity.measures:Procrustes",
        "svcca": "layerprobe.similarity.measures:SVCCA",
    },
)
"""Subclasses of `Measure` by their names in the command line and JSON."""
Matrix = tuple[tuple[float, ...], ...]
"""`matrix[i][j]`: layer i of the model, layer j of the reference."""
PreparedLayer = TypeVar("PreparedLayer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(abc.ABC):
    """A measure of similarity, with all settings that a similarity depends on.

    Subclasses are frozen dataclasses whose fields are their settings, each with a default. They are
    registered in `MEASURES`, or by another package under the entry points `layerprobe.measures`.
    """

    name: ClassVar[str]
    """Registered name, for the command line and JSON."""
    short_name: ClassVar[str]
    """Name for axes and table heads."""
    source: ClassVar[str]
    """The paper that defines it."""
    range: ClassVar[tuple[float, float]]
    """Range of its values, up to rounding; nothing is clamped."""
    invariances: ClassVar[frozenset[Invariance]]
    """All maps of either layer that leave the value unchanged; others change it."""
    by_cosine: ClassVar[bool] = False
    """Whether it compares cosines, which a direction common to all embeddings dominates."""
    json_tags: ClassVar[tuple[str, ...]] = ("name",)
    """Attributes in JSON besides the fields: the name identifies the class."""

    normalize: Normalize = "raw"
    """raw features, or each divided by its standard deviation."""

    def __post_init__(self) -> None:
        check_choice(self.normalize, Normalize, name="normalize")

    @classmethod
    def class_of(cls, settings: dict[str, Any]) -> tuple[type[Measure], dict[str, Any]]:
        """Return the class of a measure and its fields from JSON."""
        if not isinstance(settings.get("name"), str):
            raise DataError(f"expected the name of a measure, got {settings.get('name')!r}")
        return measure_class(settings["name"]), {key: value for key, value in settings.items() if key != "name"}

    @property
    def title(self) -> str:
        """Full name."""
        return self.long_name + ("" if self.normalize == "raw" else " of z-scored features")

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        return self.short_name

    @property
    @abc.abstractmethod
    def conventions(self) -> tuple[str, ...]:
        """Its settings in words, apart from features and texts."""

    @property
    def robustly(self) -> str:
        """Advice in words for comparisons dominated by a few texts."""
        return "on more texts"

    def chance_warning(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Return a warning if independent layers of n texts have a similarity above `CHANCE`; else None."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasure(Measure, Generic[PreparedLayer]):
    """A measure with work once per layer and work for every pair; all measures except CKA."""

    @property
    def conventions(self) -> tuple[str, ...]:
        """Its name."""
        return (self.title[0].upper() + self.title[1:],)

    @property
    def least_samples(self) -> int:
        """Smallest number of texts with meaningful values, if more than the four that every measure needs."""
        return 0

    @abc.abstractmethod
    def prepare(self, layer: ArrayLike, *, name: str) -> PreparedLayer:
        """Return the prepared form of a layer: (n, d) raw or z-scored embeddings, with a `name` for messages.

        Raises:
            DataError: If it is not a matrix of real numbers.
            DegenerateLayerError: If its similarity is undefined.
        """

    @abc.abstractmethod
    def compare(self, first: PreparedLayer, second: PreparedLayer) -> float:
        """Return the value of two prepared layers of the same samples."""


def measure_class(name: str) -> type[Measure]:
    """Return the class registered under a name; raise DataError if there is none, or it has another name."""
    kind = MEASURES[name]
    if not (issubclass(kind, Measure) and kind.name == name):
        raise DataError(f"expected {kind.__module__}:{kind.__name__} to be a Measure with the name {name!r}")
    return kind


def resolve_measure(measure: Measure | str | None) -> Measure:
    """Return a measure from its name, as on the command line, or from an instance; by default CKA.

    Examples:
        >>> resolve_measure("svcca").name
        'svcca'
    """
    if isinstance(measure, Measure):
        return measure
    if measure is None or isinstance(measure, str):
        return measure_class(measure or "cka")()
    raise DataError(f"expected a measure, one of {', '.join(MEASURES)}, or an instance of its class, got {measure!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapUncertainty:
    """Uncertainty of each value of a map over new texts."""

    level: float
    """Confidence level of the intervals, such as 0.95."""
    standard_errors: Matrix
    """Standard errors of the values."""
    lower: Matrix
    """Lower ends of the pointwise intervals."""
    upper: Matrix
    """Upper ends of the pointwise intervals."""
    method: str
    """Method of the standard errors, in a few words."""
    n_groups: int | None = None
    """Number of groups, if they are the independent units instead of texts."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimilarityMap(Shown):
    """Every layer of one model against every layer of another."""

    measure: Measure
    """The measure of the values."""
    values: Matrix
    """Similarities; debiased values can be negative, nothing is clamped."""
    n_samples: int
    """Number of distinct texts."""
    sigma_squared: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """rbf: sigma^2 of every layer of the model and of the reference."""
    sigma_samples: int | None = None
    """rbf: number of samples for the median; less than `n_samples` if there are many."""
    uncertainty: MapUncertainty | None = None
    """Uncertainty of every value; None if the measure or estimator has no intervals of maps."""
    effective_shares: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Effective sample size of HSIC(K, K), by layer of the model and of the reference, as a share of texts or groups:
    (sum h)^2 / sum h^2 of their parts h. Below `LEAST_SHARE` a few dominate, and intervals may be too narrow; None
    without intervals."""
    first_layers: tuple[int, int] = field(default=(0, 0), metadata=RARE)
    """The first layer of the model and of the reference that is not left out; earlier ones repeat its values."""
    collapsed: tuple[int, int] = field(default=(0, 0), metadata=RARE)
    """Numbers of last layers left out because they give all texts the same embedding; they repeat the one before."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers of the model and of the reference."""
        return len(self.values), len(self.values[0])

    @property
    def layers(self) -> tuple[range, range]:
        """The layers of the model and of the reference that are not left out."""
        sides = zip(self.first_layers, self.shape, self.collapsed, strict=True)
        rows, columns = (range(first, n - collapsed) for first, n, collapsed in sides)
        return rows, columns

    @property
    def conclusion(self) -> Conclusion:
        """The most and the least similar layers."""
        (low, *least), (high, *most) = (end((self.values[i][j], i, j) for i, j in self.cells) for end in (min, max))
        ends, errors = None, self.uncertainty
        if errors is not None:
            ends = errors.lower[most[0]][most[1]], errors.upper[most[0]][most[1]]
        highest = Fact(value=high, unit="similarity", interval=ends, level=None if errors is None else errors.level)
        return Conclusion(
            kind="compare",
            case="map",
            verdict=Verdict.DECIDED,
            facts={
                "highest": highest,
                "lowest": Fact(value=low, unit="similarity"),
                "texts": Fact(value=self.n_samples, unit="count"),
            },
            names={
                "measure": self.measure.title[:1].upper() + self.measure.title[1:],
                "items": "samples",
                "row": most[0],
                "column": most[1],
                "low_row": least[0],
                "low_column": least[1],
            },
        )

    @property
    def cells(self) -> list[tuple[int, int]]:
        """The pairs of layers that are not left out."""
        rows, columns = self.layers
        return [(i, j) for i in rows for j in columns]

    @property
    def table(self) -> Table:
        """One row per pair of layers: the similarity with its interval."""
        return self.between("the first", "the second")

    def between(self, model: str, reference: str) -> Table:
        """Return the table of pairs of layers, with the names of the models, drawn as a map."""
        cells, errors, name = self.cells, self.uncertainty, self.measure.short_name
        ends = [errors and (errors.lower[i][j], errors.upper[i][j]) for i, j in cells]
        values = [self.values[i][j] for i, j in cells]
        interval = interval_title(errors.level) if errors else "interval"
        line = Line("value", interval="value" if errors else "")
        return Table(
            title=f"All pairs of layers: {model} and {reference}",
            columns=(
                Column("layer", [i for i, _ in cells], f"layer of {model}"),
                Column("reference_layer", [j for _, j in cells], f"layer of {reference}"),
                Column("value", values, name, ".3f", quantity=Quantity(self.measure.title)),
                Column("value", ends, interval, ".3f", interval=True, over="over new texts"),
            ),
            charts=(
                Chart(
                    lines=(line,), name="map", kind="map", x="reference_layer", y="layer", chosen="pairs of the curve"
                ),
            ),
        )

    @property
    def sources(self) -> dict[str, str]:
        """The measure and the texts."""
        return {"Similarity": "; ".join(self.measure.conventions), "Samples": f"{self.n_samples}"}

    @property
    def pairs(self) -> Table:
        """One row per pair of layers that are not left out, with the same columns for all measures, for files."""
        cells, settings, errors = self.cells, to_dict(self.measure), self.uncertainty
        n = len(cells)
        sigma = self.sigma_squared or tuple([None] * n_layers for n_layers in self.shape)
        matrices = {
            "value": self.values,
            "standard_error": errors and errors.standard_errors,
            "lower": errors and errors.lower,
            "upper": errors and errors.upper,
        }
        return Table(
            columns=(
                Column("n_samples", [self.n_samples] * n, dtype="int64"),
                Column("measure", [self.measure.name] * n, dtype="string"),
                *(Column(name, [settings.get(name)] * n, dtype=dtype) for name, dtype in SETTINGS.items()),
                Column("layer", [i for i, _ in cells], dtype="int64"),
                Column("reference_layer", [j for _, j in cells], dtype="int64"),
                *(
                    Column(name, [matrix and matrix[i][j] for i, j in cells], dtype="float64")
                    for name, matrix in matrices.items()
                ),
                Column("level", [errors and errors.level] * n, dtype="float64"),
                Column("sigma_squared", [sigma[0][i] for i, _ in cells], dtype="float64"),
                Column("reference_sigma_squared", [sigma[1][j] for _, j in cells], dtype="float64"),
            ),
            title="Pairs of layers",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveUncertainty:
    """Uncertainty of a curve over new texts."""

    level: float
    """Confidence level of interval and band, such as 0.95."""
    lower: tuple[float, ...]
    """Lower ends of the pointwise intervals, by layer."""
    upper: tuple[float, ...]
    """Upper ends of the pointwise intervals, by layer."""
    band_lower: tuple[float, ...]
    """Lower edge of the band that contains the whole curve at the level."""
    band_upper: tuple[float, ...]
    """Upper edge of the same band."""
    covariance: Matrix
    """Covariance of the errors of layers: samples that raise one often raise the next."""

    @property
    def standard_errors(self) -> tuple[float, ...]:
        """Standard errors of the values."""
        return tuple(math.sqrt(row[layer]) for layer, row in enumerate(self.covariance))

    def interval_column(self, name: str, layers: Collection[int], *, form: Form = ".4f") -> Column:
        """Return the column of pointwise intervals of the given layers, empty for others."""
        ends = list(zip(self.lower, self.upper, strict=True))
        return Column(
            name,
            mask_left_out(layers, ends),
            title=interval_title(self.level),
            form=form,
            interval=True,
            over="over new texts",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityCurve:
    """One similarity for every layer of a model."""

    values: tuple[float, ...]
    """Values by layer of the model."""
    reference_layers: tuple[int, ...]
    """The layer of the reference for each layer."""
    alignment: Alignment
    """Rule that chose the reference layers."""
    uncertainty: CurveUncertainty | None = None
    """Uncertainty of the values; None with too few texts, an estimator without intervals, or if not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDiagnostics:
    """Properties of a layer that can distort its similarities."""

    n_samples: int
    """Number of distinct texts."""
    n_features: int
    """Width of an embedding."""
    dtype: str
    """Dtype of the stored embeddings."""
    norm: Literal["none", "final", "raw", "last"]
    """As in the description of the model."""
    duplicates: int
    """Number of rows that are copies of an earlier row."""
    constant_features: int
    """Number of features that are the same for all samples."""
    mean_norm: float
    """Mean norm of a row."""
    mean_cosine: float
    """Mean cosine of two different rows: anisotropy, near 1 if all embeddings point the same way."""
    top_dimension_share: float
    """Share of the total variance in the feature with the largest variance, 0 .. 1."""
    top_three_share: float
    """Share of the total variance in the three features with the largest variance, 0 .. 1."""
    effective_rank: float
    """exp of the entropy of the shares of the covariance's eigenvalues: 1 .. min(n - 1, d)."""
    intrinsic_dimension: float | None
    """Estimate from the ratio of the distances to the two nearest neighbours; None if copies leave none."""
    chance_cka: float
    """Biased linear CKA of independent layers with this spectrum: near 0 for many samples, near 1 for few."""


Diagnosed: TypeAlias = tuple[str, tuple[LayerDiagnostics, ...]]
"""A model's name and the diagnostics of its layers."""


def to_matrix(values: NDArray[np.float64]) -> Matrix:
    """Return an array as nested tuples."""
    return tuple(map(tuple, values.tolist()))
