"""A comparison as a page: one model against others, by one measure or several. Knows its words and figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import plotly.graph_objects as go

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.errors import DataError
from layerprobe.names import distinct_names, listed, plural
from layerprobe.report.facts import diagnostics, model_facts
from layerprobe.results import numbers
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, facts_table, folded, section, table_of
from layerprobe.results.shown import clauses, of_cells
from layerprobe.results.style import INK, PAPER, colour_scale, number_axis, styled, text
from layerprobe.results.table import stacked
from layerprobe.results.values import Figure, Page, Part, Section
from layerprobe.similarity.values import SimilarityCurve, SimilarityMap

OTHER_NORMALIZATION = (
    "Raw features and standardised features in the same colours: where the two maps differ much, a few features of"
    " large variance decide the raw one."
)
ALIGNMENTS = {
    "same-index": "Each layer is compared with the reference's layer of the same index.",
    "relative-depth": "Each layer is compared with the reference's layer at the same relative depth.",
    "best-match": "Each layer is compared with the reference's layer that it resembles most.",
    "previous-layer": "Each layer is compared with the one before; layer 0, which has none, with itself.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One model compared with others by one measure or several, and what they are called."""

    measured: tuple[Comparisons, ...]
    """One a measure."""
    model: str
    """Short name."""
    references: tuple[str, ...]
    """Short names, in the order of the comparisons of every measure."""

    @property
    def first(self) -> Comparison:
        """With the first reference by the first measure."""
        return self.measured[0].comparisons[0]

    @property
    def alone(self) -> bool:
        """Whether there is no reference."""
        return self.first.alone

    @property
    def about(self) -> str:
        """What is compared with what."""
        return self.model if self.alone else f"{self.model} compared with {' and '.join(self.references)}"


def comparison_page(*results: Comparison | Comparisons, show_map: bool = False) -> Page:
    """Return the page of a model compared with others; of several results, each is by another measure.

    With `show_map` the maps come before the table of layers, each with its numbers.

    Raises:
        DataError: If results are of different models.
    """
    compared = compared_models(results)
    leads = tuple(_leads(compared))
    curves = [
        curve_figure(result, f"curve-{number}", last_and_fall(result))
        for number, result in enumerate(compared.measured)
    ]
    page = page_of(
        compared.first,
        table=replace(stacked([result.table for result in compared.measured], by=("measure", "reference")), charts=()),
        heading=_heading(leads[0]),
        kind="comparison",
        about=compared.about,
        lead=leads,
        first=curves[0],
        warnings=tuple(
            warning for result in compared.measured for one in result.comparisons for warning in one.warnings
        ),
        account=tuple(_agreement(compared)),
        sections=(diagnosed(compared),),
        provenance=provenance(compared),
    )
    page = replace(page, result=results[0] if len(results) == 1 else results)
    more = section("curves", "By other measures", *curves[1:], kind="pair" if len(curves) > 2 else None)
    map_part = maps(compared)
    if not show_map:
        table, *rest = page.sections
        return replace(page, sections=(more, table, map_part, *rest))
    tables = [folded(f"{name or 'Map'}: every number", table_of(one.map.table)) for name, one in _pairs(compared)]
    values = section("map-values", "Numbers of the maps", *tables)
    return replace(page, sections=(more, map_part, values, *page.sections))


def _heading(lead: str) -> str:
    """Return the finding by the first measure as a heading; model names keep their capitals."""
    heading, _ = clauses(lead.partition(", ")[2] or lead)
    return numbers.capitalised(heading) if heading.startswith("layer ") else heading


def map_page(heatmap: SimilarityMap) -> Page:
    """Return the page of a single similarity map, whose models are unknown."""
    finding = map_finding(heatmap)
    return page_of(
        heatmap,
        heading=clauses(finding)[0].partition(", the least")[0],
        kind="similarity map",
        about=_measure(heatmap),
        lead=(),
        first=map_figure("map", heatmap, ("the model", "the reference")),
        provenance=(
            definitions({"Texts": str(heatmap.n_samples), "Similarity": "; ".join(heatmap.measure.conventions)}),
        ),
    )


def compared_models(results: Sequence[Comparison | Comparisons]) -> Compared:
    """Group results of the same models with display names; raise DataError if the models differ."""
    measured = tuple(
        result if isinstance(result, Comparisons) else Comparisons(comparisons=(result,)) for result in results
    )
    whole = [[one.comparisons[0].model.name, *(other.reference.name for other in one.comparisons)] for one in measured]
    if not whole or any(names != whole[0] for names in whole):
        raise DataError(f"expected comparisons of the same models by different measures, got {whole}")
    model, *references = numbers.labels(distinct_names(whole[0]))
    return Compared(measured=measured, model=model, references=tuple(references))


# ---- what was found -------------------------------------------------------------------------------------


def _leads(compared: Compared) -> Iterator[str]:
    """Yield one finding per sentence; measures with the same finding share it."""
    leads: dict[str, list[str]] = {}
    for result in compared.measured:
        first = result.comparisons[0]
        several = len(result.comparisons) > 1
        lead = _alone(first) if compared.alone else _several(compared, result) if several else _one(compared, first)
        leads.setdefault(lead, []).append(first.map.measure.title)
    yield from (f"By {listed(measures, 'and')}, {lead}" for lead, measures in leads.items())


def _alone(comparison: Comparison) -> str:
    """Return which block changes the embeddings most."""
    least = min(comparison.layers[1:], key=comparison.curve.values.__getitem__)
    return f"layer {least} is least like the one before ({_value(comparison, least)}): block {least} changes most."


def _one(compared: Compared, comparison: Comparison) -> str:
    """Return where a model is most and least like its reference."""
    values, last = comparison.curve.values, len(comparison.curve.values) - 1
    most, least = (pick(comparison.layers, key=values.__getitem__) for pick in (max, min))
    at_last = f"; at its last layer, {last}, it is {_value(comparison, last)}"
    ending = at_last if last in comparison.layers and last not in (most, least) else ""
    return (
        f"{compared.model} is most like {compared.references[0]} at layer {most}"
        f" ({_value(comparison, most)}) and least at layer {least} ({_value(comparison, least)}){ending}."
    )


def _several(compared: Compared, result: Comparisons) -> str:
    """Return which reference is closest at which layers."""
    curves = [comparison.curve.values for comparison in result.comparisons]
    layers = result.comparisons[0].layers
    closest = {layer: max(range(len(curves)), key=lambda index: curves[index][layer]) for layer in layers}
    spans = [
        f"to {compared.references[index]} at {numbers.counted_layers(list(span))}"
        for index, span in groupby(layers, key=closest.__getitem__)
    ]
    where = f"to {compared.references[closest[layers[0]]]} at every layer" if len(spans) == 1 else ", ".join(spans)
    return f"{compared.model} is closest {where}."


def last_and_fall(result: Comparisons) -> str:
    """Return how similar the last layers are, and where the first curve falls most from one layer to the next."""
    last, n_layers = result.comparisons[0].layers[-1], len(result.comparisons[0].curve.values)
    end = f"at the last layer, {last}" if last == n_layers - 1 else f"at layer {last}, the last one before the collapse"
    names = compared_models([result]).references
    ends = (f"{name} {_value(one, last)}" for name, one in zip(names, result.comparisons, strict=True))
    value = _value(result.comparisons[0], last) if len(names) == 1 else ", ".join(ends)
    sentence = f"{_measure(result.comparisons[0].map)} {end}: {value}."
    falls = {layer: step for layer, step in result.comparisons[0].changes.items() if step.sign < 0}
    if not falls:
        return sentence
    layer = min(falls, key=lambda layer: falls[layer].value)
    fall = f"{numbers.signed(falls[layer].value, 3)} {numbers.interval(falls[layer].interval, 3)}"
    return f"{sentence} The largest fall is from layer {layer - 1} to layer {layer}: {fall}."


def _measure(heatmap: SimilarityMap) -> str:
    """Return the name of the measure as the start of a sentence, such as `Debiased linear CKA`."""
    return numbers.capitalised(heatmap.measure.title)


def _agreement(compared: Compared) -> Iterator[str]:
    """Yield whether several measures agree on where a model is least like its first reference."""
    if len(compared.measured) < 2:
        return
    by_layer: dict[int, list[str]] = {}
    for result in compared.measured:
        first = result.comparisons[0]
        least = min(first.layers[compared.alone :], key=first.curve.values.__getitem__)
        by_layer.setdefault(least, []).append(first.map.measure.short_name)
    what = "the layer before" if compared.alone else compared.references[0]
    if len(by_layer) == 1:
        many = "Both" if len(compared.measured) == 2 else f"All {len(compared.measured)}"
        yield f"{many} measures are least with {what} at layer {next(iter(by_layer))}."
    else:
        layers = ", ".join(f"{listed(names, 'and')} at layer {layer}" for layer, names in by_layer.items())
        yield f"Measures differ in where similarity to {what} is least: {layers}."


def _value(comparison: Comparison, layer: int) -> str:
    value, errors = numbers.number(comparison.curve.values[layer], 3), comparison.curve.uncertainty
    return value if errors is None else f"{value} {numbers.interval((errors.lower[layer], errors.upper[layer]), 3)}"


# ---- maps and facts -------------------------------------------------------------------------------------


def maps(compared: Compared) -> Section:
    """Return a map for every reference and measure; of a single pair next to that of the other normalization."""
    pairs, columns = list(_pairs(compared)), "too" if compared.alone else "the reference's"
    note = f"Rows are the model's layers, columns {columns}; dots mark the pairs of the curves above."
    if len(pairs) == 1:
        figures = both_normalizations(compared.first, (compared.model, compared.references[0]))
        note += f" {OTHER_NORMALIZATION}" if len(figures) > 1 else ""
    else:
        lowest = lowest_value([one.map for _, one in pairs])
        figures = [_map(compared, number, *pair, lowest) for number, pair in enumerate(pairs)]
        note += " All maps share one scale of colours."
    kind = "beside" if len(figures) == 1 else "pair"
    return section("maps", "All pairs of layers", note, *figures, kind=kind)


def _pairs(compared: Compared) -> Iterator[tuple[str, Comparison]]:
    """Yield every comparison with a title that distinguishes it from the others."""
    for result in compared.measured:
        for reference, one in zip(compared.references, result.comparisons, strict=True):
            names = [one.map.measure.short_name] if len(compared.measured) > 1 else []
            names += [f"with {reference}"] if len(compared.references) > 1 else []
            yield numbers.capitalised(" ".join(names)), one


def _map(compared: Compared, number: int, title: str, one: Comparison, lowest: float) -> Figure:
    reference = numbers.labels(distinct_names([one.model.name, one.reference.name]))[1]
    names = (compared.model, reference)
    return map_figure(f"map-{number}", one.map, names, curve=one.curve, lowest=lowest, title=title)


def diagnosed(compared: Compared) -> Section:
    """Return the diagnostics of the layers of the model and its references."""
    first, others = compared.first, () if compared.alone else compared.measured[0].comparisons
    models = [(compared.model, first.model_diagnostics, first.layers)]
    models += [
        (name, other.reference_diagnostics, other.map.layers[1])
        for name, other in zip(compared.references, others, strict=False)
    ]
    return diagnostics(models)


def provenance(compared: Compared) -> tuple[Part, ...]:
    """Return the models, the texts and the conventions."""
    first, several = compared.first, len(compared.measured) > 1
    comparisons = () if compared.alone else compared.measured[0].comparisons
    measures = {
        f"Similarity, {result.comparisons[0].map.measure.short_name}" if several else "Similarity": (
            _conventions(result.comparisons[0])
        )
        for result in compared.measured
    }
    facts = {
        numbers.capitalised(plural(first.unit)): f"{first.map.n_samples} distinct (sha256 {first.texts_digest})",
        "Embeddings": f"{first.pooling} pooling",
        "Settings": ", ".join(f"{name} {value}" for name, value in first.settings.items()) or None,
        **measures,
    }
    models = [first.model, *(comparison.reference for comparison in comparisons)]
    names = ["Model", *(f"Reference {number}" if number > 1 else "Reference" for number in range(1, len(models)))]
    of_models = [model_facts(model) for model in models]
    if any(model.source for model in models):
        of_models = [fact | {"From": one.source or one.name} for fact, one in zip(of_models, models, strict=True)]
    return facts_table("Models", names, of_models), definitions(facts)


def _conventions(comparison: Comparison) -> str:
    """Return every convention that the similarities depend on."""
    heatmap, items = comparison.map, plural(comparison.unit)
    median = [f"the median over {heatmap.sigma_samples} {items}"] if heatmap.sigma_samples else []
    parts = [*heatmap.measure.conventions, *median, features(heatmap).lower(), f"{heatmap.n_samples} {items}"]
    errors, intervals = heatmap.uncertainty, "no intervals"
    if errors is not None:
        units = "" if errors.n_groups is None else f", {errors.n_groups} groups"
        intervals = f"{numbers.confidence(errors.level)} intervals from the {errors.method}{units}"
    return "; ".join([*parts, intervals, f"{comparison.curve.alignment} alignment"])


# ---- figures --------------------------------------------------------------------------------------------


def features(heatmap: SimilarityMap) -> str:
    """Return the normalization of a map's features, as a title."""
    return "Raw features" if heatmap.measure.normalize == "raw" else "Z-scored features"


def curve_figure(comparisons: Comparisons, name: str, finding: str) -> Figure:
    """Return the similarity of a model to each of some references by layer, by one measure."""
    table = comparisons.table
    (chart, *_) = table.charts
    figure = drawn(table, replace(chart, name=name))
    alignment = ALIGNMENTS[comparisons.comparisons[0].curve.alignment]
    return Figure(name, figure.plot, finding, f"{alignment} {figure.reading}".strip())


def map_figure(
    name: str,
    heatmap: SimilarityMap,
    names: tuple[str, str],
    *,
    curve: SimilarityCurve | None = None,
    lowest: float | None = None,
    title: str = "",
) -> Figure:
    """Return every layer of a model (rows) against every layer of a reference (columns); names are of both.

    Dots mark the pairs of a curve. Colours go from 0, or from the lowest value where that is negative, to 1.
    """
    measure, (model, reference), (rows, columns) = heatmap.measure.short_name, names, heatmap.shape
    lowest = lowest_value([heatmap]) if lowest is None else lowest
    cells, template = _cells(heatmap)
    alone = curve is not None and curve.alignment == "previous-layer"
    legend = "" if title.lower().startswith(measure.lower()) else measure
    pair = "layer %{y}, layer %{x}" if alone else "model layer %{y}, reference layer %{x}"
    heat = go.Heatmap(
        z=of_cells(heatmap.layers, heatmap.values),
        hoverongaps=False if any((*heatmap.first_layers, *heatmap.collapsed)) else None,
        customdata=cells,
        name=f"{measure} map",
        zmin=min(0.0, lowest),
        zmax=1.0,
        xgap=1,
        ygap=1,
        colorscale=colour_scale(min(0.0, lowest), 1.0),
        colorbar={"thickness": 12, "outlinewidth": 0, "len": 1, "title": {"text": legend}, "tickfont": {"size": 11}},
        hovertemplate=f"{pair}<br>{measure} %{{z:.4f}}{template}<extra></extra>",
    )
    figure = go.Figure([heat])
    if curve is not None:
        figure.add_scatter(
            x=[curve.reference_layers[layer] for layer in heatmap.layers[0]],
            y=list(heatmap.layers[0]),
            name="compared in the curve",
            mode="markers",
            marker={"color": PAPER, "size": 6, "line": {"color": INK, "width": 1.2}},
            hoverinfo="skip",
            showlegend=False,
        )
    number_axis(figure.layout.xaxis, f"Layer of {reference}", columns)
    number_axis(figure.layout.yaxis, f"Layer of {model}", rows)
    styled(figure)
    if title:
        figure.update_layout(title={"text": text(title), "x": 0, "xref": "paper", "font": {"size": 15}})
    figure.update_xaxes(tickfont_size=11)
    figure.update_yaxes(tickfont_size=11)
    style = f"--columns:{columns};--rows:{rows}"
    return Figure(name, figure, map_finding(heatmap, alone=alone), "", kind="plot map", style=style)


def map_finding(heatmap: SimilarityMap, *, alone: bool = False) -> str:
    """Return what a map shows; alone: of a model with itself."""
    layers, others = heatmap.layers
    cells = [
        (value, i, j)
        for i, row in enumerate(heatmap.values)
        for j, value in enumerate(row)
        if i in layers and j in others and (not alone or j < i)
    ]
    (low, low_i, low_j), (high, high_i, high_j) = min(cells), max(cells)
    if alone:
        return (
            f"Of different layers, {high_j} and {high_i} are the most similar ({numbers.number(high, 3)}), {low_j} and"
            f" {low_i} the least ({numbers.number(low, 3)})."
        )
    closest, j = max((value, j) for value, i, j in cells if i == layers[-1])
    end = "last layer" if layers[-1] == len(heatmap.values) - 1 else f"layer {layers[-1]}"
    return (
        f"The most similar pair is layer {high_i} of the model and layer {high_j} of the reference"
        f" ({numbers.number(high, 3)}), the least similar layer {low_i} and layer {low_j} ({numbers.number(low, 3)})."
        f" The model's {end} is closest to layer {j} of the reference ({numbers.number(closest, 3)})."
    )


def both_normalizations(comparison: Comparison, names: tuple[str, str]) -> list[Figure]:
    """Return the map of a comparison, and next to it that of the other normalization where there is one."""
    maps = [heatmap for heatmap in (comparison.map, comparison.other_normalization) if heatmap is not None]
    lowest = lowest_value(maps)
    return [
        map_figure(
            f"map-{number}",
            heatmap,
            names,
            curve=comparison.curve,
            lowest=lowest,
            title=features(heatmap) if len(maps) > 1 else "",
        )
        for number, heatmap in enumerate(maps)
    ]


def lowest_value(maps: Sequence[SimilarityMap]) -> float:
    """Return the lowest value of some maps, from which they share one scale of colours."""
    rows = (row for heatmap in maps for row in of_cells(heatmap.layers, heatmap.values))
    return min(value for row in rows for value in row if value is not None)


def _cells(heatmap: SimilarityMap) -> tuple[list[list[list[float]]] | None, str]:
    """Return the numbers of every cell next to its value, and how they are shown when it is pointed at."""
    errors = heatmap.uncertainty
    if errors is None:
        return None, ""
    level = numbers.confidence(errors.level)
    template = f"<br>{level} interval [%{{customdata[0]:.3f}}, %{{customdata[1]:.3f}}]"
    matrices = zip(errors.lower, errors.upper, errors.standard_errors, strict=True)
    cells = [[list(cell) for cell in zip(*rows, strict=True)] for rows in matrices]
    return cells, f"{template}<br>standard error %{{customdata[2]:.4f}}"
