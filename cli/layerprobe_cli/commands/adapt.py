"""layerprobe lab adapt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.lab.adaptation.values import AdaptationProtocol
from layerprobe_cli.options import DryRun, Loading, Model, TextColumn, new_folder, option
from layerprobe_cli.output import Output

TRAINING = {
    "epochs": option("Training", min=1, help="Passes over the texts."),
    "max_steps": option("Training", min=1, help="Steps at most.", show_default="all epochs"),
    "learning_rate": option("Training", min=1e-12, help="Peak of the linear schedule."),
    "batch_size": option("Training", min=1, help="Texts a forward pass."),
    "accumulation": option("Training", min=1, help="Forward passes a step."),
    "weight_decay": option("Training", min=0, help="Of matrices."),
    "warmup": option("Training", min=0, max=0.99, help="Share of the steps."),
    "max_grad_norm": option("Training", min=1e-12, help="Gradients are clipped to this norm."),
    "max_length": option("Training", min=2, help="Tokens a text at most."),
    "masking_rate": option("Training", min=1e-3, max=1, help="Share of the tokens to mask."),
    "random_share": option("Training", min=0, max=1, help="Share of those shown as a random word."),
    "kept_share": option(
        "Training", min=0, max=1, help="Share of those shown as they are; the rest is shown as the mask."
    ),
    "validation_share": option("Training", min=1e-6, max=0.99, help="Share of the texts to hold out."),
}


def adapt(
    model: Model,
    loading: Loading,
    protocol: Annotated[AdaptationProtocol, TRAINING],
    texts: Annotated[
        list[Path],
        typer.Option(help="Texts: one per line in a .txt or .txt.gz file, or a table. Given again: further files."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", callback=new_folder, help="The folder to write.")],
    output: Output,
    column: TextColumn = None,
    seed: Annotated[
        int, option("Training", min=0, help="Of the held-out texts, order, masking, dropout and fresh weights.")
    ] = 0,
    evaluate_every: Annotated[
        int | None,
        option("Training", min=1, help="Steps from one evaluation to the next.", show_default="once an epoch"),
    ] = None,
    checkpoint_every: Annotated[
        int,
        option(
            "Training", min=1, help="Steps from one saved step to the next; an interrupted run goes on from the last."
        ),
    ] = 50,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an adapted model at OUT.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Continue masked-language-model pretraining on texts.

    This is domain-adaptive pretraining. The folder is an ordinary checkpoint of the encoder: give it to any other
    command as the model.

    Example:  [bold]layerprobe lab adapt google/electra-base-discriminator --texts sentences.txt -o adapted[/bold]
    """
    # only now: --help needs no torch
    from layerprobe.lab.adaptation.run import adapt as adapt_model
    from layerprobe.lab.adaptation.run import plan_adaptation
    from layerprobe.tasks.loading import load_corpus

    corpus = load_corpus(texts, columns=column)
    if dry_run:
        with output.progress():
            plan = plan_adaptation(loading.resolve(model), corpus, protocol=protocol, seed=seed)
        output.plan(plan, dry_run=True)
    with output.progress():
        adaptation = adapt_model(
            loading.resolve(model),
            corpus,
            out,
            protocol=protocol,
            seed=seed,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            overwrite=overwrite,
        )
    output.notes((), adaptation.warnings)
    output.result(adaptation, adaptation.table)
    if not output.json:
        typer.echo(f"Folder: {out}")
