"""layerprobe run."""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    StudyFolder,
    TaskSource,
    Tuning,
    given_options,
    option,
    parse_layers,
)
from layerprobe_cli.output import Output
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
        option("Fine-tuning", help="Layers of the reference to fine-tune for the contrast.", show_default=False),
    ] = "",
    rule: RuleName = None,
    level: Level = LEVEL,
    all_seeds: AllSeeds = False,
    fine_tuning: Annotated[
        bool,
        option("Fine-tuning", "--fine-tuning/--no-fine-tuning", help="Confirm the prediction, or stop at it."),
    ] = True,
    out: StudyFolder = Path("layerprobe-report"),
) -> None:
    """Extract, compare, predict, confirm and report, in one go.

    What was done before, by this or by another command, is not done again. Unless --no-fine-tuning is given, the
    recommended and the last layer are fine-tuned with the protocol of arXiv 2402.13130; where no drop is predicted, the
    best zero-shot layer and the last. --layers adds others.

    Example:  [bold]layerprobe run google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    if not fine_tuning and given_options(context, Tuning, others=("layers", "reference_layers", "all_seeds")):
        raise typer.BadParameter("expected no options of fine-tuning with --no-fine-tuning")
    study = do_study(
        model,
        reference,
        similarity,
        source,
        extraction,
        tuning,
        output,
        layers=layers,
        reference_layers=reference_layers,
        out=out,
        rule=rule,
        level=level,
        all_seeds=all_seeds,
        fine_tuning=fine_tuning,
    )
    output.result(study, functools.partial(print_study, report=save_study(study, out)))


def do_study(
    model: str,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    extraction: Extraction,
    tuning: Tuning,
    output: Output,
    *,
    layers: str,
    reference_layers: str = "",
    out: Path | None = None,
    **settings: Any,
) -> Study:
    """Do the study that the options describe, and print its notes and warnings."""
    seeds, measure = tuning.seed_list(), similarity.settings()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.study.run import run as run_study

    checkpoint, references = extraction.resolve(model), reference.resolve(extraction)
    if reference_layers and not references:
        raise typer.BadParameter("expected --reference with --reference-layers, got none")
    if out is not None:
        make_output_folder(out)
    with output.progress() as progress:
        study = run_study(
            checkpoint,
            reference=references,
            task=task,
            layers=parse_layers(layers, checkpoint),
            reference_layers=parse_layers(reference_layers, references[0]) if references else (),
            seeds=seeds,
            protocol=tuning.protocol(extraction),
            options=extraction.options(),
            command=shlex.join(["layerprobe", *sys.argv[1:]]),
            progress=progress,
            **measure,
            **settings,
        )
    output.notes(study.provenance.notes, study.provenance.warnings)
    return study


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
