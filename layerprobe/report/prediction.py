"""A prediction as a page: what is expected, the curves that it rests on, and how surely."""

from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from layerprobe.comparison.values import Comparisons
from layerprobe.files.serialisation import to_json
from layerprobe.prediction.sentence import highest_and_last, record_sentence
from layerprobe.prediction.values import DropPrediction
from layerprobe.report.comparison import Compared, compared_models, diagnostics, maps, provenance
from layerprobe.report.figures.similarity import PREDICTED_DROP, rule_readings, similarity_curves
from layerprobe.report.sections.similarity import ALIGNMENTS, shades
from layerprobe.results import numbers
from layerprobe.results.markup import element, join
from layerprobe.results.parts import Row, definitions, section, table
from layerprobe.results.shown import from_layer
from layerprobe.results.style import CHOSEN, DROP, MODEL, layer_axis, shade_drop, styled
from layerprobe.results.table import csv_text
from layerprobe.results.values import Figure, Page, Section
from layerprobe.study.values import Prediction

DIAMONDS = "Diamonds on shaded ground are the layers that are expected to drop."


def prediction_page(prediction: Prediction) -> Page:
    """Return the page of what is expected of a model."""
    drop = prediction.drop
    compared = compared_models([Comparisons(comparisons=prediction.comparisons)])
    against = () if compared.alone else (" ", element("span", "against", class_="against"), " ")
    return Page(
        title=f"{compared.model}: which layers will drop",
        overline="layerprobe · prediction",
        heading=join(compared.model, *against, *(() if compared.alone else (" and ".join(compared.references),))),
        lead=(drop.sentence,),
        remarks=() if drop.record is None else (record_sentence(drop.record),),
        warnings=tuple(prediction.warnings),
        sections=(
            _read(drop),
            _curve(compared, drop),
            _flags(drop),
            _layers(compared, drop),
            _references(compared, prediction),
            maps(compared),
            _baselines(drop),
            diagnostics(compared),
        ),
        provenance=(*provenance(compared), definitions({"Rule": _rule(drop)})),
        terms=("Layer", "Drop layer", "CKA", "Debiased", *(("Interval, band", "Redraw") if drop.probability else ())),
        data=to_json(prediction),
        data_label="Prediction",
        table=_csv(drop, from_layer(drop.first_layer, compared.first.curve.values)),
        table_label="Table of layers",
        stem="layerprobe-prediction",
    )


def drop_page(drop: DropPrediction) -> Page:
    """Return the page of a prediction alone, without the comparison that it rests on."""
    return Page(
        title="Which layers will drop",
        overline="layerprobe · prediction",
        heading=f"Keep layer {drop.recommended_layer}",
        lead=(drop.sentence,),
        remarks=() if drop.record is None else (record_sentence(drop.record),),
        sections=(_read(drop), _flags(drop), _baselines(drop)),
        provenance=(definitions({"Rule": _rule(drop)}),),
        terms=("Layer", "Drop layer", *(("Redraw",) if drop.probability else ())),
        data=to_json(drop),
        data_label="Prediction",
        table=_csv(drop, ()),
        table_label="Table of layers",
        stem="layerprobe-prediction",
    )


def _n_layers(drop: DropPrediction) -> int:
    """Return how many layers a prediction is of: those that it names, and those of what it read and redrew."""
    named = (*drop.drop_layers, drop.recommended_layer, *drop.baselines.values())
    redrawn = () if drop.probability is None else drop.probability.by_layer
    return max(max(named) + 1, len(redrawn), *(len(values) for values in drop.read.values()), 1)


def _read(drop: DropPrediction) -> Section:
    heading = f"What the rule “{drop.rule}” reads"
    if not drop.read:
        return section("read", heading)
    errors = next(iter(drop.read_uncertainty.values()), None)
    reading = " ".join((*((DIAMONDS,) if drop.drops else ()), *shades(errors)))
    style = f"height:{120 + 220 * len(drop.read)}px"
    finding = f"{numbers.capitalised(highest_and_last(drop.read, first=drop.first_layer))}."
    figure = Figure("read", rule_readings(drop), finding, reading, style=style)
    return section("read", heading, figure)


def _curve(compared: Compared, drop: DropPrediction) -> Section:
    comparisons, references = compared.measured[0].comparisons, compared.references
    # what is flagged stands on the curve that decided
    flagged = drop.drop_layers if drop.by_plateau else ()
    figure = similarity_curves(comparisons, references, flagged=flagged)
    shade_drop(figure, flagged, what=PREDICTED_DROP)
    values = compared.first.curve.values
    name = f"{compared.first.map.measure.short_name} with {'the layer before' if compared.alone else references[0]}"
    reading = [ALIGNMENTS[compared.first.curve.alignment], *((DIAMONDS,) if flagged else ())]
    reading += shades(compared.first.curve.uncertainty)
    finding = f"{numbers.capitalised(highest_and_last({name: values}, first=drop.first_layer))}."
    heading = f"Similarity to the {'layer before' if compared.alone else 'reference'}, layer by layer"
    return section("curve", heading, Figure("curve", figure, finding, " ".join(reading)))


def _flags(drop: DropPrediction) -> Section:
    """Return how often each layer is flagged when the curves are redrawn, or which ones are flagged."""
    layers, redrawn = range(_n_layers(drop)), drop.probability
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
    figure.update_yaxes(title="Flagged, % of redraws" if redrawn else "Flagged, %", range=[0, 105])
    shade_drop(figure, drop.drop_layers, what=PREDICTED_DROP)
    said = numbers.counted_layers(drop.drop_layers) if drop.drops else "no layer"
    finding = f"Flagged as dropping: {said}; layer {drop.recommended_layer} is recommended."
    reading = ""
    if redrawn is not None:
        finding += f" {numbers.redrawn_share(redrawn.any_drop)} of {redrawn.draws:,} redraws flag a drop."
        reading = "Bars say how surely the curves decline there, within the sampling error."
    return section("flags", "How surely", Figure("flags", styled(figure), finding, reading))


def _layers(compared: Compared, drop: DropPrediction) -> Section:
    """Return what the rule read, and what follows, a row a layer."""
    rows, heading = [], "Table of layers"
    for layer, value in enumerate(from_layer(drop.first_layer, compared.first.curve.values)):
        measured = value is not None
        flag = "drop" if layer in drop.drop_layers else "recommended" if layer == drop.recommended_layer else ""
        kind = f"flag {'drop' if flag == 'drop' else 'chosen'}"
        redrawn = drop.probability
        rows.append(
            (
                ("Layer", str(layer)),
                *(
                    (name, numbers.significant(values[layer] if measured else None, 4))
                    for name, values in drop.read.items()
                ),
                (compared.first.map.measure.short_name, numbers.number(value, 3)),
                *(
                    (("Flagged in redraws", numbers.redrawn_share(redrawn.by_layer[layer]) if measured else "–"),)
                    if redrawn
                    else ()
                ),
                ("", element("span", flag, class_=kind) if flag else ""),
            )
        )
    return section("layers", heading, table(heading, rows), kind="dense")


def _references(compared: Compared, prediction: Prediction) -> Section:
    """Return what each reference alone would say; nothing where there is one."""
    heading, rows = "What each reference alone would predict", list[Row]()
    if len(prediction.drops) > 1:
        rows = [
            (
                ("Reference", name),
                ("Rule", drop.rule),
                ("Drop layers", numbers.layer_range(drop.drop_layers) or "none"),
                ("Recommended", str(drop.recommended_layer)),
            )
            for name, drop in zip(compared.references, prediction.drops, strict=True)
        ]
    return section("references", heading, table(heading, rows))


def _baselines(drop: DropPrediction) -> Section:
    rows = (
        (("Way to choose", way), ("Layer", str(layer)))
        for way, layer in {f"{drop.rule} (this page)": drop.recommended_layer, **drop.baselines}.items()
    )
    return section("baselines", "Beside simpler rules", table("Baselines", rows))


def _rule(drop: DropPrediction) -> str:
    redrawn = drop.probability
    return drop.rule if redrawn is None else f"{drop.rule}, on {redrawn.draws} redraws, too (seed {redrawn.seed})"


def _csv(drop: DropPrediction, values: Sequence[float | None]) -> str:
    columns = ("layer", *(("similarity",) if values else ()), *drop.read, "drop", "recommended", "flagged_in_redraws")
    return csv_text(columns, _rows(drop, values))


def _rows(drop: DropPrediction, values: Sequence[float | None]) -> Iterator[tuple[object, ...]]:
    for layer in range(len(values) or _n_layers(drop)):
        measured = layer >= drop.first_layer
        yield (
            *(layer, *values[layer : layer + 1], *(read[layer] if measured else None for read in drop.read.values())),
            *(layer in drop.drop_layers, layer == drop.recommended_layer),
            None if drop.probability is None or not measured else drop.probability.by_layer[layer],
        )
