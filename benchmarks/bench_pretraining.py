"""The pretraining loop's tokens a second, against the bare forward and backward pass of the same models.

Side by side in one process, on the same batches of the embedded language, masked beforehand for the bare way:

    loop  `Trainer.advance`: batches, masks, schedule, forward, backward, clipping, AdamW, checks, bookkeeping
    bare  forward and backward alone

Prints tokens per second without padding, and the ratio, for every objective; on a CPU seconds are processor time of
one thread. Every round runs both ways, every second
one in reverse; the median counts. On CUDA both compute in bfloat16 autocast; --device cpu for a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from layerprobe.embedded import Language
from layerprobe.encoders.device import autocast_dtype, resolve_device
from layerprobe.lab.pretraining.loop import Trainer
from layerprobe.lab.pretraining.masking import MaskedBatch
from layerprobe.lab.pretraining.models import word_tokenizer
from layerprobe.lab.pretraining.run import prepare
from layerprobe.lab.pretraining.values import OBJECTIVES, SIZES, PretrainingProtocol


def bare(trainer: Trainer, batches: list[tuple[MaskedBatch, dict[str, int]]]) -> None:
    """Go forward and backward on masked batches."""
    trainer.objective.train()
    for batch, counts in batches:
        trainer.optimizer.zero_grad()
        trainer.weighted(trainer.part_losses(batch), counts).backward()


def advance(trainer: Trainer, steps: int) -> None:
    """Take some steps."""
    for _ in range(steps):
        trainer.advance()


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return how long `work` takes: processor time, which other work on the machine leaves alone, or a device's."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    start = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


def one_round(trainer: Trainer, steps: int, *, reverse: bool) -> dict[str, float]:
    """Return the tokens a second of both ways on the steps to come."""
    batches = trainer.batches[trainer.step : trainer.step + steps]
    masked = [trainer.masked_batch(rows, torch.Generator().manual_seed(i)) for i, rows in enumerate(batches)]
    prepared = [(batch, trainer.objective.counts(batch)) for batch in masked]
    n_tokens = sum(batch.n_tokens for batch in masked)
    ways: dict[str, Callable[[], None]] = {
        "loop": partial(advance, trainer, steps),
        "bare": partial(bare, trainer, prepared),
    }
    order = reversed(ways) if reverse else iter(ways)
    return {name: n_tokens / seconds(ways[name], trainer.device) for name in order}


def main(given: Sequence[str] | None = None) -> None:
    """Print a line an objective."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", choices=SIZES, default="mini")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="steps a round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(given)
    device = resolve_device(arguments.device)
    autocast = autocast_dtype("auto", device) if device.type == "cuda" else None
    if device.type == "cpu":
        torch.set_num_threads(1)
    language = Language(seed=0)
    tokenizer = word_tokenizer(language, max_length=64)
    n_texts = arguments.steps * arguments.batch_size * (arguments.rounds + 1) * 5 // 4
    texts = tuple(dict.fromkeys(language.sentences(n_texts, seed=0)))
    print(f"{arguments.size}, {arguments.batch_size} sequences a step, {device.type} {autocast or torch.float32}")
    print(f"{'objective':<15} {'loop':>9} {'bare':>9}  ratio   (tokens/s)")
    for objective in OBJECTIVES:
        protocol = PretrainingProtocol(
            objective=objective, size=SIZES[arguments.size], batch_size=arguments.batch_size, held_out=64, max_length=64
        )
        _, trainer, _ = prepare(texts, tokenizer, protocol, seed=0, device=device, autocast=autocast)
        if trainer is None:
            continue
        trainer.advance()
        rounds = [one_round(trainer, arguments.steps, reverse=i % 2 == 1) for i in range(arguments.rounds)]
        loop, plain = (statistics.median(speeds[name] for speeds in rounds) for name in ("loop", "bare"))
        ratio = statistics.median(speeds["loop"] / speeds["bare"] for speeds in rounds)
        print(f"{objective:<15} {loop:>9,.0f} {plain:>9,.0f}  {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
