"""layerprobe run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import layerprobe as lp
from layerprobe.checks import LEVEL
from layerprobe_cli import options as o
from layerprobe_cli.following import finetune_command
from layerprobe_cli.shell import Call, Done, PlotlyFrom, command

if TYPE_CHECKING:
    from layerprobe.study.values import Study


def run(
    call: Call,
    model: o.Extraction,
    reference: o.Reference,
    similarity: o.Similarity,
    source: o.Source,
    tuning: o.Tuning,
    search: o.Search,
    layers: o.Layers = "",
    reference_layers: Annotated[str, "Fine-tuning", {"callback": o.given_layers}] = "",
    rule: o.RuleName = None,
    n_texts: o.NumberOfTexts = None,
    split: o.TextsOf = "all",
    level: o.Level = LEVEL,
    against_last: o.AgainstLast = 3,
    fine_tuning: Annotated[
        bool, "Fine-tuning", {"show_default": False, "flags": ("--fine-tuning/--no-fine-tuning",)}
    ] = True,
    save_models: o.SaveModels = False,
    final: Annotated[bool, "Fine-tuning", {"flags": ("--final/--no-final",)}] = True,
    out: o.StudyFolder = Path("layerprobe-report"),
    plotly: PlotlyFrom = "embedded",
    dry_run: o.DryRun = False,
) -> Done:
    """Predict, find the layer to keep, and report, in one go.

    What was done before, by this or by another command, is not done again. Unless --no-fine-tuning is given, the layer
    is found as [bold]layerprobe find[/bold] does, with the protocol of arXiv 2402.13130, and compared with the last one
    on the test split. --layers fine-tunes others beside.

    Example:  [bold]layerprobe run google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]

    Args:
        reference_layers: Layers of the reference to fine-tune for the contrast.
        fine_tuning: Find the layer by fine-tuning; else the prediction is all.
        final: Fine-tune the layer to keep once more, on training and validation examples together, and keep its weights
            for `layerprobe export`.
    """
    if not fine_tuning and call.given(
        o.TUNING, o.SEARCH, "seeds layers reference_layers against_last save_models final"
    ):
        raise typer.BadParameter("expected no options of fine-tuning with --no-fine-tuning")
    if not fine_tuning and dry_run:
        raise typer.BadParameter("expected no --dry-run with --no-fine-tuning: nothing is fine-tuned")
    measure, task, seeds = similarity.settings(), o.load(source), search["seeds"]

    from layerprobe.encoders.loading import resolve_all
    from layerprobe.finetuning.tuning import check_layers
    from layerprobe.study.commands import next_commands
    from layerprobe.study.find import plan_find

    if reference_layers and not reference.reference:
        raise typer.BadParameter("expected --reference with --reference-layers, got none")
    (checkpoint,) = o.resolved(model, items=task.readable)
    _, *references = resolve_all([checkpoint, *reference.specs(model)], items=task.readable)
    tuned_layers = check_layers(checkpoint, layers)
    reference_tuned = check_layers(references[0], reference_layers) if references else []
    settings: dict[str, Any] = {
        **search,
        "against_last": against_last if call.given("against_last") else min(against_last, seeds),
        "protocol": o.protocol_of(model, tuning),
        "final": final,
    }
    call.data(checkpoint, task, split=split)
    if not dry_run:
        out.mkdir(parents=True, exist_ok=True)
    if fine_tuning:
        beside = seeds * sum(layer + 1 for layer in tuned_layers)
        contrast = (references[0], reference_tuned) if reference_tuned else None
        plan = plan_find([checkpoint], task, goes_on=not dry_run, contrast=contrast, further=beside, **settings)
        call.estimate(plan, dry_run=dry_run)
    study = lp.run(
        checkpoint,
        task,
        reference=references,
        fine_tuning=fine_tuning,
        layers=tuned_layers,
        reference_layers=reference_tuned,
        **settings,
        rule=rule,
        n_texts=n_texts,
        split=split,
        save_models=save_models,
        command=command(*sys.argv[1:]),
        finetune_command=finetune_command(call, model.name),
        **measure,
    )
    return study_done(study, out, plotly, next_commands(study))


def study_done(study: Study, folder: Path, plotly: PlotlyFrom, commands: tuple[str, ...]) -> Done:
    """Write study.json and report.html into a folder; return what is printed of the study."""
    from layerprobe.files.atomic import write_through
    from layerprobe.files.serialisation import sealed
    from layerprobe.results.shown import write_report

    write_through(folder / "study.json", sealed(study))
    page = write_report(study, folder / "report.html", plotly=plotly)
    return Done(
        result=study, parts=(*study.parts, f"Report: {page}"), warnings=study.provenance.warnings, next=commands
    )
