"""layerprobe across."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import Extraction, FailBelow, Level, Model, Report
from layerprobe_cli.output import Output
from layerprobe_cli.tables import check_threshold


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

    with output.progress(level):
        result = score_across(extraction.resolve(model), loaded, split=split)
    notes, warnings = ([line for task in loaded for line in getattr(task, name)] for name in ("notes", "warnings"))
    output.notes(notes, warnings)
    output.result(result, result.table, result.sentence)
    report.write(output, result)
    if mteb is not None:
        from layerprobe.scoring.mteb import write_mteb

        n_files = len(write_mteb(result, mteb))
        if not output.json:
            typer.echo(f"Results: {n_files} files below {mteb / 'results'}")
    check_threshold(
        fail_below, result.layers[-1].mean, f"the last layer scores {result.layers[-1].mean:.2f} in the mean"
    )
