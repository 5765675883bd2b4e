"""layerprobe lab pretrain."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.lab.pretraining.values import SIZES, EncoderSize, PretrainingProtocol
from layerprobe_cli.completion import names_of
from layerprobe_cli.options import Device, TextColumn, new_folder, option
from layerprobe_cli.output import Output

if TYPE_CHECKING:
    from layerprobe.tasks.values import TextFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What the models look like."""

    size: Annotated[
        Literal["tiny", "mini", "small"],
        option("Model", help="8 blocks of 96 features, 8 of 128, or 12 of 256; all with 4 heads."),
    ] = "mini"
    blocks: Annotated[int | None, option("Model", min=1, help="Blocks.", show_default="that of --size")] = None
    hidden_size: Annotated[
        int | None, option("Model", min=1, help="Features of a layer.", show_default="that of --size")
    ] = None
    heads: Annotated[int | None, option("Model", min=1, help="Attention heads.", show_default="4")] = None
    intermediate_size: Annotated[
        int | None, option("Model", min=1, help="Features inside a block.", show_default="4 x the hidden size")
    ] = None

    def encoder_size(self) -> EncoderSize:
        """Return the size of the encoder."""
        preset = SIZES[self.size]
        hidden = self.hidden_size or preset.hidden_size
        return EncoderSize(
            n_blocks=self.blocks or preset.n_blocks,
            hidden_size=hidden,
            heads=self.heads or preset.heads,
            intermediate_size=self.intermediate_size or 4 * hidden,
        )


PROTOCOL = {
    "generator_size": option(
        "Model", min=1e-3, max=4, help="Width of the generator as a share of the encoder's, 0.125 to 1."
    ),
    "dropout": option("Model", min=0, max=0.99, help="Of all layers and attention weights."),
    "steps": option("Training", min=1, help="Optimiser steps."),
    "batch_size": option("Training", min=1, help="Sequences a forward pass."),
    "accumulation": option("Training", min=1, help="Forward passes a step."),
    "learning_rate": option("Training", min=1e-12, help="Peak of the linear schedule."),
    "warmup": option("Training", min=0, max=0.99, help="Share of the steps."),
    "weight_decay": option("Training", min=0, help="Of matrices."),
    "max_grad_norm": option("Training", min=1e-12, help="Gradients are clipped to this norm."),
    "discriminator_weight": option("Training", min=1e-6, help="Of the discriminator's loss, where there is one."),
    "masking_rate": option("Training", min=1e-3, max=1, help="Probability of a token to be masked."),
    "vocab_size": option("Data", min=10, help="Words at most of the tokenizer; the language has its own."),
    "max_length": option("Data", min=3, help="Tokens a sequence at most."),
    "packed": option("Data", "--packed", help="Join texts to sequences of that length."),
    "held_out": option("Data", min=1, help="Sequences to hold out; of texts a tenth of all where that is less."),
    "objective": typer.Option(
        metavar="NAME",
        autocompletion=names_of("layerprobe.lab.pretraining.objectives.registry:OBJECTIVES"),
        help="What the encoder is trained for: {objectives}.",
    ),
}


def pretrain(
    out: Annotated[Path, typer.Argument(callback=new_folder, help="The folder to write.")],
    corpus: Annotated[
        list[str],
        typer.Option(
            help="[bold]language[/bold], the embedded one, or texts: one per line in a .txt or .txt.gz file, a table, "
            "or the hub id of a data set. Given again: further ones."
        ),
    ],
    shape: Shape,
    protocol: Annotated[PretrainingProtocol, PROTOCOL],
    output: Output,
    column: TextColumn = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order, masking, sampling and dropout.")] = 0,
    device: Device = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="Precision; auto takes bfloat16 on CUDA, where the hardware has it."),
    ] = "auto",
    evaluate_every: Annotated[
        int | None,
        typer.Option(min=1, help="Steps from one evaluation to the next.", show_default="a twentieth, at least 50"),
    ] = None,
    checkpoint_every: Annotated[
        int,
        typer.Option(min=1, help="Steps from one saved step to the next; an interrupted run goes on from the last."),
    ] = 250,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a pretrained model at OUT.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print parameters, tokens and time; train and write nothing.")
    ] = False,
) -> None:
    """Pretrain a small encoder from scratch.

    The objective is that of BERT, of ELECTRA, one between them, or one of your own package. With one seed and corpus
    all objectives begin with the same weights and see the same batches with the same tokens masked. The folder is an
    ordinary checkpoint: give it to any other command as the model or the reference. A generator is in its folder
    [bold]generator[/bold].

    Example:  [bold]layerprobe lab pretrain rtd --objective rtd --corpus language --steps 2000[/bold]
    """
    protocol = dataclasses.replace(protocol, size=shape.encoder_size())

    # only now: --help needs no torch
    from layerprobe.lab.pretraining.run import plan_pretraining
    from layerprobe.lab.pretraining.run import pretrain as pretrain_model

    settings: dict[str, Any] = {"protocol": protocol, "seed": seed, "device": device, "dtype": dtype}
    texts = _texts(corpus, column)
    if dry_run:
        with output.progress():
            plan = plan_pretraining(texts, **settings)
        output.notes((), plan.warnings)
        output.plan(plan, dry_run=True)
    with output.progress():
        pretraining = pretrain_model(
            out,
            texts,
            **settings,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            overwrite=overwrite,
        )
    output.notes((), pretraining.warnings)
    if output.json or pretraining.metrics:
        output.result(pretraining, pretraining.table)
    if not output.json:
        generator = out / "generator"
        typer.echo(f"Folder: {out}" + (f", generator: {generator}" if generator.is_dir() else ""))


def _texts(corpus: list[str], column: str | None) -> TextFile | Literal["language"]:
    if corpus == ["language"]:  # a file of that name is ./language
        if column is not None:
            raise typer.BadParameter("expected no --column with --corpus language")
        return "language"
    from layerprobe.tasks.loading import load_corpus

    return load_corpus(corpus, columns=column)
