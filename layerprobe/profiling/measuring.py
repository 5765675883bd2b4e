"""Truncated models in turn, timed and weighed. Knows loaded encoders; what is fair is decided here."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np
import torch

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.pooling import pool
from layerprobe.encoders.values import Pooling
from layerprobe.errors import DataError
from layerprobe.names import short_name
from layerprobe.profiling.flops import count_flops
from layerprobe.profiling.inputs import check_lengths, random_batch
from layerprobe.profiling.memory import gauge_for
from layerprobe.profiling.values import Cost, LayerProfile
from layerprobe.progress import Progress, silent

Shape = tuple[int, int]
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How often what is measured."""

    lengths: tuple[int, ...] = (16, 64, 128)
    """Tokens a text."""
    batch_sizes: tuple[int, ...] = (1, 32)
    """Texts a batch."""
    rounds: int = 5
    """Turns of every layer."""
    repeats: int = 5
    """Timed passes a turn and shape, at most."""
    warmup: int = 2
    """Passes before them that do not count, at most."""
    max_seconds: float = 1.0
    """No further pass of a turn and shape begins after this time; one always runs."""
    seed: int = 0
    """Of the random token ids."""

    def __post_init__(self) -> None:
        expected = {
            "lengths of at least one token": self.lengths and min(self.lengths) >= 1,
            "batches of at least one text": self.batch_sizes and min(self.batch_sizes) >= 1,
            "at least one round": self.rounds >= 1,
            "at least one repeat": self.repeats >= 1,
            "a warm-up of 0 or more passes": self.warmup >= 0,
            "a number of seconds of 0 or more": 0 <= self.max_seconds < math.inf,
            "a seed from 0 to 2^63 - 1": 0 <= self.seed < 2**63,
        }
        wrong = [what for what, holds in expected.items() if not holds]
        if wrong:
            raise DataError(f"expected {' and '.join(wrong)}, got {self}")

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Lengths and batch sizes, ascending."""
        return tuple((length, size) for length in sorted({*self.lengths}) for size in sorted({*self.batch_sizes}))


@dataclass(slots=True)
class Readings:
    """What the rounds have shown of one layer so far."""

    seconds: dict[Shape, list[float]] = field(default_factory=dict)
    memory: dict[Shape, list[int | None]] = field(default_factory=dict)
    flops: dict[int, int] = field(default_factory=dict)
    """A text, by length."""


def profile_layers(
    encoder: Encoder,
    layers: Sequence[int],
    schedule: Schedule,
    *,
    pooling: Pooling = "mean",
    progress: Progress = silent,
) -> tuple[LayerProfile, ...]:
    """Return what the encoder truncated at each layer costs.

    Every round gives each layer one turn, back and forth, so that a machine that warms up or is shared treats all
    layers alike. In its turn a layer is a model of its own, the only truncated one in memory. A pass is the forward
    pass and the pooling of a batch that is on the device already, in the encoder's precision; tokenising is not in it.

    Args:
        encoder: A loaded encoder.
        layers: Layers to truncate at.
        schedule: Shapes, rounds and repeats.
        pooling: mean, cls, max or last.
        progress: Told the share of the turns that are done.

    Raises:
        DataError: If the model cannot read texts of one of the lengths.
        ModelError: If it has no such layer.
    """
    check_lengths(encoder, schedule.lengths)
    batches = {
        shape: random_batch(encoder, length=shape[0], batch_size=shape[1], seed=schedule.seed)
        for shape in schedule.shapes
    }
    _warm_up(encoder, batches)
    readings = {layer: Readings() for layer in sorted(set(layers))}
    turns = list(_turns(sorted(readings), schedule.rounds))
    # the embeddings cost a turn, too
    done, total = 0, sum(layer + 1 for layer in turns)
    for layer in turns:
        _take_turn(encoder, layer, batches, schedule, pooling, readings[layer])
        done += layer + 1
        progress(f"profiling {short_name(encoder.description.name)}", done, total)
    return tuple(_summary(encoder, layer, found) for layer, found in readings.items())


def _turns(layers: Sequence[int], rounds: int) -> Iterator[int]:
    for number in range(rounds):
        yield from layers if number % 2 == 0 else reversed(layers)


@torch.inference_mode()
def _warm_up(encoder: Encoder, batches: dict[Shape, Batch]) -> None:
    """Run the whole model once a shape: what libraries load and keep on first use belongs to no layer."""
    with encoder.precision():
        for batch in batches.values():
            encoder.model(**batch)


def _take_turn(
    encoder: Encoder,
    layer: int,
    batches: dict[Shape, Batch],
    schedule: Schedule,
    pooling: Pooling,
    readings: Readings,
) -> None:
    gc.collect()  # the model before this one, if its modules refer to each other
    gauge = gauge_for(encoder.device)
    model = TruncatedEncoder(encoder, layer)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    for shape, batch in batches.items():
        gauge.restart()
        list(_passes(encoder, model, batch, pooling, count=schedule.warmup, max_seconds=schedule.max_seconds))
        passes = _passes(encoder, model, batch, pooling, count=schedule.repeats, max_seconds=schedule.max_seconds)
        readings.seconds.setdefault(shape, []).extend(passes)
        peak = gauge.peak()
        # less than the weights: memory that was in use before was used again, so the rise says nothing
        readings.memory.setdefault(shape, []).append(None if peak is None or peak < weights else peak)
    for (length, _), batch in batches.items():
        if length not in readings.flops:
            readings.flops[length] = count_flops(model, {name: values[:1] for name, values in batch.items()})


def _passes(
    encoder: Encoder, model: TruncatedEncoder, batch: Batch, pooling: Pooling, *, count: int, max_seconds: float
) -> Iterator[float]:
    """Yield the seconds of up to `count` passes, the last of which begins before they sum to `max_seconds`."""
    total = 0.0
    for number in range(count):
        if number and total >= max_seconds:
            return
        seconds = _timed_pass(encoder, model, batch, pooling)
        total += seconds
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


def _summary(encoder: Encoder, layer: int, readings: Readings) -> LayerProfile:
    return LayerProfile(
        layer=layer,
        parameters=encoder.description.parameters[layer],
        costs=tuple(_cost(shape, readings) for shape in readings.seconds),
    )


def _cost(shape: Shape, readings: Readings) -> Cost:
    low, middle, high = np.quantile(readings.seconds[shape], QUANTILES).tolist()
    peaks = [peak for peak in readings.memory[shape] if peak is not None]
    return Cost(
        length=shape[0],
        batch_size=shape[1],
        flops=readings.flops[shape[0]],
        seconds=middle,
        seconds_low=low,
        seconds_high=high,
        repeats=len(readings.seconds[shape]),
        peak_memory=median_low(peaks) if peaks else None,
    )
