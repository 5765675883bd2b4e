"""A prediction as a page: what is expected, the curves that it rests on, and how certain that is."""

import plotly.graph_objects as go

from layerprobe.comparison.values import Comparisons
from layerprobe.prediction.sentence import highest_and_last, trusted
from layerprobe.prediction.values import DropPrediction
from layerprobe.report.comparison import Compared, compared_models, diagnostics, maps, provenance
from layerprobe.report.figures.similarity import PREDICTED_DROP, similarity_curves
from layerprobe.report.sections.scores import ways_to_choose
from layerprobe.report.sections.similarity import ALIGNMENTS, diamonds, read_by_rule, references_table, shades
from layerprobe.results import numbers
from layerprobe.results.markup import element, join
from layerprobe.results.parts import definitions, section, table_of
from layerprobe.results.style import CHOSEN, DROP, MODEL, layer_axis, shade_drop, styled
from layerprobe.results.table import Table
from layerprobe.results.values import Figure, Page, Section
from layerprobe.study.values import Prediction


def prediction_page(prediction: Prediction) -> Page:
    """Return the page of what is expected of a model."""
    drop = prediction.drop
    compared = compared_models([Comparisons(comparisons=prediction.comparisons)])
    references = references_table(compared.references, prediction.drops)
    against = () if compared.alone else (" ", element("span", "compared with", class_="against"), " ")
    return Page(
        title=f"{compared.model}: where to look first",
        overline="layerprobe · prediction",
        heading=join(compared.model, *against, *(() if compared.alone else (" and ".join(compared.references),))),
        lead=(drop.sentence,),
        remarks=trusted(drop)[1:],
        warnings=tuple(prediction.warnings),
        sections=(
            read_by_rule(drop),
            _curve(compared, drop),
            _flags(drop),
            section("layers", "Table of layers", table_of(prediction.table), kind="dense"),
            section("references", references.title, table_of(references) if len(prediction.drops) > 1 else None),
            maps(compared),
            _baselines(drop, prediction.table),
            diagnostics(compared),
        ),
        provenance=(*provenance(compared), definitions({"Rule": _rule(drop)})),
        terms=(
            "Layer",
            "Drop layer",
            "CKA",
            "Debiased",
            *(("Interval, band", "Bootstrap") if drop.probability else ()),
        ),
        result=prediction,
        data_label="Prediction",
        stem="layerprobe-prediction",
    )


def drop_page(drop: DropPrediction) -> Page:
    """Return the page of a prediction alone, without the comparison that it rests on."""
    return Page(
        title="Where to look first",
        overline="layerprobe · prediction",
        heading=f"{'Look first at' if drop.drops else 'Keep'} layer {drop.recommended_layer}",
        lead=(drop.sentence,),
        remarks=trusted(drop)[1:],
        sections=(
            read_by_rule(drop),
            _flags(drop),
            section("layers", "Table of layers", table_of(drop.table), kind="dense"),
            _baselines(drop, drop.table),
        ),
        provenance=(definitions({"Rule": _rule(drop)}),),
        terms=("Layer", "Drop layer", *(("Bootstrap",) if drop.probability else ())),
        result=drop,
        data_label="Prediction",
        stem="layerprobe-prediction",
    )


def _curve(compared: Compared, drop: DropPrediction) -> Section:
    comparisons, references = compared.measured[0].comparisons, compared.references
    # what is flagged stands on the curve that decided
    flagged = drop.drop_layers if drop.by_plateau else ()
    figure = similarity_curves(comparisons, references, flagged=flagged)
    shade_drop(figure, flagged, what=PREDICTED_DROP)
    values = compared.first.curve.values
    name = f"{compared.first.map.measure.short_name} with {'the layer before' if compared.alone else references[0]}"
    reading = [ALIGNMENTS[compared.first.curve.alignment], *(diamonds(drop) if flagged else ())]
    reading += shades(compared.first.curve.uncertainty)
    # alone, the first layer has none before it and is compared with itself
    finding = f"{numbers.capitalised(highest_and_last({name: values}, first=drop.first_layer + compared.alone))}."
    heading = f"Similarity to the {'layer before' if compared.alone else 'reference'}, layer by layer"
    return section("curve", heading, Figure("curve", figure, finding, " ".join(reading)))


def _flags(drop: DropPrediction) -> Section:
    """Return how often each layer is flagged when the curves are redrawn, or which ones are flagged."""
    layers, redrawn = range(drop.n_layers), drop.probability
    flagged = [float(layer in drop.drop_layers) for layer in layers]
    shares = flagged if redrawn is None else list(redrawn.by_layer)
    colours = [DROP if flag else MODEL for flag in flagged]
    colours[drop.recommended_layer] = CHOSEN
    bars = go.Bar(
        x=list(layers),
        y=[100 * share for share in shares],
        marker={"color": colours},
        hovertemplate="layer %{x}: flagged in %{y:.0f} %<extra></extra>",
    )
    figure = go.Figure([bars])
    layer_axis(figure, len(layers))
    figure.update_yaxes(title="Flagged, % of bootstrap samples" if redrawn else "Flagged, %", range=[0, 105])
    shade_drop(figure, drop.drop_layers, what=PREDICTED_DROP)
    said = numbers.counted_layers(drop.drop_layers) if drop.drops else "no layer"
    finding = f"Flagged: {said}; layer {drop.recommended_layer} is recommended."
    reading = ""
    if redrawn is not None and drop.same is not None:
        finding += f" {numbers.redrawn_share(drop.same)} of {redrawn.draws:,} bootstrap samples give the same layer."
        reading = (
            "Bars are the share of bootstrap samples in which a layer is flagged: what other texts like these would "
            "flag, right or not."
        )
    return section("flags", "The same for other texts", Figure("flags", styled(figure), finding, reading))


def _baselines(drop: DropPrediction, layers: Table) -> Section:
    ways = {f"{drop.rule} (this page)": drop.recommended_layer, **drop.baselines}
    return section("baselines", "Compared with simpler rules", table_of(ways_to_choose(ways, layers)))


def _rule(drop: DropPrediction) -> str:
    redrawn = drop.probability
    return drop.rule + ("" if redrawn is None else f", also on {redrawn.draws} bootstrap samples (seed {redrawn.seed})")
