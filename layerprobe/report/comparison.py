"""A comparison as a page: one model against others, by one measure or several. Knows its words and sections."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.errors import DataError
from layerprobe.names import distinct_names, listed, plural
from layerprobe.report import words
from layerprobe.report.figures.similarity import lowest_value, similarity_curves, similarity_map
from layerprobe.report.sections.diagnostics import diagnosed, of_models
from layerprobe.report.sections.provenance import conventions, model_facts
from layerprobe.report.sections.similarity import ALIGNMENTS, shades
from layerprobe.results import numbers
from layerprobe.results.markup import element, join
from layerprobe.results.parts import definitions, facts_table, section, table_of
from layerprobe.results.table import Table, stacked
from layerprobe.results.values import Figure, Page, Part, Section
from layerprobe.similarity.values import Difference, SimilarityMap


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
    def table(self) -> Table:
        """A row a measure, reference and layer."""
        return stacked([each.table for each in self.measured], by=("measure", "reference"))


def comparison_page(*results: Comparison | Comparisons) -> Page:
    """Return the page of a model compared with others; of several results, each is by another measure.

    Raises:
        DataError: If results are of different models.
    """
    compared = compared_models(results)
    model, against = compared.model, " and ".join(compared.references)
    title = model if compared.alone else f"{model} compared with {against}"
    heading = () if compared.alone else (" ", element("span", "compared with", class_="against"), " ", against)
    has_intervals = compared.first.curve.uncertainty is not None
    return Page(
        title=title,
        overline="layerprobe · comparison",
        heading=join(model, *heading),
        lead=tuple(_leads(compared)),
        remarks=tuple(_agreement(compared)),
        warnings=tuple(said for each in compared.measured for one in each.comparisons for said in one.warnings),
        sections=(_curves(compared), maps(compared), _layers(compared), diagnostics(compared)),
        provenance=provenance(compared),
        terms=("CKA", "Debiased", "Layer", *(("Interval, band",) if has_intervals else ())),
        result=results[0] if len(results) == 1 else results,
        data_label="Whole comparison",
        numbers=compared.table,
        stem="layerprobe-comparison",
    )


def map_page(shown: SimilarityMap) -> Page:
    """Return the page of a map alone, which does not say whose layers it is of."""
    rows, columns = shown.shape
    plot = similarity_map(shown, ("the model", "the reference"))
    style = f"--columns:{columns};--rows:{rows}"
    figure = Figure("map", plot, words.cka_map_finding(shown), "", kind="plot map", style=style)
    return Page(
        title=words.measure(shown),
        overline="layerprobe · similarity map",
        heading=words.measure(shown),
        lead=(words.cka_map_finding(shown),),
        sections=(
            section("map", "All pairs of layers", figure, kind="beside"),
            section("values", "Values", table_of(shown.table), kind="dense"),
        ),
        provenance=(definitions({"Texts": str(shown.n_samples), "Similarity": "; ".join(shown.measure.conventions)}),),
        terms=("CKA", "Layer"),
        result=shown,
        stem="layerprobe-map",
    )


def compared_models(results: Sequence[Comparison | Comparisons]) -> Compared:
    """Return results of the same models with what these are called; raise DataError if they are of others."""
    measured = tuple(each if isinstance(each, Comparisons) else Comparisons(comparisons=(each,)) for each in results)
    whole = [[one.comparisons[0].model.name, *(each.reference.name for each in one.comparisons)] for one in measured]
    if not whole or any(names != whole[0] for names in whole):
        raise DataError(f"expected comparisons of the same models by different measures, got {whole}")
    model, *references = numbers.labels(distinct_names(whole[0]))
    return Compared(measured=measured, model=model, references=tuple(references))


# ---- what was found -------------------------------------------------------------------------------------


def _leads(compared: Compared) -> Iterator[str]:
    """Yield what was found by each measure; measures that say the same in one sentence."""
    found: dict[str, list[str]] = {}
    for each in compared.measured:
        first = each.comparisons[0]
        several = len(each.comparisons) > 1
        said = _alone(first) if compared.alone else _several(compared, each) if several else _one(compared, first)
        found.setdefault(said, []).append(first.map.measure.title)
    yield from (f"By {listed(measures, 'and')}, {said}" for said, measures in found.items())


def _alone(comparison: Comparison) -> str:
    """Return which block changes the embeddings most."""
    least = words.least_like_before(comparison)
    return f"layer {least} is least like the one before ({_value(comparison, least)}): block {least} changes most."


def _one(compared: Compared, comparison: Comparison) -> str:
    """Return where a model is most and least like its reference."""
    values, last = comparison.curve.values, len(comparison.curve.values) - 1
    most, least = (pick(range(comparison.first_layer, last + 1), key=values.__getitem__) for pick in (max, min))
    ending = "" if last in (most, least) else f"; at its last layer, {last}, it is {_value(comparison, last)}"
    return (
        f"{compared.model} is most like {compared.references[0]} at layer {most}"
        f" ({_value(comparison, most)}) and least at layer {least} ({_value(comparison, least)}){ending}."
    )


def _several(compared: Compared, each: Comparisons) -> str:
    """Return which reference is closest at which layers."""
    curves = [comparison.curve.values for comparison in each.comparisons]
    layers = range(each.comparisons[0].first_layer, len(curves[0]))
    closest = {layer: max(range(len(curves)), key=lambda index: curves[index][layer]) for layer in layers}
    spans = [
        f"to {compared.references[index]} at {numbers.counted_layers(list(span))}"
        for index, span in groupby(layers, key=closest.__getitem__)
    ]
    where = f"to {compared.references[closest[layers[0]]]} at every layer" if len(spans) == 1 else ", ".join(spans)
    return f"{compared.model} is closest {where}."


def _ends_and_steps(compared: Compared, each: Comparisons) -> str:
    """Return how similar the last layers are, and where the first curve falls most from one layer to the next."""
    last, names = len(each.comparisons[0].curve.values) - 1, compared.references
    ends = (f"{name} {_value(one, last)}" for name, one in zip(names, each.comparisons, strict=True))
    value = _value(each.comparisons[0], last) if len(names) == 1 else ", ".join(ends)
    said = f"{words.measure(each.comparisons[0].map)} at the last layer, {last}: {value}."
    falls = {layer: step for layer, step in each.comparisons[0].changes.items() if step.upper < 0}
    if not falls:
        return said
    layer = min(falls, key=lambda layer: falls[layer].value)
    return f"{said} The largest fall is from layer {layer - 1} to layer {layer}: {_difference(falls[layer])}."


def _agreement(compared: Compared) -> Iterator[str]:
    """Yield whether several measures agree on where a model is least like its first reference."""
    if len(compared.measured) < 2:
        return
    by_layer: dict[int, list[str]] = {}
    for each in compared.measured:
        first = each.comparisons[0]
        start = first.first_layer + (1 if compared.alone else 0)
        least = min(range(start, len(first.curve.values)), key=first.curve.values.__getitem__)
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


def _difference(each: Difference) -> str:
    return f"{numbers.signed(each.value, 3)} {numbers.interval((each.lower, each.upper), 3)}"


# ---- curves ---------------------------------------------------------------------------------------------


def _curves(compared: Compared) -> Section:
    """Return a curve for every reference, a figure a measure, with the tests."""
    first = compared.first
    reading = [ALIGNMENTS[first.curve.alignment], *shades(first.curve.uncertainty)]
    if len(compared.references) > 1:
        reading.append("Thin dashed lines are further references, with the intervals of each layer.")
    figures = [
        Figure(
            f"curve-{number}",
            similarity_curves(each.comparisons, compared.references),
            _ends_and_steps(compared, each),
        )
        for number, each in enumerate(compared.measured)
    ]
    kind = "pair" if len(figures) > 1 else None
    return section("curves", "Similarity, layer by layer", " ".join(reading), *figures, kind=kind)


# ---- maps -----------------------------------------------------------------------------------------------


def maps(compared: Compared) -> Section:
    """Return a map for every reference and measure; of a single pair next to that of the other normalization."""
    heading, (only, *more) = "All pairs of layers", list(_pairs(compared))
    lone, other = not more, compared.first.other_normalization
    lowest = lowest_value([one.map for _, one in (only, *more)] + ([other] if lone and other is not None else []))
    figures = [_map(compared, number, name, one, lowest) for number, (name, one) in enumerate((only, *more))]
    columns = "too" if compared.alone else "the reference's"
    note = f"Rows are the model's layers, columns {columns}; dots mark the pairs of the curves above."
    if lone and other is not None:
        figures = [
            _map(compared, number, words.features(shown), compared.first, lowest, shown)
            for number, shown in enumerate((compared.first.map, other))
        ]
        note += (
            " The same in the same colours, once of the features as they are and once of features divided by their"
            " standard deviation: where the two differ much, a few features of large variance decide the raw map."
        )
    elif more:
        note += " All maps share one scale of colours."
    return section("maps", heading, note, *figures, kind="beside" if len(figures) == 1 else "pair")


def _pairs(compared: Compared) -> Iterator[tuple[str, Comparison]]:
    """Yield every comparison with what tells it from the others."""
    for each in compared.measured:
        for reference, one in zip(compared.references, each.comparisons, strict=True):
            names = [one.map.measure.short_name] if len(compared.measured) > 1 else []
            names += [f"with {reference}"] if len(compared.references) > 1 else []
            yield numbers.capitalised(" ".join(names)), one


def _map(
    compared: Compared, number: int, title: str, one: Comparison, lowest: float, other: SimilarityMap | None = None
) -> Figure:
    shown = other or one.map
    reference = numbers.labels(distinct_names([one.model.name, one.reference.name]))[1]
    plot = similarity_map(shown, (compared.model, reference), compared=one.curve, lowest=lowest, title=title)
    rows, columns = shown.shape
    finding, style = words.cka_map_finding(shown, alone=one.alone), f"--columns:{columns};--rows:{rows}"
    return Figure(f"map-{number}", plot, finding, "", kind="plot map", style=style)


# ---- tables ---------------------------------------------------------------------------------------------


def _layers(compared: Compared) -> Section:
    """Return every value with its interval, a row a layer."""
    return section("layers", "Table of layers", table_of(compared.table), kind="dense")


def diagnostics(compared: Compared) -> Section:
    """Return what the layers of each model are like alone."""
    first = compared.measured[0].comparisons
    references = [] if compared.alone else zip(compared.references, first, strict=True)
    return of_models(diagnosed(compared.model, compared.first, references))


def provenance(compared: Compared) -> tuple[Part, ...]:
    """Return the models, the texts and the conventions."""
    first = compared.first
    comparisons = () if compared.alone else compared.measured[0].comparisons
    models = [first.model, *(comparison.reference for comparison in comparisons)]
    names = ["Model", *(f"Reference {number}" if number > 1 else "Reference" for number in range(1, len(models)))]
    measures = {
        f"Similarity, {each.comparisons[0].map.measure.short_name}" if len(compared.measured) > 1 else "Similarity": (
            conventions(each.comparisons[0])
        )
        for each in compared.measured
    }
    facts = {
        numbers.capitalised(plural(first.unit)): f"{first.map.n_samples} distinct (sha256 {first.texts_digest})",
        "Embeddings": f"{first.pooling} pooling",
        "Settings": ", ".join(f"{name} {value}" for name, value in first.settings.items()) or None,
        **measures,
    }
    return facts_table("Models", names, [model_facts(model) for model in models]), definitions(facts)
