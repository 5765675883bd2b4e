"""A sweep as one HTML page: a curve of scores over layers for each task. Knows results of sweeps, finished or not."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.names import distinct_names
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.page import compose, write_page
from layerprobe.pages.parts import downloads, figure, row, section, table
from layerprobe.progress import duration
from layerprobe.serialisation import to_json
from layerprobe.sweeps.figures import sweep_curves
from layerprobe.sweeps.values import SweepCurve, SweepResult, sweep_names

CSV_COLUMNS = ("model", "task", "kind", "metric", "layer", "parameters", "seed", "test", "validation", "failed")


def write_sweep_report(result: SweepResult, path: str | Path) -> Path:
    """Write the page of a sweep; a reader sees the old file or the whole new one.

    Args:
        result: Finished or not.
        path: The HTML file; its folder is made where it is missing.

    Returns:
        The path written.

    Raises:
        LayerProbeError: If the file cannot be written.
    """
    return write_page(render_sweep(result), path)


def render_sweep(result: SweepResult) -> str:
    """Return the page as HTML that loads nothing; see `write_sweep_report`."""
    tasks = _by_task(result)
    return compose(
        title=f"Sweep of {_counted(len({curve.model for curve in result.curves}), 'model')}",
        body=join(
            _header(result),
            *(_task(number, name, curves, result) for number, (name, curves) in enumerate(tasks)),
            downloads("sweep", table="Table"),
        ),
        data=to_json(result),
        table=sweep_csv(result),
        drawn={f"task-{number}": sweep_curves(curves, _labels(curves)) for number, (_, curves) in enumerate(tasks)},
    )


def sweep_csv(result: SweepResult) -> str:
    """Return every run as CSV: full precision, with the reason where it failed."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for curve in result.curves:
        start = (curve.model, curve.task, curve.kind, curve.primary)
        for found in curve.outcomes:
            values = zip(found.seeds, found.scores, found.validation[found.primary], strict=True)
            writer.writerows([(*start, found.layer, found.parameters, *each, "") for each in values])
        writer.writerows([(*start, each.layer, "", each.seed, "", "", each.message) for each in curve.failed])
    return buffer.getvalue()


def _by_task(result: SweepResult) -> list[tuple[str, list[SweepCurve]]]:
    """Return the name of each task with its curves."""
    names = {
        curve.task_number: task for (_, task), curve in zip(sweep_names(result.curves), result.curves, strict=True)
    }
    return [(name, [curve for curve in result.curves if curve.task_number == task]) for task, name in names.items()]


def _labels(curves: Sequence[SweepCurve]) -> list[str]:
    return distinct_names([curve.model for curve in curves])


def _header(result: SweepResult) -> Markup:
    left = ""
    if result.n_left:
        time = "" if result.seconds_left is None else f", about {duration(result.seconds_left)}"
        left = f", {result.n_left} to come{time}"
    failed = f", {result.n_failed} failed" if result.n_failed else ""
    return element(
        "header",
        element("p", "layerprobe · sweep", class_="overline"),
        element("h1", ", ".join(distinct_names(list(dict.fromkeys(curve.model for curve in result.curves))))),
        element("p", f"{result.n_done} of {_counted(result.n_runs, 'run')} done{failed}{left}.", class_="prediction"),
        element("aside", element("h2", "Failed"), element("ul", *_failures(result)), class_="warnings")
        if result.n_failed
        else None,
    )


def _failures(result: SweepResult) -> list[Markup]:
    return [
        element("li", f"{model} on {task}, layer {each.layer}, seed {each.seed}: {each.message}")
        for (model, task), curve in zip(sweep_names(result.curves), result.curves, strict=True)
        for each in curve.failed
    ]


def _task(number: int, name: str, curves: Sequence[SweepCurve], result: SweepResult) -> Markup:
    title = metric_title(curves[0].primary)
    reading = f"Dots are seeds, bars {numbers.percent(result.level)} intervals of the mean over them."
    labels = _labels(curves)
    rows = [
        row(label, (str(found.layer), *_cells(found), str(_n_failed(curve, found.layer))))
        for label, curve in zip(labels, curves, strict=True)
        for found in curve.outcomes
    ]
    head = ("Model", "Layer", "Parameters", f"Test {title}", "Standard deviation", "Interval", "Seeds", "Failed")
    return section(
        f"task-{number}",
        name,
        figure(f"task-{number}", " ".join(map(_finding, labels, curves)), reading),
        table(f"Scores on {name}", head, rows),
    )


def _cells(found: LayerOutcome) -> tuple[str, ...]:
    spread = "–" if found.std is None else numbers.number(found.std)
    ends = numbers.interval(found.interval)
    return numbers.millions(found.parameters), numbers.number(found.mean), spread, ends, str(len(found.seeds))


def _n_failed(curve: SweepCurve, layer: int) -> int:
    return sum(each.layer == layer for each in curve.failed)


def _finding(label: str, curve: SweepCurve) -> str:
    if not curve.outcomes:
        return f"{label} has no finished run."
    best = max(curve.outcomes, key=lambda found: found.mean)
    return f"{label} scores highest at layer {best.layer}, {numbers.number(best.mean)}."


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
