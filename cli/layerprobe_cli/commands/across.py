"""layerprobe across."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import Extraction, FailBelow, Level, Model, Report
from layerprobe_cli.output import Output, print_table
from layerprobe_cli.tables import check_threshold, millions, number

if TYPE_CHECKING:
    from layerprobe.scoring.values import AcrossTasks


def across(
    model: Model,
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK...",
            show_default=False,
            help="Files, folders or hub ids, as --task of other commands has them.",
        ),
    ],
    extraction: Extraction,
    report: Report,
    output: Output,
    split: Annotated[Literal["validation", "test"], typer.Option(help="What is scored.")] = "test",
    level: Level = LEVEL,
    mteb: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write results in mteb's layout, every layer as an experiment of the model.",
            show_default=False,
        ),
    ] = None,
    fail_below: FailBelow = None,
) -> None:
    """Find the one layer that does best on several tasks.

    Without fine-tuning, as [bold]layerprobe score[/bold]. Tasks count alike; intervals are over tasks.

    Example:  [bold]layerprobe across google-bert/bert-base-cased stsb sick.tsv --mteb .[/bold]
    """
    from layerprobe.tasks.loading import load_task

    loaded = [load_task(source) for source in tasks]

    # only now: an error in the data needs no torch
    from layerprobe.scoring.across import score_across

    with output.progress() as progress:
        result = score_across(
            extraction.resolve(model), loaded, split=split, level=level, options=extraction.options(), progress=progress
        )
    notes, warnings = ([line for task in loaded for line in getattr(task, name)] for name in ("notes", "warnings"))
    output.notes(notes, warnings)
    output.result(result, _print_across)
    report.write(output, result)
    if mteb is not None:
        from layerprobe.scoring.mteb import write_mteb

        n_files = len(write_mteb(result, mteb))
        if not output.json:
            typer.echo(f"Results: {n_files} files below {mteb / 'results'}")
    check_threshold(
        fail_below, result.layers[-1].mean, f"the last layer scores {result.layers[-1].mean:.2f} in the mean"
    )


def _print_across(result: AcrossTasks) -> None:
    from layerprobe.names import distinct_names

    names = distinct_names([each.task for each in result.tasks])
    rows = []
    for each in result.layers:
        scores = [number(task.scores.own(each.layer), ".2f") for task in result.tasks]
        bounds = "" if each.interval is None else f"{each.interval[0]:.2f} to {each.interval[1]:.2f}"
        flag = "may be as good" if len(result.tasks) > 1 and each.layer in result.candidates else ""
        flag = "best" if each.layer == result.best_layer else flag
        first = str(each.layer), millions(result.model.parameters[each.layer])
        own = [f"{each.mean:.2f}", f"{each.behind:.2f}", bounds, flag] if each.layer >= result.first_layer else [""] * 4
        rows.append([*first, *scores, *own])
    print_table(("layer", "parameters", *names, "mean", "behind", f"{result.level:.0%} interval", "flag"), rows)
    typer.echo(result.sentence)
