"""layerprobe adapt."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe_cli.options import Loading, Model, option
from layerprobe_cli.output import Output, print_json, print_table

if TYPE_CHECKING:
    from layerprobe.adaptation.values import Adaptation, AdaptationProtocol


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How the model goes on with masked language modelling."""

    epochs: Annotated[int, option("Training", min=1, help="Passes over the texts.")] = 10
    max_steps: Annotated[int | None, option("Training", min=1, help="Steps at most.", show_default="all epochs")] = None
    learning_rate: Annotated[float, option("Training", min=1e-12, help="Peak of the linear schedule.")] = 2e-5
    batch_size: Annotated[int, option("Training", min=1, help="Texts a forward pass.")] = 32
    accumulation: Annotated[int, option("Training", min=1, help="Forward passes a step.")] = 8
    weight_decay: Annotated[float, option("Training", min=0, help="Of matrices.")] = 0.01
    warmup: Annotated[float, option("Training", min=0, max=0.99, help="Share of the steps.")] = 0.1
    max_grad_norm: Annotated[float, option("Training", min=1e-12, help="Gradients are clipped to this norm.")] = 1.0
    max_length: Annotated[int, option("Training", min=2, help="Tokens a text at most.")] = 128
    masking_rate: Annotated[float, option("Training", min=1e-3, max=1, help="Share of the tokens to mask.")] = 0.15
    random_share: Annotated[float, option("Training", min=0, max=1, help="Share of those shown as a random word.")] = (
        0.1
    )
    kept_share: Annotated[
        float, option("Training", min=0, max=1, help="Share of those shown as they are; the rest is shown as the mask.")
    ] = 0.1
    validation_share: Annotated[
        float, option("Training", min=1e-6, max=0.99, help="Share of the texts to hold out.")
    ] = 0.02

    def protocol(self) -> AdaptationProtocol:
        """Return them as the library takes them."""
        from layerprobe.adaptation.values import AdaptationProtocol

        return AdaptationProtocol(**vars(self))


def adapt(
    model: Model,
    loading: Loading,
    training: Training,
    texts: Annotated[
        list[Path],
        typer.Option(
            help="Texts: one a line in a .txt or .txt.gz file, or a table. Given again: further files.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.", show_default=False)],
    output: Output,
    seed: Annotated[
        int, option("Training", min=0, help="Of the held-out texts, order, masking, dropout and fresh weights.")
    ] = 0,
    evaluate_every: Annotated[
        int | None,
        option(
            "Training",
            min=1,
            help="Steps from one evaluation to the next.",
            show_default="once an epoch",
        ),
    ] = None,
    checkpoint_every: Annotated[
        int,
        option(
            "Training", min=1, help="Steps from one saved step to the next; an interrupted run goes on from the last."
        ),
    ] = 50,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an adapted model at OUT.")] = False,
) -> None:
    """Go on with masked language modelling on your own texts.

    This is domain-adaptive pretraining. The folder is an ordinary checkpoint of the encoder: give it to any other
    command as the model.

    Example:  [bold]layerprobe adapt google/electra-base-discriminator --texts sentences.txt -o electra-adapted[/bold]
    """
    protocol = training.protocol()

    # torch is loaded only here, so that --help is quick
    from layerprobe.adaptation.run import adapt as adapt_model
    from layerprobe.tasks.corpus import load_corpus

    corpus = load_corpus(texts)
    with output.progress() as progress:
        adaptation = adapt_model(
            loading.resolve(model),
            corpus,
            out,
            protocol=protocol,
            seed=seed,
            options=loading.options(),
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            overwrite=overwrite,
            progress=progress,
        )
    output.notes((), adaptation.warnings)
    if output.json:
        print_json(adaptation)
    else:
        _print_adaptation(adaptation, out)


def _print_adaptation(adaptation: Adaptation, out: Path) -> None:
    header = ("step", "held-out loss", "perplexity", "accuracy", "training loss")
    print_table(
        header,
        [
            (
                str(each.step),
                f"{each.held_out_loss:.4f}",
                _perplexity(each.held_out_loss),
                f"{100 * each.held_out_accuracy:.1f} %",
                "" if each.train_loss is None else f"{each.train_loss:.4f}",
            )
            for each in adaptation.metrics
        ],
    )
    typer.echo(
        f"\n{adaptation.n_held_out_tokens:,} masked tokens of {adaptation.n_held_out:,} held-out texts; "
        f"{adaptation.n_texts:,} texts to train on, {adaptation.seconds:.0f} s"
    )
    typer.echo(f"Folder: {out}")


def _perplexity(loss: float) -> str:
    return f"{math.exp(min(loss, 100)):.1f}"
