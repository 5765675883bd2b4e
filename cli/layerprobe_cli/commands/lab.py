"""layerprobe lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import CacheDir, Device, IntervalLevel, PlotlyFrom, Precision, Ray
from layerprobe_cli.output import Output, print_table

if TYPE_CHECKING:
    from layerprobe.lab.studies.values import LabPlan, LabResult


def _run(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="What to do, see below.", show_default=False)],
    output: Output,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the study.", show_default="the file's name in this folder")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the models and what is stored of them.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that share the work.", show_default="1; with --ray one a GPU, else one a node"
        ),
    ] = None,
    ray: Ray = None,
    level: IntervalLevel = LEVEL,
    device: Device = "auto",
    dtype: Precision = "float32",
    cache_dir: CacheDir = None,
    plotly: PlotlyFrom = "embedded",
) -> None:
    r"""Pretrain encoders that differ in their objective alone, and say what it does to each layer.

    The file names objectives, seeds and \[sizes]; \[pretraining] has the options of `layerprobe pretrain`, \[task] the
    source to fine-tune on, and each \[budget.NAME] the options of `layerprobe finetune`, all with underscores. Each
    model is compared by CKA with the masked language models of the same and of another seed, and fine-tuned at every
    layer. The folder gets the models, zoo.json, which `layerprobe bench-predictors` reads, lab.json and lab.html.
    What is done is not done again.

    Example:  [bold]layerprobe lab run objectives.toml --workers 2[/bold]
    """
    # only now: --help needs no torch
    from layerprobe.encoders.options import Options
    from layerprobe.lab.studies.run import plan_lab, run_lab
    from layerprobe.lab.studies.toml import load_lab

    study = load_lab(file)
    folder = out or Path(study.name)
    options = Options(device=device, dtype=dtype, cache_dir=cache_dir)
    if dry_run:
        output.result(plan_lab(study, folder, options=options), _print_plan)
        return
    with output.progress() as progress:
        done = run_lab(study, folder, workers=workers, ray=ray, level=level, options=options, progress=progress)

    from layerprobe.lab.studies.page import lab_page
    from layerprobe.results.page import write_page

    report = write_page(lab_page(done), folder / "lab.html", plotly=plotly)
    output.result(done, _print_result)
    if not output.json:
        typer.echo(f"Folder: {folder}\nReport: {report}")


COMMANDS: dict[str, Callable[..., None]] = {"run": _run}


def _print_plan(plan: LabPlan) -> None:
    study = plan.study
    typer.echo(f"{study.name}: {len(plan.models)} models on {', '.join(study.corpus)}\n")
    rows = [
        (
            planned.model.name,
            f"{planned.model.protocol.size.n_blocks} x {planned.model.protocol.size.hidden_size}",
            "stored" if planned.pretrained else f"{study.pretraining.steps} steps",
            str(planned.runs),
            str(planned.stored),
        )
        for planned in plan.models
    ]
    print_table(("model", "size", "pretraining", "trainings", "stored"), rows)


def _print_result(done: LabResult) -> None:
    from layerprobe.lab.dropbench.truth import truth

    for budget in done.study.budgets:
        typer.echo(f"Fine-tuning budget: {budget}")
        rows = []
        for entry in done.zoo.entries:
            tuned = entry.budgets[budget]
            result = truth(tuned)
            scores = [sum(row) / len(row) for row in tuned.test]
            cells = (f"{scores[result.best_layer]:.2f}", f"{scores[-1]:.2f}", f"{result.effect:+.2f}")
            rows.append((entry.name, str(result.best_layer), *cells, "yes" if result.drop else "no"))
        print_table(("model", "best layer", "its score", "last layer", "difference", "drop"), rows)
        typer.echo()
    for sentence in done.sentences:
        typer.echo(sentence)
    typer.echo()
