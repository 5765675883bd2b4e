"""What an ensemble gains, as a page."""

from collections.abc import Iterator
from statistics import fmean

import plotly.graph_objects as go

from layerprobe.lab.ensembles.values import Ensemble, EnsembleCost
from layerprobe.metrics.names import metric_title
from layerprobe.names import listed
from layerprobe.report.charts import line
from layerprobe.results import numbers
from layerprobe.results.parts import definitions, section, table_of
from layerprobe.results.style import FURTHER, MODEL, styled
from layerprobe.results.values import Card, Figure, Page
from layerprobe.stats.sentences import error_sources

CHOICES = {
    "line": "of two, the best of all from 0 and 1 to 1 and 0 in steps of 0.05",
    "pair": "every two, each with the best weights in steps of 0.05",
    "greedy": "forward selection with replacement, 20 additions (Caruana et al. 2004)",
}


def ensemble_page(result: Ensemble) -> Page:
    """Return the page of a weighted average of runs."""
    title, names = metric_title(result.primary), [each.label for each in result.members]
    figure = go.Figure(
        [
            line(
                [fmean(each.test) for each in result.members],
                name="alone",
                colour=MODEL,
                marker={"size": 8, "color": MODEL},
                x=range(len(names)),
                texts=[f"{each.label}<br>{numbers.number(fmean(each.test))}" for each in result.members],
            ),
            line(
                [result.score] * len(names),
                name="average",
                colour=FURTHER[0][0],
                dash="dash",
                x=range(len(names)),
                texts=[f"average<br>{numbers.number(result.score)}"] * len(names),
            ),
        ]
    )
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names)
    figure.update_yaxes(title=f"Test {title} × 100")
    finding = f"{result.single.label} alone scores {numbers.number(result.single_score)}, the average "
    shown = Figure(
        "ensemble",
        styled(figure),
        f"{numbers.capitalised(finding)}{numbers.number(result.score)}.",
        "Means over seeds on the test split. The dashed line is the average.",
    )
    return Page(
        title=f"An ensemble on {result.task}",
        overline=f"layerprobe · ensemble · {result.task}",
        heading=" + ".join(each.label for each in result.used),
        lead=(result.sentence,),
        cards={"": _cards(result, title)},
        sections=(
            section("ensemble", "Alone and averaged", shown),
            section("members", result.table.title, table_of(result.table), kind="dense"),
        ),
        provenance=(
            definitions(
                {
                    "Task": f"{result.task}, {result.kind}",
                    "Weights": f"by {title} on the validation split: {CHOICES[result.choice]}",
                    "Seeds": listed([str(seed) for seed in result.seeds]) if result.seeds else "of each member",
                    "Interval": None if result.gain is None else error_sources(result.gain),
                }
            ),
        ),
        terms=("Layer", "TMFT", "Scan", "Ensemble"),
        result=result,
        data_label="Ensemble",
        stem="layerprobe-ensemble",
    )


def _cards(result: Ensemble, title: str) -> tuple[Card, ...]:
    gain, bounds = result.score - result.single_score, result.gain
    return (
        Card("Gain", numbers.signed(gain), "no interval" if bounds is None else numbers.interval(bounds.interval)),
        Card(
            f"Test {title}", numbers.number(result.score), f"{numbers.number(result.single_score)} the best single one"
        ),
        Card("Blocks", str(result.cost.blocks), f"{result.single_cost.blocks} the best single one"),
        Card(
            "Parameters", numbers.millions(result.cost.parameters), f"{numbers.millions(result.single_cost.parameters)}"
        ),
        *_times(result.cost, result.single_cost),
    )


def _times(cost: EnsembleCost, single: EnsembleCost) -> Iterator[Card]:
    if cost.seconds is not None and single.seconds is not None and cost.flops is not None and single.flops is not None:
        unit = f"ms, one text of {cost.length} tokens"
        yield Card(
            "Time",
            numbers.significant(1e3 * cost.seconds),
            f"{unit}; {numbers.significant(1e3 * single.seconds)} alone",
        )
        yield Card(
            "GFLOPs per text", numbers.significant(cost.flops / 1e9), f"{numbers.significant(single.flops / 1e9)} alone"
        )
