"""What was measured between the layers of models, how, and how certain that is."""

from __future__ import annotations

import abc
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from layerprobe.checks import check_choice
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE, to_dict
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown, mask_left_out
from layerprobe.results.table import Column, Form, Table, interval_title
from layerprobe.similarity.registry import MEASURES

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
"""What may be done to either layer: X + 1 c^T; aX with a > 0; features in another order; XQ with orthogonal Q; XA with
invertible A; D X with positive diagonal D."""
ROTATIONS: frozenset[Invariance] = frozenset({"isotropic-scaling", "permutation", "orthogonal"})

CHANCE = 0.05
"""Similarity of independent layers from which on it is warned of: more than the intervals of 100 texts hide."""

SETTINGS = {
    "kernel": "string",
    "estimator": "string",
    "normalize": "string",
    "bandwidth_multiplier": "float64",
    "neighbours": "Int64",
}
"""Settings of measures that tables of pairs of layers have as columns, with their dtypes; missing elsewhere."""

Matrix = tuple[tuple[float, ...], ...]
"""`matrix[i][j]`: layer i of the model, layer j of the reference."""
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(abc.ABC):
    """How two layers are compared: everything that a similarity depends on besides the data.

    Subclasses are frozen dataclasses whose fields are the settings that they have, each with a default. They are
    registered in `MEASURES`, or by another package under the entry points `layerprobe.measures`.
    """

    name: ClassVar[str]
    """As registered, for the command line and JSON."""
    short_name: ClassVar[str]
    """For axes and the heads of tables."""
    source: ClassVar[str]
    """The paper that defines it."""
    range: ClassVar[tuple[float, float]]
    """Of its values, up to rounding; nothing is clamped."""
    invariances: ClassVar[frozenset[Invariance]]
    """All that leave the value as it is, whichever layer they are applied to; those not named change it."""
    by_cosine: ClassVar[bool] = False
    """Whether it compares cosines, of which a direction that all embeddings share takes the most."""
    json_tags: ClassVar[tuple[str, ...]] = ("name",)
    """JSON has it besides the fields: the class follows from it."""

    normalize: Normalize = "raw"
    """raw features, or each divided by its standard deviation."""

    def __post_init__(self) -> None:
        check_choice(self.normalize, Normalize, name="normalize")

    @classmethod
    def class_of(cls, settings: dict[str, Any]) -> tuple[type[Measure], dict[str, Any]]:
        """Return the class of a measure and its fields from what JSON says."""
        if not isinstance(settings.get("name"), str):
            raise DataError(f"expected the name of a measure, got {settings.get('name')!r}")
        return measure_class(settings["name"]), {key: value for key, value in settings.items() if key != "name"}

    @property
    def title(self) -> str:
        """What people call it."""
        return self.long_name + ("" if self.normalize == "raw" else " of z-scored features")

    @property
    def long_name(self) -> str:
        """What people call it, of whatever features."""
        return self.short_name

    @property
    @abc.abstractmethod
    def conventions(self) -> tuple[str, ...]:
        """Everything that its values depend on besides features and texts, in words."""

    @property
    def robustly(self) -> str:
        """How to compare where a few texts decide, in words."""
        return "on more texts"

    def chance(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Return a warning where independent layers of n texts have a similarity above `CHANCE`, None elsewhere."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasure(Measure, Generic[Prepared]):
    """A measure with work that is done once a layer, and work that is done for every pair; all but CKA."""

    @property
    def conventions(self) -> tuple[str, ...]:
        """Its name."""
        return (self.title[0].upper() + self.title[1:],)

    @property
    def least_samples(self) -> int:
        """Texts below which its values say nothing, where that is more than the four that every measure needs."""
        return 0

    @abc.abstractmethod
    def prepare(self, layer: ArrayLike, *, name: str) -> Prepared:
        """Return what comparing needs of a layer, (n, d) raw or z-scored embeddings that messages call `name`.

        Raises:
            DataError: If it is no matrix of real numbers.
            DegenerateLayerError: If it has no such similarity.
        """

    @abc.abstractmethod
    def compare(self, first: Prepared, second: Prepared) -> float:
        """Return the value of two prepared layers of the same samples."""


def measure_class(name: str) -> type[Measure]:
    """Return the class that is registered under a name; raise DataError if there is none, or it has another name."""
    kind = MEASURES[name]
    if not (issubclass(kind, Measure) and kind.name == name):
        raise DataError(f"expected {kind.__module__}:{kind.__name__} to be a Measure with the name {name!r}")
    return kind


def as_measure(measure: Measure | str | None) -> Measure:
    """Return a measure that was given by its name, as on the command line, or as an instance; by default of CKA.

    Examples:
        >>> as_measure("svcca").name
        'svcca'
    """
    if isinstance(measure, Measure):
        return measure
    if measure is None or isinstance(measure, str):
        return measure_class(measure or "cka")()
    raise DataError(f"expected a measure, one of {', '.join(MEASURES)}, or an instance of its class, got {measure!r}")


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
    """How the standard errors were computed, in a few words."""
    n_groups: int | None = None
    """Groups, where they and not texts are the independent units."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimilarityMap(Shown):
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
    effective_shares: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """By layer of the model and of the reference: effective sample size of HSIC(K, K), (sum h)^2 / sum h^2 of the parts
    h of texts or groups, as a share of them. Below `LEAST_SHARE` a few decide, and intervals may be too narrow; None
    where there are no intervals."""
    first_layers: tuple[int, int] = field(default=(0, 0), metadata=RARE)
    """The first layer of the model and of the reference that is not left out; those before repeat what it has."""
    collapsed: tuple[int, int] = field(default=(0, 0), metadata=RARE)
    """How many of the last layers of each give all texts one embedding and are left out; they repeat the one before."""

    @property
    def shape(self) -> tuple[int, int]:
        """Layers of the model and of the reference."""
        return len(self.values), len(self.values[0])

    @property
    def layers(self) -> tuple[range, range]:
        """Those of the model and of the reference that are not left out."""
        sides = zip(self.first_layers, self.shape, self.collapsed, strict=True)
        rows, columns = (range(first, n - collapsed) for first, n, collapsed in sides)
        return rows, columns

    @property
    def conclusion(self) -> Conclusion:
        """Which layers are the most and the least similar."""
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
        """A row a pair of layers: the similarity with its interval."""
        return self.between("the first", "the second")

    def between(self, model: str, reference: str) -> Table:
        """Return the pairs of layers with names of the two, drawn as a map."""
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
        """A row a pair of layers that are not left out, with the same columns whatever was measured, for files."""
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

    @property
    def standard_errors(self) -> tuple[float, ...]:
        """Of the values."""
        return tuple(math.sqrt(row[layer]) for layer, row in enumerate(self.covariance))

    def interval_column(self, name: str, layers: Collection[int], *, form: Form = ".4f") -> Column:
        """Return the pointwise intervals of some layers for the table of a result, empty of the others."""
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
    """By layer of the model."""
    reference_layers: tuple[int, ...]
    """The layer of the reference that each layer is compared with."""
    alignment: Alignment
    """How those were chosen."""
    uncertainty: CurveUncertainty | None = None
    """Of the values; None where there are too few texts, the estimator has no intervals, or none were requested."""


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


Diagnosed: TypeAlias = tuple[str, tuple[LayerDiagnostics, ...]]
"""A model's name and its layers."""


def as_matrix(values: NDArray[np.float64]) -> Matrix:
    """Return an array as plain numbers."""
    return tuple(map(tuple, values.tolist()))
