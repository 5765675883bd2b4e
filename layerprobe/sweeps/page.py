"""A sweep as a page: a curve of scores over layers for each task. Knows results of sweeps, finished or not."""

from collections.abc import Iterator
from dataclasses import replace

from layerprobe.context import duration
from layerprobe.finetuning.values import tuned_sentence
from layerprobe.names import counted, distinct_names, listed
from layerprobe.results.draw import drawn
from layerprobe.results.page import page_of
from layerprobe.results.parts import section
from layerprobe.results.values import Page, Section
from layerprobe.sweeps.values import SweepCurve, SweepResult, sweep_names


def sweep_page(result: SweepResult) -> Page:
    """Return the page of a sweep, finished or not."""
    tasks = list(_tasks(result))
    first = tasks[0].parts[0] if len(tasks) == 1 else None
    return page_of(
        result,
        table=replace(result.table, charts=()),
        heading=_heading(result),
        kind="sweep",
        about=listed(list(dict.fromkeys(task for _, task in sweep_names(result.curves)))),
        lead=findings(result),
        facts=(_progress(result),),
        first=first,
        fatal=tuple(f"Failed: {failure}" for failure in result.failures),
        sections=() if first else tuple(tasks),
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


def _tasks(result: SweepResult) -> Iterator[Section]:
    """Yield a section for each task: its chart, a curve a model."""
    names = sweep_names(result.curves)
    for number in dict.fromkeys(curve.task_number for curve in result.curves):
        places = [place for place, curve in enumerate(result.curves) if curve.task_number == number]
        table = replace(result, curves=tuple(result.curves[place] for place in places)).table
        chart = table.charts[0].named(f"task-{number}")
        yield section(
            f"task-{number}", names[places[0]][1], drawn(table, chart) if any(table.column("test").cells) else None
        )


def _progress(result: SweepResult) -> str:
    time = "" if result.seconds_left is None else f", about {duration(result.seconds_left)}"
    left = f", {result.n_left} to come{time}" if result.n_left else ""
    failed = f", {result.n_failed} failed" if result.n_failed else ""
    return f"{result.n_done} of {counted(result.n_runs, 'run')} done{failed}{left}."


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
