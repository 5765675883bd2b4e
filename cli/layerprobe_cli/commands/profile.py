"""layerprobe profile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from layerprobe.finetuning.values import Protocol
from layerprobe.profiling.values import ProfileSettings
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group
from layerprobe_cli.shell import Done, PageCall


def profile(
    call: PageCall,
    model: o.Loading,
    settings: Annotated[
        ProfileSettings, Group(ProfileSettings, "Options", "lengths batch_sizes rounds repeats warmup max_seconds seed")
    ],
    other: Annotated[str | None, {"argument": True, "metavar": "[MODEL2]"}] = None,
    layers: Annotated[str, {"callback": o.checked(o.check_layers)}] = "all",
    train: bool = False,
    lora: Annotated[int, {"metavar": "RANK", "min": 0}] = 0,
    gradient_checkpointing: bool = False,
    finding: list[Path] | None = None,
) -> Done:
    """Measure size and speed of each truncated model.

    It reports FLOPs, latency, throughput and memory at each layer.

    Example:  [bold]layerprobe profile google/electra-base-discriminator --layers 6,9,12 --report cost.html[/bold]

    Args:
        other: Another model, side by side.
        layers: Layers to truncate at, such as 3,6,9-12 or -1, or all.
        train: Also measure the memory of a fine-tuning step with each batch.
        lora: With --train: train adapters of this rank.
        gradient_checkpointing: With --train: recompute activations in the backward pass.
        finding: Output of `layerprobe find --json` for this model, whose scores are shown against the cost.
    """
    if (lora or gradient_checkpointing) and not train:
        raise typer.BadParameter("expected --train with --lora and --gradient-checkpointing")
    training = Protocol(lora=lora, gradient_checkpointing=gradient_checkpointing) if train else None
    settings = dataclasses.replace(settings, training=training)
    findings = [o.read_finding(path) for path in finding or ()]

    from layerprobe.context import in_parts
    from layerprobe.finetuning.tuning import check_layers
    from layerprobe.profiling.run import check_findings, side_by_side
    from layerprobe.profiling.run import profile as measure

    checkpoints = o.resolved(model, [other] if other else [])
    chosen = [check_layers(checkpoint, layers) for checkpoint in checkpoints]
    check_findings(findings, checkpoints)
    pairs = zip(checkpoints, chosen, strict=True)
    profiles = [*in_parts(lambda pair: measure(pair[0], layers=pair[1], settings=settings), pairs)]
    compared = side_by_side(profiles, findings)
    last = profiles[0].layers[-1].layer
    words = ("truncate", "export", model.name, f"layer-{last}", "--layer", last)
    steps = call.step(*words, without=o.LOADING) if last < profiles[0].model.n_blocks else ()
    return Done(result=compared, steps=steps)
