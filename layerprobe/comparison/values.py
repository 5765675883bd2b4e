"""Comparisons of models on the same texts, with their uncertainty."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from layerprobe.encoders.model import ModelDescription, Pooling
from layerprobe.files.images import Modality
from layerprobe.files.serialisation import IN_MEMORY
from layerprobe.interval import Interval
from layerprobe.names import distinct_names, in_percent, plural, short_name, short_names
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown, brief, of_layers
from layerprobe.results.table import Bounds, Column, Table, p_value, stacked
from layerprobe.similarity.values import LayerDiagnostics, SimilarityCurve, SimilarityMap

_TEST = "Two-sided, of no difference on the same texts; of one test alone: some of many are small by chance."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Two models compared on the same texts."""

    model: ModelDescription
    """The model under study."""
    reference: ModelDescription
    """What it is compared with."""
    texts_digest: str
    """sha256 of the texts that both embedded."""
    pooling: Pooling
    """Of the model, and of the reference unless its settings say otherwise."""
    map: SimilarityMap
    """Every layer of the model against every layer of the reference."""
    curve: SimilarityCurve
    """One value of the map for every layer of the model."""
    other_normalization: SimilarityMap | None = None
    """The same measure of z-scored features where `map` is of raw ones, and the other way round."""
    steps: tuple[Interval, ...] = ()
    """The curve's change from each layer to the next."""
    model_diagnostics: tuple[LayerDiagnostics, ...] = ()
    """By layer of the model."""
    reference_diagnostics: tuple[LayerDiagnostics, ...] = ()
    """By layer of the reference."""
    settings: dict[str, str] = field(default_factory=dict)
    """How the model's texts were embedded, where not by default: prompt, max_length, pooling and others."""
    reference_settings: dict[str, str] = field(default_factory=dict)
    """The same of the reference."""
    unit: Modality = "text"
    """What was embedded."""
    warnings: tuple[str, ...] = ()
    """What a reader of the values should know, in plain words."""
    item_source: Any = field(default=None, compare=False, metadata=IN_MEMORY)
    """Whence its page has single items, an `ItemSource`; None where texts were compared that are of no task."""

    @property
    def layers(self) -> range:
        """Those of the model that are not left out."""
        return self.map.layers[0]

    @property
    def alone(self) -> bool:
        """Whether there is no reference: a model was compared with itself, each layer with the one before."""
        return self.curve.alignment == "previous-layer"

    @property
    def changes(self) -> dict[int, Interval]:
        """The curve's change from the layer before, by layer; none where the layer before is compared with itself."""
        layers = self.layers[1 + self.alone :]
        return {layer: step for layer, step in enumerate(self.steps, start=1) if layer in layers}

    @property
    def summary(self) -> str:
        """The result in one line."""
        model, reference = short_names(self.model.name, self.reference.name)
        against = "with the layer before" if self.alone else f"with {reference}"
        about = f"{model} {against}, {self._what}"
        return f"{about}: {brief(of_layers(self.layers, self.curve.values))}"

    @property
    def _what(self) -> str:
        return f"{self.map.measure.title}, {self.map.n_samples} {plural(self.unit)}"

    @property
    def table(self) -> Table:
        """One row per layer: similarity with its interval, change from the layer before."""
        return self.among(())

    def among(self, differences: Sequence[Interval], label: Callable[[str], str] = short_name) -> Table:
        """Return the table next to those of other references: differences by layer to the first, names by `label`."""
        curve, errors = self.curve, self.curve.uncertainty
        pairs, level = tuple(enumerate(curve.reference_layers)), in_percent(errors.level, " % ") if errors else ""
        against = "the layer before" if self.alone else "each reference" if differences else "the reference"
        columns = (
            Column("reference_layer", curve.reference_layers, title="other layer"),
            Column(
                "value",
                curve.values,
                title="similarity",
                form=".4f",
                quantity=Quantity(f"{self.map.measure.title} with {against}", best="higher"),
            ),
            _interval("value", zip(errors.lower, errors.upper, strict=True) if errors else (), f"{level}interval"),
            _interval("band", zip(errors.band_lower, errors.band_upper, strict=True) if errors else (), f"{level}band"),
            *_difference("change", [self.changes.get(layer) for layer, _ in pairs] if self.steps else ()),
            *_difference("less_first", differences),
        )
        return Table(
            columns=(
                Column("measure", (self.map.measure.title,) * len(pairs), shown=False),
                Column("reference", (self.reference.name,) * len(pairs), form=label, shown=False),
                Column("layer", range(len(pairs))),
                *(
                    replace(column, values=of_layers(self.layers, column.values or (None,) * len(pairs)))
                    for column in columns
                ),
            ),
            notes=(f"Similarity: {self._what}.",),
            charts=(
                Chart(lines=(Line("value", interval="value", band="band"),), name="curve", by="reference", band=True),
            ),
        )

    @property
    def pairs(self) -> Table:
        """One row per pair of layers, raw and z-scored, always with the same columns: for files."""
        ours, other, partners = self.map.pairs, self.other_normalization, set(enumerate(self.curve.reference_layers))
        whole = stacked([ours] if other is None else [ours, other.pairs])
        pairs = zip(whole.data["layer"], whole.data["reference_layer"], strict=True)
        on_curve = [row < len(ours) and pair in partners for row, pair in enumerate(pairs)]
        return whole.with_columns(Column("on_curve", on_curve, dtype="bool"), after="reference_layer").named(
            model=self.model.name,
            model_revision=self.model.revision,
            reference=self.reference.name,
            reference_revision=self.reference.revision,
            texts=self.texts_digest,
            pooling=self.pooling,
        )


def _interval(name: str, ends: Iterable[Bounds | None], title: str) -> Column:
    return Column(name, tuple(ends), title, ".4f", interval=True, over="over new texts")


def _difference(name: str, differences: Sequence[Interval | None]) -> tuple[Column, ...]:
    """Return the columns of differences by layer, with interval and test."""
    title = name.replace("less_first", "difference to the first")
    bounds = (difference.interval if difference else None for difference in differences)
    tests = [difference and difference.p_value for difference in differences]
    return (
        Column(name, [difference and difference.value for difference in differences], title, "+.4f"),
        replace(_interval(name, bounds, f"interval of {title}"), form="+.4f", shown=name != "change"),
        Column(f"{name}_p", tests, f"p-value of {title}", p_value, meaning=_TEST),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparisons(Shown):
    """One model compared with any number of others on the same texts."""

    comparisons: tuple[Comparison, ...]
    """One a reference."""
    differences: tuple[tuple[Interval, ...], ...] = ()
    """For each reference but the first, by layer of the model: its curve less that of the first."""
    item_source: Any = field(default=None, compare=False, metadata=IN_MEMORY)
    """As of a `Comparison`."""

    @property
    def summary(self) -> str:
        """The result in one line."""
        return "; ".join(comparison.summary for comparison in self.comparisons)

    @property
    def table(self) -> Table:
        """A row a reference and layer, as a comparison alone has them; of further ones the difference to the first."""
        differences = ((), *(self.differences or ((),) * (len(self.comparisons) - 1)))
        names = [comparison.reference.name for comparison in self.comparisons]
        label = dict(zip(names, distinct_names(names), strict=True)).__getitem__
        tables = (comparison.among(less, label) for comparison, less in zip(self.comparisons, differences, strict=True))
        return stacked(tuple(tables), by=("reference",))

    @property
    def pairs(self) -> Table:
        """One row per reference and pair of layers, see `Comparison.pairs`."""
        return stacked([comparison.pairs for comparison in self.comparisons])
