"""layerprobe run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layerprobe.checks import LEVEL
from layerprobe.errors import LayerProbeError
from layerprobe_cli.options import (
    AgainstLast,
    DryRun,
    Extraction,
    Layers,
    Level,
    Model,
    NumberOfTexts,
    PlotlyFrom,
    Reference,
    RuleName,
    Search,
    SearchTuning,
    Similarity,
    StudyFolder,
    TaskSource,
    TextsOf,
    command,
    finetune_command,
    given_layers,
    given_options,
    option,
    parse_layers,
)
from layerprobe_cli.output import Output
from layerprobe_cli.plans import say_cost
from layerprobe_cli.tables import study_parts

if TYPE_CHECKING:
    from layerprobe.study.values import Study


def run(
    context: typer.Context,
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    extraction: Extraction,
    tuning: SearchTuning,
    search: Search,
    output: Output,
    layers: Layers = "",
    reference_layers: Annotated[
        str, option("Fine-tuning", callback=given_layers, help="Layers of the reference to fine-tune for the contrast.")
    ] = "",
    rule: RuleName = None,
    n_texts: NumberOfTexts = None,
    split: TextsOf = "all",
    level: Level = LEVEL,
    against_last: AgainstLast = 3,
    fine_tuning: Annotated[
        bool,
        option(
            "Fine-tuning",
            "--fine-tuning/--no-fine-tuning",
            help="Find the layer, or stop at the prediction.",
            show_default=False,
        ),
    ] = True,
    save_models: Annotated[
        bool,
        option(
            "Fine-tuning", "--save-models", help="Keep the weights of every run of the search, for `layerprobe export`."
        ),
    ] = False,
    out: StudyFolder = Path("layerprobe-report"),
    plotly: PlotlyFrom = "embedded",
    dry_run: DryRun = False,
) -> None:
    """Predict, find the layer to keep, and report, in one go.

    What was done before, by this or by another command, is not done again. Unless --no-fine-tuning is given, the layer
    is found as [bold]layerprobe find[/bold] does, with the protocol of arXiv 2402.13130, and compared with the last one
    on the test split. --layers fine-tunes others beside.

    Example:  [bold]layerprobe run google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    tuned = "layers", "reference_layers", "against_last", "save_models"
    if not fine_tuning and given_options(context, SearchTuning, Search, others=tuned):
        raise typer.BadParameter("expected no options of fine-tuning with --no-fine-tuning")
    if not fine_tuning and dry_run:
        raise typer.BadParameter("expected no --dry-run with --no-fine-tuning: nothing is fine-tuned")
    seeds, measure, searching = tuning.n_seeds(), similarity.settings(), search.settings()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.study.run import run as run_study

    checkpoint, references = extraction.resolve(model, task.readable), reference.resolve(extraction, task.readable)
    if reference_layers and not references:
        raise typer.BadParameter("expected --reference with --reference-layers, got none")
    tuned_layers = parse_layers(layers, checkpoint)
    reference_tuned = parse_layers(reference_layers, references[0]) if references else ()
    tuned_by: dict[str, Any] = {
        **searching,
        "seeds": seeds,
        "against_last": against_last if given_options(context, others=("against_last",)) else min(against_last, seeds),
        "protocol": tuning.protocol(extraction),
    }
    told = output.data(checkpoint, task, split=split)
    if not dry_run:
        make_output_folder(out)
    if fine_tuning:
        beside = seeds * sum(layer + 1 for layer in tuned_layers)
        contrast = (references[0], reference_tuned) if reference_tuned else None
        say_cost(output, [checkpoint], task, tuned_by, dry_run=dry_run, further=beside, contrast=contrast)
    with output.progress(level):
        study = run_study(
            checkpoint,
            task,
            reference=references,
            fine_tuning=fine_tuning,
            layers=tuned_layers,
            reference_layers=reference_tuned,
            **tuned_by,
            rule=rule,
            n_texts=n_texts,
            split=split,
            save_models=save_models,
            command=command(*sys.argv[1:]),
            finetune_command=finetune_command(context, model),
            **measure,
        )
    output.notes((), [said for said in study.provenance.warnings if said not in told])
    output.result(study, *study_parts(study, save_study(study, out, plotly)))


def make_output_folder(folder: Path) -> None:
    """Make the folder of the report before the work begins, or say why it cannot be."""
    with errors_of_output(folder):
        folder.mkdir(parents=True, exist_ok=True)


def save_study(study: Study, folder: Path, plotly: PlotlyFrom = "embedded") -> Path:
    """Write study.json and report.html into `folder`; return the report's path."""
    from layerprobe.files.atomic import replace_file
    from layerprobe.files.serialisation import sealed
    from layerprobe.results.shown import write_report

    with errors_of_output(folder):
        replace_file(folder / "study.json", sealed(study))
    return write_report(study, folder / "report.html", plotly=plotly)


@contextlib.contextmanager
def errors_of_output(folder: Path, *, option: str = "--out") -> Iterator[None]:
    """Turn what the disk says about a folder into one line."""
    try:
        yield
    except OSError as error:
        raise LayerProbeError(
            f"cannot write to the folder {folder}: {error.strerror or error}; choose another {option}"
        ) from error
