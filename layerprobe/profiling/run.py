"""A model's name -> what it costs to serve, truncated at each layer."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import torch

from layerprobe.checks import as_layers
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.encoders.options import load, processor
from layerprobe.errors import DataError
from layerprobe.finetuning.tuning import check_layers
from layerprobe.profiling.measuring import profile_layers
from layerprobe.profiling.memory import gauge_for
from layerprobe.profiling.values import LayerProfile, Profile, ProfileSettings
from layerprobe.versions import versions

DEFAULT_SETTINGS = ProfileSettings()
ONE_TEXT = 64
"""Tokens of the text whose milliseconds are measured."""
ALONE = ProfileSettings(batch_sizes=(1,))


def profile(model: ModelLike, *, layers: object = None, settings: ProfileSettings = DEFAULT_SETTINGS) -> Profile:
    """Measure what the model truncated at each layer costs to serve: FLOPs, seconds and memory, of texts or images.

    All layers are measured where none are given; they are numbers, or results that choose one, as for `finetune`.

    Raises:
        ModelError: If the model cannot be loaded or truncated.
        DataError: If it has no such layer, or cannot read texts so long.
    """
    checkpoint = resolve_checkpoint(model)
    options = checkpoint.options
    chosen = range(count_blocks(checkpoint.config) + 1) if layers is None else as_layers(layers)
    if not chosen:
        raise DataError(f"expected layers of {checkpoint.label} to profile, got none")
    check_layers(checkpoint, chosen)
    encoder, options = load(checkpoint), checkpoint.settled
    measured = profile_layers(encoder, chosen, settings, pooling=options.pooling)
    return Profile(
        model=encoder.description,
        layers=measured,
        pooling=options.pooling,
        device=str(encoder.device),
        hardware=hardware(encoder.device),
        threads=torch.get_num_threads(),
        attn=options.attn,
        rounds=settings.rounds,
        repeats=settings.repeats,
        warmup=settings.warmup,
        max_seconds=settings.max_seconds,
        seed=settings.seed,
        memory=gauge_for(encoder.device).how,
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=_warnings(encoder, measured),
        training=settings.training,
        unit=encoder.modality,
    )


def milliseconds(model: ModelLike) -> tuple[float, ...]:
    """Measure how long one text of `ONE_TEXT` tokens, or fewer where the model reads no more, or one image takes.

    Returns:
        Milliseconds of the model truncated at each layer: the median over `ALONE`, as `profile` measures it.

    Raises:
        ModelError: If the model cannot be loaded or truncated.
    """
    encoder = load(checkpoint := resolve_checkpoint(model))
    lengths = None if encoder.reader is not None else (min(ONE_TEXT, encoder.max_length or ONE_TEXT),)
    measured = profile_layers(
        encoder, range(encoder.n_layers), replace(ALONE, lengths=lengths), pooling=checkpoint.settled.pooling
    )
    return tuple(1e3 * each.costs[0].seconds for each in measured)


def hardware(device: torch.device) -> str:
    """Return what a device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor()


def _warnings(encoder: Encoder, measured: Sequence[LayerProfile]) -> tuple[str, ...]:
    warnings, name = [], encoder.description.name
    if measured[0].layer == 0 and TruncatedEncoder(encoder, 0, share=True).reads_input_of_block:
        warnings.append(
            f"{name} does not run without a block: FLOPs, time and memory of layer 0 are those of a model with block 1"
        )
    costs = [cost for each in measured for cost in each.costs]
    if varying := sum(cost.seconds_high - cost.seconds_low > 0.5 * cost.seconds for cost in costs):
        warnings.append(
            f"{varying} of {len(costs)} times of {name} vary by more than half their median: "
            "expected a quiet machine; close what else runs, or take more rounds"
        )
    return tuple(warnings)
