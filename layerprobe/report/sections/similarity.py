"""Similarity to the reference and to further ones: curve, tests between layers, maps."""

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from layerprobe.prediction.values import PLATEAU, DropPrediction
from layerprobe.report import words
from layerprobe.report.figures import similarity as figures
from layerprobe.results import numbers
from layerprobe.results.markup import Markup, element
from layerprobe.results.parts import folded, section, table_of
from layerprobe.results.table import Column, Table, chance
from layerprobe.results.values import Figure, Section
from layerprobe.similarity.values import CurveUncertainty, SimilarityMap
from layerprobe.study.values import Study

ALIGNMENTS = {
    "same-index": "Each layer is compared with the reference's layer of the same index.",
    "relative-depth": "Each layer is compared with the reference's layer at the same relative depth.",
    "best-match": "Each layer is compared with the reference's layer that it resembles most.",
    "previous-layer": "Each layer is compared with the one before; layer 0, which has none, with itself.",
}


# ---- the curve ----------------------------------------------------------------------------------------


def cka_curve(study: Study) -> Section:
    """Return the curve with what belongs to it: tests between layers and further references."""
    figure = Figure("cka-curve", figures.cka_curve(study), words.cka_curve_finding(study), _reading(study))
    heading = f"Similarity to the {'layer before' if study.comparison.alone else 'reference'}, layer by layer"
    shown = study.comparison
    values = folded("Every value, with interval and tests", table_of(shown.table)) if shown.steps else None
    return section("cka-curve", heading, figure, values, _further(study))


def read_by_rule(prediction: DropPrediction, study: Study | None = None) -> Section:
    """Return what the rule read besides CKA, if anything; where it is of a study, with the layer to keep."""
    heading = f"What the rule “{prediction.rule}” reads"
    if not prediction.read:
        return section("read", heading)
    errors = next(iter(prediction.read_uncertainty.values()), None)
    figure = Figure(
        "read",
        figures.rule_readings(prediction) if study is None else figures.read_by_rule(study),
        words.read_finding(prediction),
        " ".join((*diamonds(prediction), *shades(errors))),
        style=f"height:{120 + 220 * len(prediction.read)}px",
    )
    return section("read", heading, figure)


def _reading(study: Study) -> str:
    curve = study.comparison.curve
    said = [ALIGNMENTS[curve.alignment]]
    if study.prediction.by_plateau:
        said.append("The plateau is the median of the layers before the decline.")
    flagged = () if study.prediction.read else diamonds(study.prediction)
    said += [*flagged, *shades(curve.uncertainty)]
    if study.further_comparisons:
        said.append("Thin dashed lines are further references, with the intervals of each layer.")
    return " ".join(said)


def diamonds(prediction: DropPrediction) -> tuple[str, ...]:
    """Return what the diamonds of a curve are, where it has any."""
    return ("Diamonds on a shaded background: layers that are flagged.",) if prediction.drops else ()


def shades(errors: CurveUncertainty | None) -> tuple[str, ...]:
    """Return how to read the ground around a curve."""
    if errors is None:
        return ()
    level = numbers.confidence(errors.level)
    return (
        f"The inner shade around the line is the {level} interval of each layer by itself, the outer shade the band"
        f" that holds the whole curve with {level} confidence.",
    )


def _further(study: Study) -> Markup | None:
    if not study.further_comparisons:
        return None
    first, by = study.prediction, study.further_predictions[0].rule
    note = "The prediction of this report comes from the first; a drop that all of them show is not specific to one."
    if first.rule != by:
        first = _by_plateau(first)
        note = f"By the {by}, as the rule of this report reads the model alone."
    predictions = (first, *study.further_predictions)
    names = list(words.reference_labels(study))
    names[0] += " (this report)" if first is study.prediction else ""
    shown = references_table(names, predictions)
    return element("div", element("h3", shown.title), element("p", note), table_of(shown))


def references_table(names: Sequence[str], predictions: Sequence[DropPrediction]) -> Table:
    """Return what each reference alone would predict."""
    evidence, redrawn = ([getattr(each, name) for each in predictions] for name in ("evidence", "probability"))
    return Table(
        columns=(
            Column("reference", names),
            Column("rule", [each.rule for each in predictions]),
            Column("drop_layers", [numbers.layer_range(each.drop_layers) or "none" for each in predictions]),
            Column("recommended", [each.recommended_layer for each in predictions]),
            Column("decline", [each and words.decline(each) for each in evidence], title="decline at the last layer"),
            Column("any_drop", [each and each.any_drop for each in redrawn], "flagged in bootstrap samples", chance),
        ),
        title="What each reference alone would predict",
    )


def _by_plateau(prediction: DropPrediction) -> DropPrediction:
    """Return what the plateau rule says of the reference that a prediction by another rule stands next to."""
    kept = prediction.baselines[PLATEAU]
    last = prediction.baselines["last layer"]
    drop = tuple(range(kept + 1, last + 1))
    onset = drop[0] if drop else None
    return replace(prediction, rule=PLATEAU, drop_layers=drop, onset=onset, recommended_layer=kept, probability=None)


# ---- maps ---------------------------------------------------------------------------------------------


def cka_map(study: Study) -> Section:
    """Return the map, next to that of the other normalization where there is one."""
    heading, alone = "All pairs of layers", study.comparison.alone
    shown, other = study.comparison.map, study.comparison.other_normalization
    columns = "too" if alone else "the reference's"
    reading = f"Rows are the model's layers, columns {columns}; dots mark the pairs of the curve above."
    first = _map("cka-map", figures.cka_map(study), shown, reading, alone=alone)
    if other is None:
        return section("cka-map", heading, first, kind="beside")
    note = (
        "The same in the same colours, once of the features as they are and once of features divided by their standard"
        " deviation: where the two differ much, a few features of large variance decide the raw map."
    )
    second = _map("other-map", figures.other_map(study), other, "", alone=alone)
    return section("cka-map", heading, note, first, second, kind="pair")


def _map(name: str, plot: go.Figure, shown: SimilarityMap, reading: str, *, alone: bool) -> Figure:
    rows, columns = shown.shape
    finding, style = words.cka_map_finding(shown, alone=alone), f"--columns:{columns};--rows:{rows}"
    return Figure(name, plot, finding, reading, kind="plot map", style=style)
