"""A sweep as a page: a curve of scores over layers for each task. Knows results of sweeps, finished or not."""

import itertools
from collections.abc import Sequence

import plotly.graph_objects as go

from layerprobe.finetuning.values import tuned_sentence
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, distinct_names, listed
from layerprobe.progress import duration
from layerprobe.report.charts import Look, compared_outcomes, floor_line, seeds_reading
from layerprobe.results.parts import section, table_of
from layerprobe.results.style import COLOURS, DASHES, SYMBOLS
from layerprobe.results.values import Figure, Page, Section
from layerprobe.sweeps.values import SweepCurve, SweepResult, sweep_names


def sweep_page(result: SweepResult) -> Page:
    """Return the page of a sweep, finished or not."""
    models = list(dict.fromkeys(curve.model for curve in result.curves))
    return Page(
        title=f"Sweep of {counted(len(models), 'model')}",
        overline="layerprobe · sweep",
        heading=_heading(result),
        lead=findings(result),
        remarks=(_progress(result),),
        warnings=tuple(f"Failed: {failure}" for failure in result.failures),
        sections=(
            *(_task(result, name, curves) for name, curves in _by_task(result)),
            section("layers", result.table.title, table_of(result.table)),
        ),
        terms=("Layer", "TMFT", "Interval of the mean"),
        result=result,
        stem="sweep",
    )


def _heading(result: SweepResult) -> str:
    """Return the best layer of each model on one task; on several, what was swept."""
    models = distinct_names(list(dict.fromkeys(curve.model for curve in result.curves)))
    done = [(model, curve) for (model, _), curve in zip(sweep_names(result.curves), result.curves, strict=True)]
    if len(models) < len(done) or any(curve.best_layer is None for _, curve in done):
        return f"Layers of {listed(models)}"
    best = [f"{curve.best_layer} of {model}" for model, curve in done]
    return f"Best layer{'' if len(best) == 1 else 's'} by validation: {listed(best)}"


def findings(result: SweepResult) -> tuple[str, ...]:
    """Return, of each model and task, the layer that is best by validation, its test score and what is near it."""
    return tuple(
        f"{model} on {task}: {_finding(curve, result.level)}"
        for (model, task), curve in zip(sweep_names(result.curves), result.curves, strict=True)
    )


def _by_task(result: SweepResult) -> list[tuple[str, list[SweepCurve]]]:
    """Return the name of each task with its curves."""
    names = {
        curve.task_number: task for (_, task), curve in zip(sweep_names(result.curves), result.curves, strict=True)
    }
    return [(name, [curve for curve in result.curves if curve.task_number == task]) for task, name in names.items()]


def _progress(result: SweepResult) -> str:
    time = "" if result.seconds_left is None else f", about {duration(result.seconds_left)}"
    left = f", {result.n_left} to come{time}" if result.n_left else ""
    failed = f", {result.n_failed} failed" if result.n_failed else ""
    return f"{result.n_done} of {counted(result.n_runs, 'run')} done{failed}{left}."


def _task(result: SweepResult, name: str, curves: Sequence[SweepCurve]) -> Section:
    place, labels = f"task-{curves[0].task_number}", distinct_names([curve.model for curve in curves])
    figure = Figure(
        place,
        sweep_curves(curves, labels),
        f"Test {metric_title(curves[0].primary)} after fine-tuning on {name}, by layer: {listed(labels)}.",
        seeds_reading([outcome for curve in curves for outcome in curve.outcomes], result.level),
    )
    return section(place, name, figure)


def sweep_curves(curves: Sequence[SweepCurve], labels: Sequence[str]) -> go.Figure:
    """Return test scores by layer on one task: a line of means for each model, and every seed as a dot."""
    looks = (Look(colour=c, symbol=s, dash=dash) for dash in DASHES for c, s in zip(COLOURS, SYMBOLS, strict=False))
    lines = [(label, curve.outcomes, look) for curve, label, look in zip(curves, labels, itertools.cycle(looks))]
    n_layers = 1 + max((layer for curve in curves for layer in curve.layers), default=0)
    figure = compared_outcomes(lines, metric=metric_title(curves[0].primary), n_layers=n_layers)
    return figure.add_traces(floor_line(curves[0].floor, n_layers - 1))


def _finding(curve: SweepCurve, level: float) -> str:
    """Return the layer that is best by validation, how sure that is on test, and which smaller one will do."""
    if not curve.outcomes:
        return "no finished run."
    sentence = tuned_sentence(curve.outcomes, curve.compared, curve.floor, level=level)
    if curve.best_layer is None or curve.compared is not None:
        return sentence
    if len(curve.outcomes) == 1:
        return f"{sentence} No other layer was run."
    if len({outcome.seeds for outcome in curve.outcomes}) > 1:
        return f"{sentence} Layers have different seeds, so they are not compared."
    return f"{sentence} With one seed, layers are not compared." if curve.outcomes[0].interval is None else sentence
