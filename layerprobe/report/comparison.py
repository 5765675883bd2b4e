"""A comparison as a page: one model against others, by one measure or several. Knows its words and sections."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.errors import DataError
from layerprobe.names import distinct_names, listed, plural
from layerprobe.report.facts import diagnostics, model_facts
from layerprobe.report.maps import (
    OTHER_NORMALIZATION,
    both_normalizations,
    curve_figure,
    features,
    lowest_value,
    map_figure,
    map_finding,
)
from layerprobe.results import numbers
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, facts_table, folded, section, table_of
from layerprobe.results.shown import clauses
from layerprobe.results.table import stacked
from layerprobe.results.values import Figure, Page, Part, Section
from layerprobe.similarity.values import SimilarityMap


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
    ).of(results[0] if len(results) == 1 else results)
    more, map_part = (
        section("curves", "By other measures", *curves[1:], kind="pair" if len(curves) > 2 else None),
        maps(compared),
    )
    if not show_map:
        table, *rest = page.sections
        return replace(page, sections=(more, table, map_part, *rest))
    tables = [folded(f"{name or 'Map'}: every number", table_of(one.map.table)) for name, one in _pairs(compared)]
    return replace(
        page, sections=(more, map_part, section("map-values", "Numbers of the maps", *tables), *page.sections)
    )


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
