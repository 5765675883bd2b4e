"""layerprobe lab pretrain."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.lab.pretraining.values import SIZES, EncoderSize, PretrainingProtocol
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group, complete_names
from layerprobe_cli.shell import Call, Done, new_folder

if TYPE_CHECKING:
    from layerprobe.tasks.values import TextFile

PROTOCOL = (
    "objective generator_size dropout steps batch_size accumulation learning_rate warmup weight_decay max_grad_norm "
    "discriminator_weight masking_rate vocab_size max_length packed held_out"
)
_OF_SIZE: dict[str, Any] = {"type": int | None, "default": None, "show_default": "that of --size"}


def _size(size: str, **shape: int) -> EncoderSize:
    if "hidden_size" in shape:
        shape.setdefault("intermediate_size", 4 * shape["hidden_size"])
    return dataclasses.replace(SIZES[size], **shape)


Shape = Annotated[
    EncoderSize,
    Group(
        EncoderSize,
        "Model",
        "n_blocks hidden_size heads intermediate_size",
        make=_size,
        size={
            "type": Literal["tiny", "mini", "small"],
            "default": "mini",
            "help": "8 blocks of 96 features, 8 of 128, or 12 of 256; all with 4 heads.",
        },
        n_blocks=_OF_SIZE | {"flags": ("--blocks",), "help": "Blocks."},
        hidden_size=_OF_SIZE,
        heads=_OF_SIZE,
        intermediate_size=_OF_SIZE | {"show_default": "4 x the hidden size"},
    ),
]
Training = Annotated[
    PretrainingProtocol,
    Group(
        PretrainingProtocol,
        "Training",
        PROTOCOL,
        **{name: {"panel": "Model"} for name in ("generator_size", "dropout")},
        **{name: {"panel": "Data"} for name in ("vocab_size", "max_length", "packed", "held_out")},
        objective={
            "panel": None,
            "metavar": "NAME",
            "autocompletion": complete_names("layerprobe.lab.pretraining.values:OBJECTIVES"),
            "help": "What the encoder is trained for: {objectives}.",
        },
    ),
]


def pretrain(
    call: Call,
    out: Annotated[Path, {"argument": True, "callback": new_folder}],
    corpus: list[str],
    shape: Shape,
    protocol: Training,
    column: o.TextColumn = None,
    seed: Annotated[int, {"min": 0}] = 0,
    device: o.Device = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    evaluate_every: Annotated[int | None, {"min": 1}] = None,
    checkpoint_every: Annotated[int, {"min": 1}] = 250,
    overwrite: bool = False,
) -> Done:
    """Pretrain a small encoder from scratch.

    The objective is that of BERT, of ELECTRA, one between them, or one of your own package. With the same seed and
    corpus, all objectives start from the same weights and see the same batches with the same tokens masked. It writes
    an ordinary checkpoint, which any other command takes as the model or the reference; a generator is in its folder
    [bold]generator[/bold].

    Example:  [bold]layerprobe lab pretrain rtd --objective rtd --corpus language --steps 2000[/bold]

    Args:
        out: The folder to write.
        corpus: [bold]language[/bold], the embedded one, or texts: one per line in a .txt or .txt.gz file, a table, or
            the hub id of a data set. Repeat for further ones.
        seed: Seed of weights, order, masking, sampling and dropout.
        dtype: Precision; auto takes bfloat16 on CUDA, where the hardware has it.
        evaluate_every: Steps between evaluations. By default a twentieth of all, at least 50.
        checkpoint_every: Steps between checkpoints; an interrupted run continues from the last one.
        overwrite: Replace a pretrained model at OUT.
    """
    protocol = dataclasses.replace(protocol, size=shape)

    from layerprobe.lab.pretraining.run import pretrain as pretrain_model

    settings: dict[str, Any] = {"protocol": protocol, "seed": seed, "device": device, "dtype": dtype}
    texts = _texts(corpus, column)
    pretraining = pretrain_model(
        out, texts, **settings, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, overwrite=overwrite
    )
    generator = out / "generator"
    return Done(result=pretraining, files={"Folder": out} | ({"Generator": generator} if generator.is_dir() else {}))


def _texts(corpus: list[str], column: str | None) -> TextFile | Literal["language"]:
    if corpus == ["language"]:  # a file of that name is ./language
        if column is not None:
            raise typer.BadParameter("expected no --column with --corpus language")
        return "language"
    from layerprobe.tasks.loading import load_corpus

    return load_corpus(corpus, columns=column)
