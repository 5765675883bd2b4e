"""layerprobe lab ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import Device, IntervalLevel, Report, TaskSource, given_layers, listed_layers
from layerprobe_cli.output import Output


def ensemble(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Directories of runs that `layerprobe finetune` made, or the folder they lie in.", show_default=False
        ),
    ],
    source: TaskSource,
    report: Report,
    output: Output,
    layers: Annotated[
        str,
        typer.Option(
            callback=given_layers,
            help="Average these alone, such as 3,5.",
            show_default="the best two of a scan; all that were fine-tuned",
        ),
    ] = "",
    level: IntervalLevel = LEVEL,
    profile: Annotated[
        bool, typer.Option("--profile", help="Measure FLOPs and time, too; the models must be there.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Average fine-tuned runs, and say what that gains.

    What is averaged are the outputs. The weights are chosen on the validation split; the gain, on test, is over the
    best single run by validation. The task is the one that the runs noted; where it was read with options, give it with
    the same ones. Layers of one scan share their blocks, so that two of them cost no more than the deeper one.

    Example:  [bold]layerprobe lab ensemble ~/.cache/layerprobe/runs/4f0c.../falling-seed-* --layers 5,6[/bold]
    """
    chosen = listed_layers(layers) if layers else None
    task = source.load() if source.task else None

    # only now: an error in the data needs no torch
    from layerprobe.encoders.model import Options
    from layerprobe.lab.ensembles.run import ensemble as average

    with output.progress(level):
        result = average(runs, task, layers=chosen, profile=profile, options=Options(device=device))
    output.result(result, result.table, result.sentence)
    report.write(output, result)
