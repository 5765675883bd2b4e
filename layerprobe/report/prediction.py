"""A prediction as a page: the expected drop, its curves and its certainty."""

from collections.abc import Sequence
from dataclasses import replace

from layerprobe.comparison.values import Comparisons
from layerprobe.prediction.rule import DRAWS
from layerprobe.prediction.values import Decline, DropPrediction
from layerprobe.readings.reading import course
from layerprobe.report.comparison import compared_models, curve_figure, diagnosed, maps, provenance
from layerprobe.report.facts import size_facts
from layerprobe.results import numbers
from layerprobe.results.blocks import Blocks
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, section, table_of
from layerprobe.results.table import Column, Table, chance
from layerprobe.results.values import Page, Section
from layerprobe.study.values import Prediction

CHOSEN = ("layer", "parameters", "expected", "tmft_mean", "tmft_std", "runs")
"""What is shown next to the layer that a rule recommends."""


def prediction_page(prediction: Prediction) -> Page:
    """Return the page of a prediction."""
    drop, compared = prediction.drop, compared_models([Comparisons(comparisons=prediction.comparisons)])
    references = references_table(compared.references, prediction.drops)
    curve = compared.first.curve
    other = "the layer before" if compared.alone else compared.references[0]
    name = f"{compared.first.map.measure.short_name} with {other}"
    # alone, the first layer has none before it and is compared with itself
    finding = course({name: curve.values}, layers=compared.first.layers[compared.alone :])
    figure = curve_figure(compared.measured[0], "curve", f"{numbers.capitalised(finding)}.")
    page = drop_page(drop, prediction.table)
    against = f"Similarity to the {'layer before' if compared.alone else 'reference'}, layer by layer"
    model = compared.first.model
    first = page.first if drop.read else figure
    flags = () if drop.read or page.first is None else (section("flags", "The same for other texts", page.first),)
    return replace(
        page,
        first=first,
        about=compared.about,
        facts=size_facts(model.parameters, drop.recommended_layer),
        warnings=tuple(prediction.warnings),
        sections=(
            *page.sections,
            *flags,
            section("curve", against, figure if drop.read else None),
            section("references", references.title, table_of(references) if len(prediction.drops) > 1 else None),
            maps(compared),
            diagnosed(compared),
        ),
        provenance=(*provenance(compared), *page.provenance),
        result=prediction,
    )


def drop_page(drop: DropPrediction, table: Table | None = None) -> Page:
    """Return the page of a prediction alone, without the comparison that it rests on."""
    drawn_table, last = drop.table if table is None else table, drop.n_layers - 1
    how = f", also on {DRAWS} bootstrap samples (seed 0)" if drop.flagged_in else ""
    ways = {f"{drop.rule} (this page)": drop.recommended_layer, **drop.baselines}
    return page_of(
        drop,
        table=drawn_table,
        kind="prediction, before any training",
        blocks=Blocks.upto(last, drop.recommended_layer),
        account=drop.trusted[1:],
        sections=(baselines(ways, drawn_table),),
        provenance=(definitions({"Rule": f"{drop.rule}{how}"}),),
    )


def baselines(ways: dict[str, int], layers: Table) -> Section:
    """Return ways to choose a layer, one row each, with the chosen layer's values from a table of layers."""
    columns = (
        replace(column, values=[column.values[layer] for layer in ways.values()])
        for column in layers.columns
        if column.name in CHOSEN
    )
    table = Table(columns=(Column("way", tuple(ways), title="rule"), *columns), title="Baselines")
    return section("baselines", "Compared with simpler rules", table_of(table))


def references_table(names: Sequence[str], predictions: Sequence[DropPrediction]) -> Table:
    """Return the prediction from each reference alone."""
    any_drop = [drop.flagged_in[-1] if drop.flagged_in else None for drop in predictions]
    return Table(
        columns=(
            Column("reference", names),
            Column("rule", [drop.rule for drop in predictions]),
            Column("drop_layers", [numbers.layer_range(drop.drop_layers) or "none" for drop in predictions]),
            Column("recommended", [drop.recommended_layer for drop in predictions]),
            Column(
                "decline",
                [drop.evidence and _decline(drop.evidence) for drop in predictions],
                title="decline at the last layer",
            ),
            Column("any_drop", any_drop, "flagged in bootstrap samples", chance),
        ),
        title="What each reference alone would predict",
    )


def _decline(evidence: Decline) -> str:
    """Return by how much the curve declines, with its interval where it has one."""
    value, ends = numbers.number(evidence.decline, 3), evidence.decline_interval
    return value if ends is None else f"{value} {numbers.interval(ends, 3)}"
