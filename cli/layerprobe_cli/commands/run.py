"""layerprobe run."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe.errors import LayerProbeError
from layerprobe_cli.options import (
    AllSeeds,
    Extraction,
    Layers,
    Level,
    Model,
    Reference,
    RuleName,
    Similarity,
    TaskSource,
    Tuning,
    given_options,
    parse_layers,
)
from layerprobe_cli.output import Output, print_json
from layerprobe_cli.tables import print_study

if TYPE_CHECKING:
    from layerprobe.study.values import Study


def run(
    context: typer.Context,
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    extraction: Extraction,
    tuning: Tuning,
    output: Output,
    layers: Layers = "",
    reference_layers: Annotated[
        str,
        typer.Option(
            help="Layers of the reference to fine-tune for the contrast.",
            rich_help_panel="Fine-tuning",
            show_default=False,
        ),
    ] = "",
    rule: RuleName = None,
    level: Level = LEVEL,
    all_seeds: AllSeeds = False,
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
) -> None:
    """Extract, compare, predict, confirm and report, in one go.

    What was done before, by this or by another command, is not done again. Unless --no-fine-tuning is given, the
    recommended and the last layer are fine-tuned with the protocol of arXiv 2402.13130; where no drop is predicted, the
    best zero-shot layer and the last. --layers adds others.

    Example:  [bold]layerprobe run google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    if not fine_tuning and given_options(context, Tuning, others=("layers", "reference_layers", "all_seeds")):
        raise typer.BadParameter("expected no options of fine-tuning with --no-fine-tuning")
    seeds, settings = tuning.seed_list(), similarity.settings()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.study.run import run as run_study

    checkpoint = extraction.resolve(model)
    references = reference.resolve(extraction)
    base_checkpoint = references[0] if references else None
    if base_checkpoint is None and reference_layers:
        raise typer.BadParameter("expected --reference with --reference-layers, got none")
    make_output_folder(out)
    with output.progress() as progress:
        study = run_study(
            checkpoint,
            reference=references,
            task=task,
            fine_tuning=fine_tuning,
            layers=parse_layers(layers, checkpoint),
            reference_layers=parse_layers(reference_layers, base_checkpoint) if base_checkpoint else (),
            seeds=seeds,
            protocol=tuning.protocol(extraction),
            level=level,
            rule=rule,
            all_seeds=all_seeds,
            options=extraction.options(),
            command=shlex.join(["layerprobe", *sys.argv[1:]]),
            progress=progress,
            **settings,
        )
    path = save_study(study, out)
    output.notes(study.provenance.notes, study.provenance.warnings)
    if output.json:
        print_json(study)
    else:
        print_study(study, path)


def make_output_folder(folder: Path) -> None:
    """Make the folder of the report before the work begins, or say why it cannot be."""
    with _errors_of_output(folder):
        folder.mkdir(parents=True, exist_ok=True)


def save_study(study: Study, folder: Path) -> Path:
    """Write study.json and report.html into `folder`; return the report's path."""
    from layerprobe.files import replace_file
    from layerprobe.report.page import write_report
    from layerprobe.serialisation import to_bytes

    with _errors_of_output(folder):
        replace_file(folder / "study.json", to_bytes(study))
    return write_report(study, folder / "report.html")


@contextlib.contextmanager
def _errors_of_output(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LayerProbeError(
            f"cannot write to the folder {folder}: {error.strerror or error}; choose another --out"
        ) from error
