"""layerprobe lab study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import CacheDir, Device, IntervalLevel, PlotlyFrom, Precision, Ray
from layerprobe_cli.output import Output


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="What to do, see below.")],
    output: Output,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the study.", show_default="the file's name in this folder")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the models and what is stored of them.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that share the work.", show_default="1; with --ray one per GPU, else one per node"
        ),
    ] = None,
    ray: Ray = None,
    level: IntervalLevel = LEVEL,
    device: Device = "auto",
    dtype: Precision = "float32",
    cache_dir: CacheDir = None,
    plotly: PlotlyFrom = "embedded",
) -> None:
    r"""Find out what a pretraining objective does to each layer.

    It pretrains encoders that differ in their objective alone. The file names objectives, seeds and \[sizes];
    \[pretraining] has the options of `layerprobe lab pretrain`, \[task] the source to fine-tune on, and each
    \[budget.NAME] the options of `layerprobe finetune`, all with underscores. Each model is compared by CKA with the
    masked language models of the same and of another seed, and fine-tuned at every layer. The folder gets the models,
    zoo.json, which `layerprobe lab bench` reads, lab.json and lab.html. What is done is not done again.

    Example:  [bold]layerprobe lab study objectives.toml --workers 2[/bold]
    """
    # only now: --help needs no torch
    from layerprobe.encoders.model import Options
    from layerprobe.lab.studies.run import plan_lab, run_lab
    from layerprobe.lab.studies.toml import load_lab

    wanted = load_lab(file)
    folder = out or Path(wanted.name)
    options = Options(device=device, dtype=dtype, cache_dir=cache_dir)
    if dry_run:
        plan = plan_lab(wanted, folder, options=options)
        output.result(plan, plan.table.titled)
        return
    with output.progress(level):
        done = run_lab(wanted, folder, workers=workers, ray=ray, options=options)

    from layerprobe.lab.studies.page import lab_page
    from layerprobe.results.page import write_page

    report = write_page(lab_page(done), folder / "lab.html", plotly=plotly)
    output.result(done, done.table, "", *done.sentences, f"\nFolder: {folder}\nReport: {report}")
