"""Measure the cost of serving a model truncated at each layer, next to the scores of findings.

Truncated models take turns on artificial inputs; this module ensures a fair comparison.
"""

import contextlib
import ctypes
import functools
import gc
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, median_low

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from layerprobe.context import part, report
from layerprobe.encoders.architecture import count_parameters
from layerprobe.encoders.batching import Batch, pool, prepare_images, probe_images
from layerprobe.encoders.device import processor
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder, reads_token_types
from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import load
from layerprobe.encoders.model import ModelDescription, Pooling
from layerprobe.encoders.timing import LEAST_ROUNDS, ROUNDS, median_range, turns
from layerprobe.errors import DataError
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.step import prepare_model
from layerprobe.finetuning.tuning import check_layers
from layerprobe.finetuning.values import LayerOutcome, Protocol
from layerprobe.metrics.names import metric_title
from layerprobe.names import short_name
from layerprobe.profiling.values import LENGTHS, Cost, LayerProfile, Profile, Profiles, ProfileSettings, Shape
from layerprobe.results.shown import Shown
from layerprobe.rng import plain_torch
from layerprobe.study.values import Finding
from layerprobe.training import adamw
from layerprobe.versions import versions

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Value written to clear_refs that resets the kernel's VmHWM to the current VmRSS (proc(5), since Linux 4.0)."""


Gauge = tuple[str, Callable[[], object], Callable[[], int | None]]
"""How peak memory is measured, in plain words; a function that resets the peak; and one that returns its bytes since
then above those in use when the gauge was made, or None if they cannot be measured."""


def gauge_for(device: torch.device) -> Gauge:
    """Return a gauge that starts at the device's current memory use."""
    if device.type == "cuda":
        how = "peak of torch's allocations on the device (max_memory_allocated), minus those before the model was made"
        before = torch.cuda.memory_allocated(device)
        restart = functools.partial(torch.cuda.reset_peak_memory_stats, device)
        return how, restart, lambda: torch.cuda.max_memory_allocated(device) - before
    if device.type == "cpu" and resident_peak_works():
        _trim()
        resident = _status("VmRSS")
        how = "rise of the process's resident memory (VmHWM, reset for each shape), freed heap returned before"
        return how, lambda: (_trim(), CLEAR_REFS.write_text(RESET_PEAK)), lambda: _status("VmHWM") - resident
    return f"not measured: there is no reliable way on {device.type}", lambda: None, lambda: None


def resident_peak_works() -> bool:
    """Return whether this kernel can reset the high-water mark, and the C library can return memory."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
        return sys.platform == "linux" and _status("VmHWM") > 0 and _trim() is not None
    except (OSError, ValueError):
        return False


def _status(name: str) -> int:
    line = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if line is None:
        raise ValueError(f"expected {name} in {STATUS}")
    return int(line[1]) * 1024


def _trim() -> int | None:
    """Return freed memory to the system: reuse would hide later allocations. None if that fails."""
    with contextlib.suppress(OSError, AttributeError):  # a C library other than glibc
        return int(ctypes.CDLL(None).malloc_trim(0))
    return None


def random_batch(encoder: Encoder, *, length: int, batch_size: int, seed: int) -> Batch:
    """Return random words of the model's vocabulary, `length` tokens per text, no padding or special tokens; or pixels.

    The cost of a pass depends on the shape, not on the words. The same arguments return the same batch.
    """
    generator = torch.Generator().manual_seed(seed)
    if encoder.reader is not None:
        (like,) = prepare_images(encoder.reader, probe_images()[:1]).collate([0])["pixel_values"]
        pixels = torch.randn(batch_size, *like.shape, generator=generator)
        mask = encoder.reader.mask(batch_size)
        return {"pixel_values": pixels.to(encoder.device), "attention_mask": mask.to(encoder.device)}
    n_known = getattr(encoder.model.config, "vocab_size", None)
    usable = set(encoder.tokenizer.get_vocab().values()) - set(encoder.tokenizer.all_special_ids)
    words = torch.tensor(sorted(word for word in usable if n_known is None or word < n_known))
    drawn = torch.randint(len(words), (batch_size, length), generator=generator)
    batch = {"input_ids": words[drawn], "attention_mask": torch.ones(batch_size, length, dtype=torch.long)}
    if reads_token_types(encoder.model) and "token_type_ids" in encoder.tokenizer.model_input_names:
        batch["token_type_ids"] = torch.zeros(batch_size, length, dtype=torch.long)
    return {name: values.to(encoder.device) for name, values in batch.items()}


def measured_lengths(encoder: Encoder, lengths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the lengths to measure, each once, ascending: see `ProfileSettings.lengths`."""
    limit, name = encoder.max_length, encoder.description.name
    if encoder.reader is not None:
        if lengths is not None and set(lengths) != {encoder.reader.n_tokens}:
            raise DataError(
                f"expected no lengths for {name}, which has {encoder.reader.n_tokens} tokens for every image, got "
                f"{', '.join(map(str, lengths))}"
            )
        return (encoder.reader.n_tokens,)
    if lengths is None:
        return tuple(sorted({length if limit is None else min(length, limit) for length in LENGTHS}))
    if wrong := [str(length) for length in lengths if limit is not None and length > limit]:
        raise DataError(f"expected lengths up to {limit} tokens, the limit of {name}, got {', '.join(wrong)}")
    return tuple(sorted(set(lengths)))


Turn = dict[Shape, tuple[list[float], int | None, int | None]]
"""Measurements of a layer in one round: seconds of its passes, and bytes of a pass and of a fine-tuning step."""


def profile_layers(
    encoder: Encoder,
    layers: Sequence[int],
    settings: ProfileSettings,
    *,
    pooling: Pooling = "mean",
    only: int | None = None,
) -> tuple[LayerProfile, ...]:
    """Return the costs of the encoder truncated at each layer, over all rounds, or in round `only`.

    Every round gives each layer one turn, in alternating direction, so that a machine that warms up or is shared treats
    all layers alike. During its turn a layer is a separate model, the only truncated one in memory. A pass is a forward
    pass and the pooling of a batch already on the device, in the encoder's precision, without tokenising.
    """
    encoder.check_pooling(pooling)
    shapes = itertools.product(measured_lengths(encoder, settings.lengths), sorted(set(settings.batch_sizes)))
    batches = {
        (length, size): random_batch(encoder, length=length, batch_size=size, seed=settings.seed)
        for length, size in shapes
    }
    _warm_up(encoder, batches)
    measured: dict[int, list[Turn]] = {layer: [] for layer in sorted(set(layers))}
    flops: dict[tuple[int, int], int] = {}  # per text, by layer and length
    order = [layer for number, layer in turns(list(measured), settings.rounds) if only in (None, number)]
    # layer 0 takes a turn as well
    done, total = 0, sum(layer + 1 for layer in order)
    gc.collect()  # existing garbage would stay until the end
    frozen = gc.get_freeze_count()  # frozen by the caller: keep it
    if not frozen:
        gc.freeze()  # collecting all earlier objects would take longer than a small model's turn
    try:
        for layer in order:
            measured[layer].append(_turn(encoder, layer, batches, settings, pooling, flops))
            done += layer + 1
            report(f"profiling {short_name(encoder.description.name)}", done, total)
    finally:
        if not frozen:
            gc.unfreeze()
    return tuple(
        LayerProfile(
            layer=layer,
            parameters=encoder.description.parameters[layer],
            costs=tuple(_cost(shape, flops[layer, shape[0]], [turn[shape] for turn in of_layer]) for shape in batches),
        )
        for layer, of_layer in measured.items()
    )


@torch.inference_mode()
def _warm_up(encoder: Encoder, batches: dict[Shape, Batch]) -> None:
    """Run the whole model once per shape: caches of libraries belong to no layer."""
    with encoder.precision():
        for batch in batches.values():
            # image models take no mask
            inputs = batch if encoder.reader is None else {"pixel_values": batch["pixel_values"]}
            with model_errors(encoder.description.name, "a forward pass"):
                encoder.model(**inputs)


def _turn(
    encoder: Encoder,
    layer: int,
    batches: dict[Shape, Batch],
    settings: ProfileSettings,
    pooling: Pooling,
    flops: dict[tuple[int, int], int],
) -> Turn:
    gc.collect()  # frees the previous model, if its modules refer to each other
    _, restart, peak = gauge_for(encoder.device)
    model = TruncatedEncoder(encoder, layer)
    passes = functools.partial(_passes, encoder, model, pooling=pooling, max_seconds=settings.max_seconds)
    least = -(-LEAST_ROUNDS // settings.rounds)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())

    def risen(rise: int | None) -> int | None:
        """Return a rise; None below the size of the weights: earlier memory was reused, so it means nothing."""
        return None if rise is None or rise < weights else rise

    turn: Turn = {}
    for shape, batch in batches.items():
        restart()
        list(passes(batch, count=settings.warmup))
        seconds = list(passes(batch, count=settings.repeats, least=least))
        turn[shape] = seconds, risen(peak()), None
    for (length, _), batch in batches.items():
        if (layer, length) not in flops:
            flops[layer, length] = count_flops(model, {name: values[:1] for name, values in batch.items()})
    if settings.training is not None:
        del model, passes
        for shape, batch in batches.items():
            turn[shape] = (*turn[shape][:2], risen(_training_peak(encoder, layer, batch, settings.training)))
    return turn


@plain_torch()
def _training_peak(encoder: Encoder, layer: int, batch: Batch, protocol: Protocol) -> int | None:
    """Return the peak bytes of a fine-tuning step on a batch, including the truncated model."""
    gc.collect()
    _, restart, peak = gauge_for(encoder.device)
    restart()
    model = TruncatedEncoder(encoder, layer).train()
    prepare_model(model, protocol)
    optimizer = adamw([weight for weight in model.parameters() if weight.requires_grad], protocol, fused=True)
    for _ in range(2):  # AdamW's moments exist from the second step on
        optimizer.zero_grad()
        with encoder.precision():
            states = model(batch)
        loss = pool(states, batch["attention_mask"], protocol.pooling).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return peak()


def _passes(
    encoder: Encoder,
    model: TruncatedEncoder,
    batch: Batch,
    *,
    pooling: Pooling,
    count: int,
    max_seconds: float,
    least: int = 1,
) -> Iterator[float]:
    """Yield the seconds of passes: at least `least`, at most `count`; the last begins within `max_seconds`."""
    total = 0.0
    for number in range(max(count, least) if count else 0):
        if number >= least and total >= max_seconds:
            return
        total += (seconds := _timed_pass(encoder, model, batch, pooling))
        yield seconds


@torch.inference_mode()
def _timed_pass(encoder: Encoder, model: TruncatedEncoder, batch: Batch, pooling: Pooling) -> float:
    """Return the seconds from a batch on the device to its embeddings on the device."""
    _synchronize(encoder.device)
    start = time.perf_counter()
    with encoder.precision():
        states = model(batch)
    pool(states, batch["attention_mask"], pooling)
    _synchronize(encoder.device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _cost(shape: Shape, flops: int, rounds: Sequence[tuple[list[float], int | None, int | None]]) -> Cost:
    by_round, *memory = zip(*rounds, strict=True)
    seconds = list(itertools.chain.from_iterable(by_round))
    low, middle, high = np.quantile(seconds, (0.05, 0.5, 0.95)).tolist()
    peaks, training = ([peak for peak in peaks if peak is not None] for peaks in memory)
    return Cost(
        length=shape[0],
        batch_size=shape[1],
        flops=flops,
        seconds=middle,
        seconds_low=low,
        seconds_high=high,
        repeats=len(seconds),
        by_round=tuple(map(median, by_round)),
        peak_memory=median_low(peaks) if peaks else None,
        training_memory=median_low(training) if training else None,
    )


def count_flops(model: TruncatedEncoder, batch: Batch) -> int:
    """Return the floating-point operations of one forward pass, counted by torch's `FlopCounterMode`.

    It counts matrix products and convolutions, a multiplication with its addition as two, but not norms, activations,
    softmax and look-ups, a few percent of a usual model. Attention is counted as the two
    products QK' and AV over all pairs of tokens for any kernel: the counter of torch 2.13 has no formula
    for the CPU's fused attention, so the counted pass uses plain attention.
    """
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), _plain_attention(model), sdpa_kernel(SDPBackend.MATH), counter:
        model(batch)
    return int(counter.get_total_flops())


@contextlib.contextmanager
def _plain_attention(model: TruncatedEncoder) -> Iterator[None]:
    """Let the model attend by torch's own operations: kernels of other packages are not counted."""
    kind = model.model.config._attn_implementation
    if kind in ("eager", "sdpa"):
        yield
        return
    model.model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.model.set_attn_implementation(kind)


ONE_TEXT = 64
"""Tokens of the text for measuring milliseconds."""
ALONE = ProfileSettings(batch_sizes=(1,), rounds=ROUNDS, max_seconds=0.5)


def profile(
    model: ModelLike,
    *,
    layers: int | str | Shown | Iterable[int | Shown] | None = None,
    settings: ProfileSettings | None = None,
) -> Profile:
    """Measure the cost of serving the model truncated at each layer: FLOPs, seconds and memory, for texts or images.

    By default all layers are measured; layers are numbers, or results that choose one, as for `finetune`.
    """
    settings, checkpoint = settings or ProfileSettings(), resolve(model)
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
        memory=gauge_for(encoder.device)[0],
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=_warnings(encoder, measured),
        training=settings.training,
        unit=encoder.modality,
    )


def milliseconds(models: Sequence[ModelLike]) -> list[list[tuple[float, float, float]]]:
    """Measure the time of one text of `ONE_TEXT` tokens, or of the model's limit if lower, or of one image.

    Models are measured in turn, in reverse order in every second round; those of equal architecture and size share the
    first one's measurements, because times depend on shapes and not on weights.

    Returns:
        By model and layer of truncation: milliseconds, the median over rounds, and the ends of their range.
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
    """Return the key of a pass's time: architecture, sizes of the blocks, and settings of the run."""
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
            "expected a quiet machine; close other programs, or use more rounds"
        )
    return tuple(warnings)


Identified = ModelDescription | Resolved
"""A model that can be identified."""


def side_by_side(profiles: Sequence[Profile], findings: Sequence[Finding] = ()) -> Profiles:
    """Combine profiles of the same lengths and batch sizes, with the scores of their layers in findings."""
    if len({(profile.unit, profile.shapes) for profile in profiles}) != 1:
        raise DataError("expected profiles all of texts or all of images, of the same lengths and batch sizes")
    scores = tuple(tuple(tuned_scores(findings, profile.model).values()) for profile in profiles)
    return Profiles(profiles=tuple(profiles), scores=scores)


def tuned_scores(findings: Sequence[Finding], model: Identified) -> dict[int, LayerOutcome]:
    """Return the fine-tuning results of a model in findings, by layer."""
    of_model = (finding.outcomes for finding in findings if _same(finding.model, model))
    scores = {outcome.layer: outcome for outcomes in of_model for outcome in outcomes}
    return dict(sorted(scores.items()))


def check_findings(findings: Sequence[Finding], models: Sequence[Identified]) -> None:
    """Check that every finding has fine-tuning scores of one of the models."""
    if len(metrics := dict.fromkeys(finding.primary for finding in findings)) > 1:
        raise DataError(
            f"expected findings scored by one metric, got {' and '.join(map(metric_title, metrics))}: "
            "use findings of one kind of task"
        )
    for finding in findings:
        if not any(_same(finding.model, model) for model in models):
            raise DataError(
                f"expected a finding for the profiled model, got one for {finding.model.name}: "
                "profile the same checkpoint"
            )


def _same(first: Identified, second: Identified) -> bool:
    seeds = [one.asked.random_init if isinstance(one, Resolved) else one.random_init for one in (first, second)]
    return first.revision == second.revision and seeds[0] == seeds[1]
