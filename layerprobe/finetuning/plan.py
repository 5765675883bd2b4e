"""What fine-tuning is about to cost, from a few steps whose weights are thrown away. Knows a task and a number of runs.

Runs are counted in block-steps: one at layer l costs l + 1, a scan as much as one at the last layer.
"""

import functools
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from layerprobe.encoders.batching import token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.encoders.options import computed_on, load
from layerprobe.finetuning.adapters import prepare_model
from layerprobe.finetuning.losses import criterion_of
from layerprobe.finetuning.tmft import EVALUATION_BATCH_TOKENS, FineTuner, read_layers
from layerprobe.finetuning.tuning import PAPER_SEEDS, agreed, with_prompts
from layerprobe.finetuning.values import Protocol
from layerprobe.modes import plain_torch
from layerprobe.names import counted, short_name
from layerprobe.progress import duration
from layerprobe.results.estimate import Estimate
from layerprobe.rng import seeded
from layerprobe.tasks.overlaps import checked_task
from layerprobe.tasks.values import Items, Task

STEPS, TEXTS = 3, 64
"""Of training, after one to warm up, and texts that are embedded for evaluation."""


def plan_tuning(
    model: ModelLike,
    task: Task,
    *,
    block_steps: Callable[[int], float],
    seeds: int = len(PAPER_SEEDS),
    protocol: Protocol | None = None,
) -> Estimate:
    """Time a few steps of the whole model on the task, and say what runs of so many block-steps take; writes nothing.

    Args:
        model: A name, a folder, or a `Model`.
        task: What to learn.
        block_steps: Number of blocks -> block-steps of all runs, at most.
        seeds: Of the full sweep that it is compared with.
        protocol: As for `finetune`.
    """
    task = checked_task(task)
    protocol, checkpoint = agreed(protocol, resolve_checkpoint(model, items=task.readable))
    options = checkpoint.settled
    encoder = load(checkpoint)
    prompted, n_blocks = with_prompts(task, options), encoder.n_layers - 1
    steps, full = block_steps(n_blocks), seeds * (n_blocks + 1) * (n_blocks + 2) // 2
    run_seconds = seconds_of_run(encoder, prompted, protocol, batch_tokens=options.batch_tokens)
    sweep = duration(run_seconds * full / (n_blocks + 1))
    train, validation, test = sizes = (len(task.train), len(task.validation), len(task.test))
    return Estimate(
        title=f"Fine-tuning {short_name(checkpoint.name)} ({n_blocks} blocks)",
        seconds=run_seconds * steps / (n_blocks + 1),
        computed_on=f"{computed_on(options)}, {steps / full:.0%} of a full sweep (every layer with "
        f"{counted(seeds, 'seed')}, about {sweep})",
        details=(
            f"Each run is {counted(protocol.epochs, 'epoch')} of {train:,} examples ({validation:,} for validation, "
            f"{test:,} for the test).",
        ),
        numbers={
            "model": checkpoint.name,
            "n_blocks": n_blocks,
            "protocol": protocol,
            "n_examples": sizes,
            "block_steps": steps,
            "full_sweep": full,
            "seeds": seeds,
            "run_seconds": run_seconds,
            "computed_on": computed_on(options),
        },
    )


@plain_torch()
def seconds_of_run(encoder: Encoder, task: Task, protocol: Protocol, *, batch_tokens: int | None = None) -> float:
    """Estimate how long one fine-tuning run of the whole model takes; the encoder is not changed."""
    model = TruncatedEncoder(encoder, encoder.n_layers - 1)
    prepare_model(model, protocol)
    with seeded(0, encoder.device):
        criterion = criterion_of(task, width=encoder.description.hidden_size).to(encoder.device)
        some = _some(task.train, (1 + STEPS) * protocol.batch_size)
        examples = criterion.prepare(encoder, some, max_length=protocol.max_length)
        examples_an_item = len(examples) / len(some)
        tuner = FineTuner(
            encoder, model, protocol, steps_per_epoch=1 + STEPS, criteria=[criterion], batch_tokens=batch_tokens
        )
        rows = np.arange(len(examples))[: (1 + STEPS) * protocol.batch_size]
        batches = np.array_split(rows, max(1, min(1 + STEPS, len(rows))))
        model.train(protocol.dropout)
        taken = [
            _seconds(functools.partial(tuner.update, examples, batch), encoder.device) / len(batch) for batch in batches
        ]
    model.eval()
    texts = task.validation.texts
    tokens = encoder.tokenize(texts[:: max(1, len(texts) // TEXTS)][:TEXTS], max_length=protocol.max_length)
    budget, same_length = batch_tokens or EVALUATION_BATCH_TOKENS, not encoder.padding_invariant
    passes = list(token_batches(tokens.lengths, budget=budget, same_length=same_length))

    def evaluate() -> None:
        for batch in passes:
            read_layers(encoder, model, tokens, batch, [criterion.read], protocol.pooling)

    with torch.inference_mode():
        embedding = [_seconds(evaluate, encoder.device) for _ in range(2)]
    # the first time, memory is found
    an_example, a_text = median(taken[1:] or taken), min(embedding) / len(tokens.lengths)
    evaluated = protocol.epochs * protocol.evaluations * len(task.validation.texts) + len(task.test.texts)
    return protocol.epochs * len(task.train) * examples_an_item * an_example + evaluated * a_text


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _some(examples: Items, n: int) -> Items:
    chosen = range(len(examples))[:: max(1, len(examples) // n)][:n]
    return examples.take(chosen)
