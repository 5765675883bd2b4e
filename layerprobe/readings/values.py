"""Numbers by layer of one model, and how copies of texts are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE
from layerprobe.results.charts import Chart, Line
from layerprobe.results.shown import LeavesOut, Shown, brief, of_layers
from layerprobe.results.table import Column, Table
from layerprobe.similarity.values import CurveUncertainty

if TYPE_CHECKING:
    from layerprobe.similarity.checks import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """How altered copies of texts are made: words are left out at random, never all of them."""

    n_texts: int = 512
    """Texts that are altered, at most. They are a random choice where there are more."""
    n_views: int = 2
    """Altered copies of a text."""
    dropped: float = 0.2
    """Share of the words that a copy lacks, on average, between 0 and 1."""
    seed: int = 0
    """Of the texts and the words."""

    def __post_init__(self) -> None:
        if self.n_texts < 2 or self.n_views < 2 or not 0 < self.dropped < 1:
            raise DataError(
                "expected at least two views of two texts and a share of dropped words between 0 and 1, "
                f"got {self.n_views} views of {self.n_texts} texts and {self.dropped:g}"
            )


DIGITS = ".4g"
"""How readings are written: the same in tables, sentences and pages."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerCurve(LeavesOut, Shown):
    """A number for every layer with its uncertainty."""

    by_layer = "values", "standard_errors"

    values: tuple[float, ...]
    """By layer."""
    standard_errors: tuple[float, ...] | None = None
    """Of the values; None where they are not known."""
    uncertainty: CurveUncertainty | None = None
    """How the errors of layers go together; None where it is not known. What a zoo holds has none."""
    first_layer: int = field(default=0, metadata=RARE)
    """The first layer that is not left out; values before it repeat its own."""
    collapsed: int = field(default=0, metadata=RARE)
    """How many of the last layers give all texts one embedding and are left out; they repeat the value before them."""

    def __post_init__(self) -> None:
        if self.standard_errors is not None and len(self.standard_errors) != len(self.values):
            raise DataError(f"expected {len(self.values)} standard errors, got {len(self.standard_errors)}")
        if self.uncertainty is not None and self.uncertainty.n_layers != len(self.values):
            raise DataError(f"expected intervals of {len(self.values)} layers, got {self.uncertainty.n_layers}")

    @classmethod
    def of(
        cls, values: tuple[float, ...], influences: Sequence[Array], *, level: float, groups: Sequence[int] | None
    ) -> LayerCurve:
        """Return numbers by layer with their errors; without them where there are fewer than five texts or groups.

        Influences are, for each layer, (texts,) values of mean 0; groups say which group a text is of.
        """
        import numpy as np  # takes a while to load, scipy too

        from layerprobe.similarity.inference import MIN_UNITS, curve_uncertainty

        if len(influences[0] if groups is None else set(groups)) < MIN_UNITS:
            return cls(values=values)
        numbers = None if groups is None else np.array(groups)
        uncertainty = curve_uncertainty(values, influences, level=level, groups=numbers)
        return cls(values=values, standard_errors=uncertainty.standard_errors, uncertainty=uncertainty)

    @property
    def layers(self) -> range:
        """Those that are not left out."""
        return range(self.first_layer, len(self.values) - self.collapsed)

    @property
    def table(self) -> Table:
        """A row a layer: the number and its standard error."""
        layers = Column("layer", tuple(range(len(self.values))), meaning="Blocks kept.")
        return Table(columns=(layers, *self.columns("value")), charts=(Chart(lines=(Line("value"),), name="readings"),))

    def columns(
        self, name: str, *, first: int = 0, n_layers: int = 0, unit: str = "", meaning: str = ""
    ) -> Iterator[Column]:
        """Yield the number and its standard error under a name, from a first layer on, for as many layers or more."""
        layers = self.layers[max(first - self.first_layer, 0) :]
        for title, values in ((name, self.values), (f"{name} standard error", self.standard_errors)):
            errors = () if values is None else of_layers(layers, values)
            filled = (*errors, *[None] * (max(n_layers, len(self.values)) - len(errors)))
            yield Column(title, filled, form=DIGITS, unit=unit, meaning=meaning, shown=title == name)

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{len(self.values)} layers: {brief(of_layers(self.layers, self.values), DIGITS)}"
