"""layerprobe profile."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.finetuning.values import Protocol
from layerprobe.profiling.values import LENGTHS, ProfileSettings
from layerprobe_cli.options import Loading, Model, Report, integers, parse_layers
from layerprobe_cli.output import Output, print_table
from layerprobe_cli.tables import millions

if TYPE_CHECKING:
    from layerprobe.finetuning.values import LayerOutcome
    from layerprobe.profiling.values import Cost, LayerProfile, Profile
    from layerprobe.study.values import Study

LETTERS = "AB"
DEFAULTS = ProfileSettings()
SETTINGS = {
    "rounds": typer.Option(help="Turns of every layer, forwards and backwards in alternation."),
    "repeats": typer.Option(help="Timed passes a turn, length and batch size."),
    "warmup": typer.Option(help="Passes before them that do not count."),
    "max_seconds": typer.Option(help="No further pass of a turn, length and batch size begins after this time."),
    "seed": typer.Option(help="Of the random token ids."),
}


def profile(
    model: Model,
    loading: Loading,
    output: Output,
    report: Report,
    *,
    other: Annotated[
        str | None, typer.Argument(metavar="[MODEL2]", help="Another model, side by side.", show_default=False)
    ] = None,
    layers: Annotated[str, typer.Option(help="Layers to truncate at, such as 3,6,9-12 or all.")] = "all",
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
        typer.Option(
            help="The study.json of `layerprobe run` on this model: its scores are set against the cost.",
            show_default=False,
        ),
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
    from layerprobe.profiling.run import profile as measure
    from layerprobe.progress import part_of

    names = [model] if other is None else [model, other]
    checkpoints = [loading.resolve(model), *(loading.without_name().resolve(name) for name in names[1:])]
    chosen = [parse_layers(layers, checkpoint) for checkpoint in checkpoints]
    if studies:
        from layerprobe.profiling.page import check_studies

        check_studies(studies, checkpoints)
    with output.progress() as progress:
        profiles = [
            measure(
                checkpoint,
                layers=wanted,
                settings=settings,
                options=loading.options(),
                progress=part_of(progress, start=index, share=1, whole=len(names)),
            )
            for index, (checkpoint, wanted) in enumerate(zip(checkpoints, chosen, strict=True))
        ]
    output.notes((), [warning for each in profiles for warning in each.warnings])
    output.result(profiles, functools.partial(_print, studies=studies), as_json={"profiles": profiles})
    report.write(output, profiles, studies, page="profiles")


def _print(profiles: list[Profile], studies: list[Study]) -> None:
    scores: list[dict[int, LayerOutcome]] = [{} for _ in profiles]
    if studies:
        from layerprobe.profiling.page import scores_of

        scores = [scores_of(studies, each.model) for each in profiles]
    for index, each in enumerate(profiles):
        letter = f"{LETTERS[index]}: " if len(profiles) > 1 else ""
        threads = f"{each.threads} thread{'s' if each.threads != 1 else ''}"
        typer.echo(f"{letter}{each.model.name}, {each.model.dtype}, {each.device} ({each.hardware}), {threads}")
    if all(cost.peak_memory is None for each in profiles for layer in each.layers for cost in layer.costs):
        typer.echo(f"memory: {profiles[0].memory}")
    for length, size in profiles[0].shapes:
        typer.echo(f"\n{length} tokens, {f'one {profiles[0].unit}' if size == 1 else f'batches of {size}'}")
        _print_shape(profiles, scores, length, size)


def _print_shape(profiles: list[Profile], scores: list[dict[int, LayerOutcome]], length: int, size: int) -> None:
    from layerprobe.metrics.names import metric_title

    metrics = dict.fromkeys(f"TMFT {metric_title(each.primary)}" for scored in scores for each in scored.values())
    trained = any(profile.training is not None for profile in profiles)
    columns = [
        "parameters",
        "GFLOPs",
        "ms",
        "5-95 %",
        f"{profiles[0].unit}s/s",
        "tokens/s",
        "MB",
        *["train MB"] * trained,
        *metrics,
    ]
    header = ["layer"]
    by_layer: list[dict[int, LayerProfile]] = []
    for index, profile in enumerate(profiles):
        header += [f"{LETTERS[index]} {name}" for name in columns] if len(profiles) > 1 else columns
        by_layer.append({each.layer: each for each in profile.layers})
    rows = []
    for layer in sorted({layer for profiled in by_layer for layer in profiled}):
        row = [str(layer)]
        for profiled, scored in zip(by_layer, scores, strict=True):
            cells = [""] * len(columns)
            if layer in profiled:
                cost = profiled[layer].cost(length, size)
                cells = _cells(profiled[layer], cost)
                cells += [_megabytes(cost.training_memory)] if trained else []
                cells += [f"{scored[layer].mean:.2f}" if layer in scored else ""] if any(scores) else []
            row += cells
        rows.append(row)
    print_table(header, rows)


def _cells(each: LayerProfile, cost: Cost) -> list[str]:
    milliseconds = (1e3 * value for value in (cost.seconds, cost.seconds_low, cost.seconds_high))
    middle, low, high = map(_short, milliseconds)
    return [
        millions(each.parameters),
        _short(cost.flops / 1e9),
        middle,
        f"{low}-{high}",
        _short(cost.texts_per_second),
        _short(cost.tokens_per_second),
        _megabytes(cost.peak_memory),
    ]


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"


def _short(value: float) -> str:
    """Return a number with three significant digits, and no exponent for large ones."""
    return f"{value:.0f}" if value >= 1000 or not value else f"{value:#.3g}".rstrip(".")
