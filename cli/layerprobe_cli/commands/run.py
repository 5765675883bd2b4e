"""layerprobe run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe_cli.options import (
    Json,
    Layers,
    Level,
    Loading,
    Model,
    Quiet,
    Reference,
    Similarity,
    TaskSource,
    Tuning,
    parse_layers,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_study, show_notes

if TYPE_CHECKING:
    from layerprobe import Study


def run(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    loading: Loading,
    tuning: Tuning,
    layers: Layers = "",
    reference_layers: Annotated[
        str,
        typer.Option(
            help="Layers of the reference to fine-tune for the contrast.",
            rich_help_panel="Fine-tuning",
            show_default=False,
        ),
    ] = "",
    level: Level = 0.95,
    fine_tuning: Annotated[
        bool,
        typer.Option(
            "--fine-tuning/--no-fine-tuning",
            help="Confirm the prediction, or stop at it.",
            rich_help_panel="Fine-tuning",
        ),
    ] = True,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html and study.json.")] = Path(
        "layerprobe-report"
    ),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Extract, compare, predict, confirm and report, in one go.

    What was done before, by this or by another command, is not done again. Unless --no-fine-tuning is given, the
    flagged, the recommended and the last layer are fine-tuned with the protocol of arXiv 2402.13130.

    Example:  [bold]layerprobe run google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    from layerprobe.encoders import find_checkpoint
    from layerprobe.study import run as run_study

    log_to_stderr(quiet=quiet)
    seeds = tuning.seed_list()
    task = source.load()

    def chosen(text: str, name: str) -> tuple[int, ...]:
        return parse_layers(text, find_checkpoint(name).config.num_hidden_layers) if text else ()

    with progress_bar(quiet=quiet) as progress:
        study = run_study(
            model,
            reference=reference.reference,
            task=task,
            fine_tuning=fine_tuning,
            layers=chosen(layers, model),
            reference_layers=chosen(reference_layers, reference.reference),
            seeds=seeds,
            protocol=tuning.protocol(loading.pooling),
            level=level,
            random_init=loading.random_init,
            reference_random_init=reference.reference_random_init,
            options=loading.options(),
            command=shlex.join(["layerprobe", *sys.argv[1:]]),
            progress=progress,
            **similarity.settings(),
        )
    path = save_study(study, out)
    show_notes(study.provenance.notes, study.provenance.warnings, quiet=quiet)
    if json:
        print_json(study)
    else:
        print_study(study, path)


def save_study(study: Study, folder: Path) -> Path:
    """Write study.json and report.html into `folder`; return the report's path."""
    from layerprobe.files import make_directory, write_whole
    from layerprobe.report import write_report
    from layerprobe.results import to_json

    make_directory(folder)
    write_whole(folder / "study.json", to_json(study).encode())
    return write_report(study, folder / "report.html")
