"""layerprobe profile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from layerprobe.finetuning.values import Protocol
from layerprobe.profiling.values import LENGTHS, ProfileSettings
from layerprobe_cli.options import Loading, Model, Report, export_layer, integers, layers_of_model, parse_layers
from layerprobe_cli.output import Output

DEFAULTS = ProfileSettings()
SETTINGS = {
    "rounds": typer.Option(help="Turns of every layer, forwards and backwards in alternation."),
    "repeats": typer.Option(help="Timed passes a turn, length and batch size."),
    "warmup": typer.Option(help="Passes before them that do not count."),
    "max_seconds": typer.Option(help="No further pass of a turn, length and batch size begins after this time."),
    "seed": typer.Option(help="Of the random token ids."),
}


def profile(
    context: typer.Context,
    model: Model,
    loading: Loading,
    output: Output,
    report: Report,
    *,
    other: Annotated[str | None, typer.Argument(metavar="[MODEL2]", help="Another model, side by side.")] = None,
    layers: Annotated[
        str, typer.Option(callback=layers_of_model, help="Layers to truncate at, such as 3,6,9-12 or all.")
    ] = "all",
    lengths: Annotated[
        str | None,
        typer.Option(help="Tokens a text.", show_default=f"{','.join(map(str, LENGTHS))}; images have one length"),
    ] = None,
    batch_sizes: Annotated[str, typer.Option(help="Texts or images a batch; 1 gives the latency of one.")] = ",".join(
        map(str, DEFAULTS.batch_sizes)
    ),
    settings: Annotated[ProfileSettings, SETTINGS],
    train: Annotated[
        bool, typer.Option("--train", help="Also measure the memory of a step of fine-tuning each batch.")
    ] = False,
    lora: Annotated[int, typer.Option(metavar="RANK", min=0, help="With --train: by adapters of this rank.")] = 0,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="With --train: activations are computed again.")
    ] = False,
    study: Annotated[
        list[Path] | None,
        typer.Option(help="The study.json of `layerprobe run` on this model: its scores are set against the cost."),
    ] = None,
) -> None:
    """Measure what each truncated model costs to serve.

    FLOPs, latency, throughput and memory at each layer.

    Example:  [bold]layerprobe profile google/electra-base-discriminator --layers 6,9,12 --report cost.html[/bold]
    """
    if (lora or gradient_checkpointing) and not train:
        raise typer.BadParameter("expected --train with --lora and --gradient-checkpointing")
    settings = dataclasses.replace(
        settings,
        lengths=None if lengths is None else integers(lengths, "--lengths"),
        batch_sizes=integers(batch_sizes, "--batch-sizes"),
        training=Protocol(lora=lora, gradient_checkpointing=gradient_checkpointing) if train else None,
    )
    from layerprobe.study.files import read_study

    studies = [read_study(path) for path in study or ()]

    # only now: an error in the options needs no torch
    from layerprobe.context import part
    from layerprobe.profiling.run import profile as measure
    from layerprobe.profiling.scores import check_studies, side_by_side

    names = [model] if other is None else [model, other]
    checkpoints = [loading.resolve(model), *(loading.without_name().resolve(name) for name in names[1:])]
    chosen = [parse_layers(layers, checkpoint) for checkpoint in checkpoints]
    check_studies(studies, checkpoints)
    with output.progress():
        profiles = []
        for index, (checkpoint, wanted) in enumerate(zip(checkpoints, chosen, strict=True)):
            with part(start=index, share=1, whole=len(names)):
                profiles.append(measure(checkpoint, layers=wanted, settings=settings))
    output.notes((), [warning for each in profiles for warning in each.warnings])
    shown = side_by_side(profiles, studies)
    output.result(shown, shown.table, as_json={"profiles": profiles})
    last = profiles[0].layers[-1].layer
    cut = last < profiles[0].model.n_blocks
    follow = export_layer(context, model, last, f"truncated-{last}") if cut else []
    report.write(output, shown, commands=follow)
