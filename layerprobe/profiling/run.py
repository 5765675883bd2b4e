"""Measures the cost of serving a model truncated at each layer, beside the scores of findings."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import torch

from layerprobe.context import part
from layerprobe.encoders.architecture import count_parameters
from layerprobe.encoders.device import processor
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import ModelLike, Resolved, resolve
from layerprobe.encoders.model import ModelDescription
from layerprobe.encoders.timing import ROUNDS, median_range, turns
from layerprobe.errors import DataError
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.tuning import check_layers
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.profiling.measuring import gauge_for, profile_layers
from layerprobe.profiling.values import LayerProfile, Profile, Profiles, ProfileSettings
from layerprobe.results.shown import Shown
from layerprobe.study.values import Finding
from layerprobe.versions import versions

DEFAULT_SETTINGS = ProfileSettings()
ONE_TEXT = 64
"""Tokens of the text whose milliseconds are measured."""
ALONE = ProfileSettings(batch_sizes=(1,), rounds=ROUNDS, max_seconds=0.5)


def profile(
    model: ModelLike,
    *,
    layers: int | str | Shown | Iterable[int | Shown] | None = None,
    settings: ProfileSettings = DEFAULT_SETTINGS,
) -> Profile:
    """Measure what the model truncated at each layer costs to serve: FLOPs, seconds and memory, of texts or images.

    All layers are measured where none are given; they are numbers, or results that choose one, as for `finetune`.
    """
    checkpoint = resolve(model)
    chosen = check_layers(checkpoint, "all" if layers is None else layers)
    if not chosen:
        raise DataError(f"expected layers of {checkpoint.label} to profile, got none")
    encoder = load(checkpoint)
    measured = profile_layers(encoder, chosen, settings, pooling=checkpoint.pooling)
    return Profile(
        model=encoder.description,
        layers=measured,
        pooling=checkpoint.pooling,
        device=str(encoder.device),
        hardware=hardware(encoder.device),
        threads=torch.get_num_threads(),
        attn=checkpoint.asked.attn,
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


def milliseconds(models: Sequence[ModelLike]) -> list[list[tuple[float, float, float]]]:
    """Measure how long one text of `ONE_TEXT` tokens, or fewer where the model reads no more, or one image takes.

    Models are measured in turn, in every second round in reverse; those of one architecture and size share what is
    measured of the first of them, since times depend on shapes and not on weights.

    Returns:
        By model, of it truncated at each layer: milliseconds, the median over rounds, and the ends of their range.
    """
    shapes = [_shape(resolve(model)) for model in models]
    first = {shape: resolve(model) for shape, model in zip(shapes[::-1], models[::-1], strict=True)}
    rounds: dict[str, list[tuple[LayerProfile, ...]]] = {shape: [] for shape in first}
    order = list(turns(list(first), ALONE.rounds))
    for place, (number, shape) in enumerate(order):
        encoder = load(first[shape])
        lengths = None if encoder.reader is not None else (min(ONE_TEXT, encoder.max_length or ONE_TEXT),)
        settings, pooling = replace(ALONE, lengths=lengths), first[shape].pooling
        layers = range(encoder.n_layers)
        with part(start=place, share=1, whole=len(order)):
            rounds[shape].append(profile_layers(encoder, layers, settings, pooling=pooling, only=number))
    by_layer = {shape: zip(*measured, strict=True) for shape, measured in rounds.items()}
    times = {
        shape: [median_range([1e3 * layer.costs[0].seconds for layer in same]) for same in layers]
        for shape, layers in by_layer.items()
    }
    return [times[shape] for shape in shapes]


def _shape(checkpoint: Resolved) -> str:
    """Return the key of a pass's time: architecture, sizes of the blocks, and how the model is run."""
    config, options = checkpoint.config, checkpoint.asked
    sizes = np.diff(count_parameters(config, trust_remote_code=checkpoint.pinned["trust_remote_code"])).tolist()
    widths = [getattr(config, name, None) for name in ("model_type", "hidden_size", "num_attention_heads")]
    limit = getattr(config, "max_position_embeddings", None)
    how = [checkpoint.pooling, str(options.attn), checkpoint.dtype, str(options.device), options.norm]
    return digest([*widths, sizes, limit, options.blocks, *how])


def hardware(device: torch.device) -> str:
    """Return the name of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor()


def _warnings(encoder: Encoder, measured: Sequence[LayerProfile]) -> tuple[str, ...]:
    warnings, name = [], encoder.description.name
    if measured[0].layer == 0 and TruncatedEncoder(encoder, 0, share=True).reads_input_of_block:
        warnings.append(
            f"{name} does not run without a block: FLOPs, time and memory of layer 0 are those of a model with block 1"
        )
    costs = [cost for layer in measured for cost in layer.costs]
    if varying := sum(cost.seconds_high - cost.seconds_low > 0.5 * cost.seconds for cost in costs):
        warnings.append(
            f"{varying} of {len(costs)} times of {name} vary by more than half their median: "
            "expected a quiet machine; close what else runs, or take more rounds"
        )
    return tuple(warnings)


Identified = ModelDescription | Resolved
"""A model that can be identified."""


def side_by_side(profiles: Sequence[Profile], findings: Sequence[Finding] = ()) -> Profiles:
    """Return profiles of the same lengths and batch sizes, with the scores of their layers in findings."""
    if len({(profile.unit, profile.shapes) for profile in profiles}) != 1:
        raise DataError("expected profiles all of texts or all of images, of the same lengths and batch sizes")
    result = Profiles(
        profiles=tuple(profiles),
        scores=tuple(tuple(scores_of(findings, profile.model).values()) for profile in profiles),
    )
    check_findings(findings, [profile.model for profile in profiles])
    return result


def scores_of(findings: Sequence[Finding], model: Identified) -> dict[int, LayerOutcome]:
    """Return what the fine-tuning of findings showed of a model, by layer."""
    of_model = (finding.outcomes for finding in findings if _same(finding.model, model))
    scores = {outcome.layer: outcome for outcomes in of_model for outcome in outcomes}
    return dict(sorted(scores.items()))


def check_findings(findings: Sequence[Finding], models: Sequence[Identified]) -> None:
    """Check that every finding has fine-tuning scores of one of the models."""
    if len(metrics := dict.fromkeys(finding.primary for finding in findings)) > 1:
        raise DataError(
            f"expected findings scored by one metric, got {' and '.join(map(metric_title, metrics))}: "
            "give those of one kind of task"
        )
    for finding in findings:
        if not any(_same(finding.model, model) for model in models):
            raise DataError(
                f"expected a finding of the model that is profiled, got one of {finding.model.name}: "
                "profile the same checkpoint"
            )


def _same(first: Identified, second: Identified) -> bool:
    seeds = [one.asked.random_init if isinstance(one, Resolved) else one.random_init for one in (first, second)]
    return first.revision == second.revision and seeds[0] == seeds[1]
