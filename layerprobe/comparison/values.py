"""Comparisons of models on the same texts, with their uncertainty."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from layerprobe.encoders.model import ModelDescription, Pooling, described
from layerprobe.files.images import Modality
from layerprobe.files.serialisation import UNSAVED
from layerprobe.interval import Interval
from layerprobe.names import distinct_names, listed, percentage, plural
from layerprobe.results import words
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict
from layerprobe.results.shown import Shown, mask_left_out
from layerprobe.results.table import Bounds, Chart, Column, Line, Quantity, Table, columns_of, p_value, percent, stacked
from layerprobe.similarity.values import LayerDiagnostics, SimilarityCurve, SimilarityMap

SMALL = 0.05
"""Largest distance below the highest similarity that is not called a fall, as in the rule of `predict`."""
ALIGNMENTS = {
    "same-index": "each layer with the reference's layer of the same index",
    "relative-depth": "each layer with the reference's layer at the same relative depth",
    "best-match": "each layer with the most similar layer of the reference",
    "previous-layer": "each layer with the one before; layer 0 with itself",
}
_TEST = "Two-sided, for no difference on the same texts; one test alone: some of many are small by chance."


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Two models compared on the same texts."""

    model: ModelDescription
    """The model under study."""
    reference: ModelDescription
    """The model it is compared with."""
    texts_digest: str
    """sha256 of the common texts."""
    pooling: Pooling
    """Pooling of the model, and of the reference unless its settings differ."""
    map: SimilarityMap
    """Every layer of the model against every layer of the reference."""
    curve: SimilarityCurve
    """One value of the map for every layer of the model."""
    other_normalization: SimilarityMap | None = None
    """The same measure on z-scored features if `map` has raw ones, and vice versa."""
    steps: tuple[Interval, ...] = ()
    """The curve's change from each layer to the next."""
    model_diagnostics: tuple[LayerDiagnostics, ...] = ()
    """Diagnostics by layer of the model."""
    reference_diagnostics: tuple[LayerDiagnostics, ...] = ()
    """Diagnostics by layer of the reference."""
    settings: dict[str, str] = field(default_factory=dict)
    """Embedding settings of the model that differ from the default: prompt, max_length, pooling and others."""
    reference_settings: dict[str, str] = field(default_factory=dict)
    """The same for the reference."""
    unit: Modality = "text"
    """Type of the samples."""
    warnings: tuple[str, ...] = ()
    """Warnings for readers of the values."""
    item_source: Any = field(default=None, compare=False, metadata=UNSAVED)
    """Source of single items for the page, an `ItemSource`; None for texts without a task."""

    @property
    def layers(self) -> range:
        """The layers of the model that are not left out."""
        return self.map.layers[0]

    @property
    def alone(self) -> bool:
        """Whether there is no reference: each layer of a model was compared with the one before."""
        return self.curve.alignment == "previous-layer"

    @property
    def changes(self) -> dict[int, Interval]:
        """The curve's change from the layer before, by layer; absent if the layer before is compared with itself."""
        layers = self.layers[1 + self.alone :]
        return {layer: step for layer, step in enumerate(self.steps, start=1) if layer in layers}

    @property
    def last(self) -> int:
        """The last layer that is not left out."""
        return self.layers[-1]

    def similarity(self, layer: int) -> Fact:
        """Return the similarity of a layer with its interval."""
        value, errors = self.curve.values[layer], self.curve.uncertainty
        if errors is None:
            return Fact(value=value, unit="similarity")
        ends = errors.lower[layer], errors.upper[layer]
        return Fact(value=value, unit="similarity", interval=ends, level=errors.level)

    def less(self, layer: int, other: int) -> Fact:
        """Return the similarity of a layer minus that of another one, on the same texts, with its interval."""
        difference, errors = self.curve.values[layer] - self.curve.values[other], self.curve.uncertainty
        if errors is None or not self.steps:
            return Fact(value=difference, unit="similarity")
        from layerprobe.similarity.inference import tested  # scipy takes a second to load

        at, covariance = (layer, other), errors.covariance
        variance = sum(covariance[i][i] for i in at) - 2 * covariance[layer][other]
        freedom = min(step.freedom for step in self.steps)
        error = tested(difference, math.sqrt(max(variance, 0.0)), freedom, label="", level=errors.level)
        return Fact.of(error, "similarity")

    @property
    def conclusion(self) -> Conclusion:
        """Whether the last layers are less similar than others; without a reference, the block that changes most."""
        return Comparisons(comparisons=(self,)).conclusion

    @property
    def checks(self) -> Iterator[Check]:
        """Yield checks of the other normalisation, and of what could distort similarities."""
        if self.other_normalization is not None and not self.alone:
            top, last, values = self.peak, self.last, self.other_normalization.values
            at_top, at_last = (values[layer][self.curve.reference_layers[layer]] for layer in (top, last))
            falls = (at_top - at_last > SMALL) == (self.curve.values[top] - self.curve.values[last] > SMALL)
            raw = self.map.measure.normalize == "raw"
            facts = {"top": Fact(value=at_top, unit="similarity"), "last": Fact(value=at_last, unit="similarity")}
            about = {"features": "standardised" if raw else "raw", "top_layer": top, "last_layer": last}
            yield Check(name="normalisation", passed=falls, facts=facts, names=about)
        layers = [self.model_diagnostics[layer] for layer in self.layers] if self.model_diagnostics else []
        if layers and not self.warnings:
            facts = {
                "copies": Fact(value=max(layer.duplicates for layer in layers), unit="count"),
                "feature": Fact(value=max(layer.top_dimension_share for layer in layers), unit="share"),
            }
            shares = [share for side in self.map.effective_shares or () for share in side]
            facts |= {"effective": Fact(value=min(shares), unit="share")} if shares else {}
            yield Check(name="diagnostics", passed=True, facts=facts)

    @property
    def peak(self) -> int:
        """The most similar layer before the last one, without layer 0, where no block has changed the embeddings."""
        before = self.layers[:-1]
        return max([layer for layer in before if layer] or before or self.layers, key=self.curve.values.__getitem__)

    @property
    def table(self) -> Table:
        """One row per layer: similarity with its interval, change from the layer before."""
        return Comparisons(comparisons=(self,)).table

    @property
    def details(self) -> tuple[Table, ...]:
        """The map, and diagnostics of the layers."""
        return Comparisons(comparisons=(self,)).details

    @property
    def sources(self) -> dict[str, str]:
        """The models, the texts, and the conventions."""
        return Comparisons(comparisons=(self,)).sources

    def among(self, differences: Sequence[Interval], label: Callable[[str], str], *, several: bool) -> Table:
        """Return the table of this reference; with several references, with differences to the first and names."""
        curve, errors = self.curve, self.curve.uncertainty
        pairs, level = tuple(enumerate(curve.reference_layers)), f"{percentage(errors.level)} " if errors else ""
        against = "the layer before" if self.alone else "each reference" if several else "the reference"
        same = self.alone or all(layer == other for layer, other in pairs)
        bands = zip(errors.band_lower, errors.band_upper, strict=True) if errors else ()
        columns = (
            Column("reference_layer", curve.reference_layers, title="other layer", more=same),
            Column(
                "value",
                curve.values,
                title="similarity",
                form=".3f",
                quantity=Quantity(f"{self.map.measure.title} with {against}", best="higher"),
            ),
            _interval("value", zip(errors.lower, errors.upper, strict=True) if errors else (), f"{level}interval"),
            replace(_interval("band", bands, f"{level}band"), more=True),
            *_difference("change", [self.changes.get(layer) for layer, _ in pairs] if self.steps else (), more=several),
            *_difference("less_first", differences, more=not several),
        )
        return Table(
            title="Similarity by layer",
            columns=(
                Column("measure", (self.map.measure.title,) * len(pairs), shown=False),
                Column("reference", (self.reference.name,) * len(pairs), form=label, shown=False),
                Column("layer", range(len(pairs))),
                *(
                    replace(column, values=mask_left_out(self.layers, column.values or (None,) * len(pairs)))
                    for column in columns
                ),
            ),
            notes=(f"Similarity: {self.map.measure.title}, {self.map.n_samples} {plural(self.unit)}.",),
            charts=(
                Chart(
                    lines=(Line("value", interval="value", band="band"),),
                    name="curve",
                    by="reference" if several else "",
                    band=True,
                ),
            ),
        )

    def map_table(self, model: str, reference: str) -> Table:
        """Return one row per pair of layers, drawn as a map, for one or both normalisations."""
        table, other = self.map.between(model, reference), self.other_normalization
        on_curve = set(enumerate(self.curve.reference_layers))
        cells = self.map.cells
        table = replace(table, marks=tuple("chosen" if cell in on_curve else None for cell in cells))
        if other is None:
            return table
        title = other.measure.title
        values = [other.values[i][j] for i, j in cells]
        column = Column("other", values, title, ".3f", dtype="float64", quantity=Quantity(title))
        drawn = replace(table.charts[0], lines=(Line("other"),), name="map-other")
        return replace(table.with_columns(column, after="value"), charts=(*table.charts, drawn))

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
    return Column(name, tuple(ends), title, ".3f", interval=True, over="over new texts")


def _difference(name: str, differences: Sequence[Interval | None], *, more: bool) -> tuple[Column, ...]:
    """Return the columns of differences by layer, with interval and test; `more` hides them by default."""
    title = name.replace("less_first", "minus the first")
    bounds = (difference.interval if difference else None for difference in differences)
    tests = [difference and difference.p_value for difference in differences]
    return (
        Column(name, [difference and difference.value for difference in differences], title, "+.3f", more=more),
        replace(_interval(name, bounds, f"interval of {title}"), form="+.3f", more=True),
        Column(f"{name}_p", tests, f"p-value of {title}", p_value, meaning=_TEST, more=True),
    )


def diagnostics_table(rows: Sequence[tuple[str, int, LayerDiagnostics]]) -> Table:
    """Return the table of diagnostics, one row per model and layer."""
    names, layers, diagnosed = zip(*rows, strict=True)
    column = columns_of(diagnosed)
    return Table(
        title="Diagnostics of the layers",
        columns=(
            Column("model", names, shown=len(set(names)) > 1),
            Column("layer", layers),
            column("copies", lambda layer: layer.duplicates, meaning="Texts with the embedding of an earlier one."),
            column("mean_cosine", form=".3f", meaning="Mean over pairs; near 1 all embeddings point one way."),
            column(
                "top_feature",
                lambda layer: layer.top_dimension_share,
                form=percent,
                meaning="Its share of the variance.",
            ),
            column("effective_rank", form=".1f"),
            column("top_three", lambda layer: layer.top_three_share, form=percent, more=True),
            column("intrinsic_dimension", form=".1f", more=True),
            column("chance_cka", title="chance CKA", form=".3f", more=True),
            column("texts", lambda layer: layer.n_samples, more=True),
            column("features", lambda layer: layer.n_features, more=True),
        ),
    )


Answer = tuple[str, Verdict, dict[str, Fact], dict[str, object]]
"""The case of a conclusion, its verdict, facts and names."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparisons(Shown):
    """One model compared with any number of others on the same texts."""

    comparisons: tuple[Comparison, ...]
    """One comparison per reference."""
    differences: tuple[tuple[Interval, ...], ...] = ()
    """Curve of each further reference minus that of the first, by layer of the model."""
    item_source: Any = field(default=None, compare=False, metadata=UNSAVED)
    """As in `Comparison`."""

    @property
    def labels(self) -> list[str]:
        """Names of the model and the references."""
        names = [one.reference.name for one in self.comparisons]
        return words.labels(distinct_names([self.comparisons[0].model.name, *names]))

    @property
    def conclusion(self) -> Conclusion:
        """The fall of similarity, the closest of several references, or the block of a model that changes most."""
        first, (model, *references) = self.comparisons[0], self.labels
        of_case = self._several if references[1:] else self._alone if first.alone else self._falls
        case, verdict, facts, names = of_case(first)
        facts["texts"] = Fact(value=first.map.n_samples, unit="count")
        if first.curve.uncertainty is not None:
            facts["level"] = Fact(value=first.curve.uncertainty.level, unit="level")
        return Conclusion(
            kind="compare",
            case=case,
            verdict=verdict,
            subject=(model, "" if first.alone else listed(references)),
            facts=facts,
            names={
                "measure": words.capitalised(first.map.measure.short_name),
                "items": plural(first.unit),
                "last_layer": first.last,
                "without": "" if first.curve.uncertainty else "without intervals",
                **names,
            },
            checks=tuple(first.checks),
        )

    def _falls(self, one: Comparison) -> Answer:
        """Return whether the last layers are less similar than the most similar one before them."""
        top, last, values = one.peak, one.last, one.curve.values
        is_fall = values[top] - values[last] > SMALL
        if is_fall:
            top = max(layer for layer in one.layers[:-1] if values[layer] >= values[top] - SMALL)
        fall = one.less(top, last)
        low, high = fall.interval or (-math.inf, math.inf)
        verdict = Verdict.DECIDED if (low > 0 if is_fall else high < SMALL) else Verdict.UNDECIDED
        facts = {"fall": fall, "top": one.similarity(top), "last": one.similarity(last)}
        return "fall" if is_fall else "level", verdict, facts, {"top_layer": top}

    def _alone(self, one: Comparison) -> Answer:
        """Return the block that changes the embeddings most."""
        block, *others = sorted(one.layers[1:], key=one.curve.values.__getitem__)
        least = one.similarity(block)
        if not others:
            return "alone", Verdict.DECIDED, {"least": least}, {"block": block}
        lead = one.less(others[0], block)
        is_shown = lead.interval is not None and lead.interval[0] > 0
        verdict = Verdict.DECIDED if is_shown else Verdict.UNDECIDED
        return "alone", verdict, {"least": least, "lead": lead}, {"block": block, "next_block": others[0]}

    def _several(self, one: Comparison) -> Answer:
        """Return the reference that the last layer is most similar to."""
        last, labels = one.last, self.labels[1:]
        places = sorted(range(len(labels)), key=lambda i: self.comparisons[i].curve.values[last], reverse=True)
        best, second = (self.comparisons[i].similarity(last) for i in places[:2])
        facts = {"best": best, "second": second, "lead": Fact(value=best.value - second.value, unit="similarity")}
        verdict = Verdict.UNDECIDED
        if 0 in places[:2] and self.differences:  # differences are to the first
            error = self.differences[max(places[:2]) - 1][last]
            low, high = error.interval if places[0] else (-error.interval[1], -error.interval[0])
            facts["lead"] = replace(facts["lead"], interval=(low, high), level=error.level)
            verdict = Verdict.DECIDED if low > 0 else verdict
        elif best.interval and second.interval and best.interval[0] > second.interval[1]:
            verdict = Verdict.DECIDED
        return "several", verdict, facts, {"closest": labels[places[0]], "next": labels[places[1]]}

    @property
    def table(self) -> Table:
        """One row per reference and layer: similarity, change, and the difference to the first reference."""
        differences = ((), *(self.differences or ((),) * (len(self.comparisons) - 1)))
        names, several = [one.reference.name for one in self.comparisons], len(self.comparisons) > 1
        label = dict(zip(names, distinct_names(names), strict=True)).__getitem__
        pairs = zip(self.comparisons, differences, strict=True)
        return stacked([one.among(less, label, several=several) for one, less in pairs], by=("reference",))

    @property
    def details(self) -> tuple[Table, ...]:
        """One map per reference, and diagnostics of the layers of all models."""
        first, (model, *references) = self.comparisons[0], self.labels
        rows = [(model, first.model_diagnostics, first.layers)]
        if not first.alone:
            others = zip(references, self.comparisons, strict=True)
            rows += [(name, one.reference_diagnostics, one.map.layers[1]) for name, one in others]
        diagnosed = [(name, layer, by_layer[layer]) for name, by_layer, layers in rows if by_layer for layer in layers]
        pairs = zip(references, self.comparisons, strict=True)
        maps = [one.map_table(model, "itself" if one.alone else name) for name, one in pairs]
        return (*maps, diagnostics_table(diagnosed)) if diagnosed else tuple(maps)

    @property
    def sources(self) -> dict[str, str]:
        """The models, the texts, and the conventions."""
        first = self.comparisons[0]
        heatmap, items, errors = first.map, plural(first.unit), first.map.uncertainty
        settings = [f"{name} {value}" for name, value in first.settings.items()]
        median = [f"the median over {heatmap.sigma_samples} {items}"] if heatmap.sigma_samples else []
        features = f"{'raw' if heatmap.measure.normalize == 'raw' else 'standardised'} features"
        intervals = "no intervals" if errors is None else f"intervals from the {errors.method}"
        groups = [f"{errors.n_groups} groups"] if errors is not None and errors.n_groups else []
        return {
            **described(first.model, *([] if first.alone else [one.reference for one in self.comparisons])),
            words.capitalised(items): f"{heatmap.n_samples} distinct (sha256 {first.texts_digest})",
            "Embeddings": ", ".join((f"{first.pooling} pooling", *settings)),
            "Similarity": "; ".join((*heatmap.measure.conventions, features, *median, intervals, *groups)),
            "Layers": ALIGNMENTS[first.curve.alignment],
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all comparisons."""
        return tuple(dict.fromkeys(warning for one in self.comparisons for warning in one.warnings))

    @property
    def pairs(self) -> Table:
        """One row per reference and pair of layers, see `Comparison.pairs`."""
        return stacked([comparison.pairs for comparison in self.comparisons])
