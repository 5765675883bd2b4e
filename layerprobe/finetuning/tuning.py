"""Fine-tuning at many layers with many seeds, scans of all layers, and what they are about to cost.

Finished runs are read. The cost is counted in block-steps: a run at layer l costs l + 1, a scan as much as one at the
last layer.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
import torch

from layerprobe.checks import Seeds, as_layers, check_choice, check_seeds, settings_or_default
from layerprobe.context import current, duration
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.batching import token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import ModelLike, Resolved, resolve
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.encoders.workers import SharedModel, workers_of
from layerprobe.errors import DataError
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.adapters import prepare_model
from layerprobe.finetuning.losses import criterion_of
from layerprobe.finetuning.outcomes import compared, outcomes
from layerprobe.finetuning.outputs import RunItems, run_items
from layerprobe.finetuning.runs import RunFolder, RunJob, RunSet, RunWorker, fine_tune_layers, runs_plan
from layerprobe.finetuning.saved import directory_name
from layerprobe.finetuning.tmft import EVALUATION_BATCH_TOKENS, FineTuner, read_layers
from layerprobe.finetuning.values import FineTuningRun, JointRun, Protocol, R, RunsOrigin, TuningResult, Weighting
from layerprobe.jobs.crew import crew_of
from layerprobe.jobs.execute import results
from layerprobe.names import counted, short_name
from layerprobe.results.estimate import Estimate
from layerprobe.rng import plain_torch, seeded
from layerprobe.stats.values import TOLERANCE
from layerprobe.store.store import Store
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Items, Task

PAPER_SEEDS = (0, 1, 2, 3, 4)


def finetune(
    model: ModelLike,
    task: Task,
    layers: object,
    *,
    seeds: Seeds = PAPER_SEEDS,
    protocol: Protocol | None = None,
    enough: Callable[[Sequence[FineTuningRun]], bool] | None = None,
    save_models: bool = False,
    tolerance: float = TOLERANCE,
) -> TuningResult[FineTuningRun]:
    """Fine-tune the model truncated at each layer, once a seed; finished runs are read, not repeated.

    There is a run a seed and layer, of 0 .. n_blocks kept blocks, by the paper's protocol unless another is given. The
    layers are numbers, a text such as 3,6,9-12 or all, or results that choose one, such as a prediction or a finding;
    seeds are how many, or which.
    Pooling and length are those that the model was given or, where it was given none, the protocol's, all else is the
    model's. After each seed `enough` is asked, given all runs so far, whether no further one is needed. With
    `save_models` the best epoch's checkpoint of every run is kept, see `saved_models`; a finished run without one is
    made again, with the same numbers. Test scores are compared with the best of all layers; the smallest layer that is
    shown to be within `tolerance` points of it is enough.

    Raises:
        ModelError: If the model cannot be loaded, or a layer has no checkpoint to save.
        DataError: If it is no task, the model has no such layer, or there are no layers or seeds.
        TrainingError: If a run fails.
        StoreError: If a result cannot be written.
    """
    task = checked_task(task)
    seeds = check_seeds(seeds)
    protocol, checkpoint = agreed(protocol, resolve(model, items=task.readable))
    runs = run_set(SharedModel(checkpoint, items=task.readable), task, protocol, save_models=save_models)
    chosen = check_layers(checkpoint, layers)
    if not chosen:
        raise DataError(f"expected layers of {checkpoint.label} to fine-tune, got none")
    made = fine_tune_layers(runs, chosen, seeds=seeds, enough=enough)
    of_layers = [(run, runs.folder.path / directory_name(run)) for run in made]
    return _result(checkpoint, task, made, of_layers, tolerance)


def scan(
    model: ModelLike,
    task: Task,
    *,
    seeds: Seeds = (0,),
    weighting: Weighting = "falling",
    protocol: Protocol | None = None,
    save_models: bool = False,
    ray: str | None = None,
    workers: int | None = None,
    tolerance: float = TOLERANCE,
) -> TuningResult[JointRun]:
    """Fine-tune the whole model with a loss at every layer, once a seed: a curve over layers for the price of one run.

    The curve says which layers are worth truncating at; it is not TMFT's own, see `fine_tune_jointly`. With
    `save_models` the best epoch's model is kept, which `export_model` truncates at any layer, see `saved_models`.
    With `ray`, the address of a Ray cluster, the seeds are run on its nodes, at most `workers` at a time; all must see
    the folder of the runs, and a node that fails alone is left out.
    The other arguments are those of `finetune`; finished runs are read, not repeated.

    Raises:
        LayerProbeError: As `finetune`.
    """
    task = checked_task(task)
    check_choice(weighting, Weighting, name="weighting")
    protocol, checkpoint = agreed(protocol, resolve(model, items=task.readable))
    options = checkpoint.asked
    machines = workers_of(options, Store(options.cache_dir).root, count=workers, ray=ray)
    shared = SharedModel(checkpoint, items=task.readable, workers=machines)
    runs = run_set(shared, task, protocol, weighting=weighting, save_models=save_models)
    last = count_blocks(checkpoint.config)
    jobs = {RunJob(last, seed, scan=True): 1.0 for seed in check_seeds(seeds)}
    with crew_of(RunWorker, (runs,), machines, most=len(jobs)) as crew:
        made = cast(list[JointRun], [*results(runs_plan((runs,), jobs, unit="seeds"), crew).values()])
    of_layers = [
        (run.truncated(layer), runs.folder.path / directory_name(run))
        for run in made
        for layer, test in enumerate(run.test)
        if test is not None
    ]
    return _result(checkpoint, task, made, of_layers, tolerance)


def _result(
    checkpoint: Resolved,
    task: Task,
    runs: Sequence[R],
    of_layers: Sequence[tuple[FineTuningRun, Path]],
    tolerance: float,
) -> TuningResult[R]:
    """Put runs together with what they, and their directories, say of each layer."""
    level, items, single = current().level, run_items(task, of_layers), [run for run, _ in of_layers]
    by_layer, floor = outcomes(single, items, level=level), KINDS[task.kind].floors(task.test).get(task.primary)
    return TuningResult(
        model=checkpoint.label,
        task=task.name,
        level=level,
        runs=tuple(runs),
        outcomes=by_layer,
        floor=floor,
        compared=compared(single, by_layer, items, level=level, tolerance=tolerance, floor=floor),
    )


def run_set(
    model: SharedModel,
    task: Task,
    protocol: Protocol,
    *,
    weighting: Weighting = "falling",
    save_models: bool = False,
    retry_failed: bool = False,
) -> RunSet:
    """Return the runs of a model on a task, where `finetune` and `scan` keep them; for the protocol see `agreed`."""
    prompted = with_prompts(task, model.checkpoint)
    return RunSet(
        model=model,
        folder=run_folder(model.checkpoint, task, protocol),
        task=prompted,
        protocol=protocol,
        weighting=weighting,
        save_models=save_models,
        retry_failed=retry_failed,
    )


def saved_models(model: ModelLike, runs: Sequence[FineTuningRun | JointRun], task: Task) -> list[Path]:
    """Return the directory of every run that `finetune` or `scan` made with the same arguments.

    The checkpoint is `model` in it; `export_model` takes such a directory.
    """
    task, checkpoint = checked_task(task), resolve(model, items=task.readable)
    folders = {run.protocol: run_folder(checkpoint, task, run.protocol) for run in runs}
    return [folders[run.protocol].path / directory_name(run) for run in runs]


def items_of(
    model: ModelLike, runs: Sequence[FineTuningRun], task: Task, *, groups: Mapping[str, str] | None = None
) -> RunItems:
    """Return what each item adds to the scores of runs that `finetune` made with the same arguments.

    With it, `outcomes` and `confirmation` know the error over items; for groups see `run_items`.

    Raises:
        StoreError: If the disk does not let outputs be read.
    """
    task, directories = checked_task(task), saved_models(model, runs, task)
    return run_items(task, zip(runs, directories, strict=True), groups=groups)


def run_folder(checkpoint: Resolved, task: Task, protocol: Protocol) -> RunFolder:
    """Return the folder in which `finetune` keeps its runs, with what they are of."""
    options = checkpoint.asked
    origin = RunsOrigin(
        model=options.like(DEFAULTS),
        model_digest=digest(checkpoint.identity),
        task=task.name,
        task_digest=task.digest,
        prompt=checkpoint.prompt,
    )
    return RunFolder.of(
        Store(options.cache_dir).root,
        checkpoint,
        with_prompts(task, checkpoint),
        protocol,
        computed_on=checkpoint.computed_on,
        batch_tokens=options.batch_tokens,
        attn=options.attn,
        origin=origin,
    )


def agreed(protocol: Protocol | None, checkpoint: Resolved) -> tuple[Protocol, Resolved]:
    """Return the protocol, the paper's by default, and the model; extraction and fine-tuning pool alike.

    A protocol that is left at its default, the mean or 128 tokens, says nothing. Where neither says how to pool, the
    model's configuration does: see `Resolved.pooling`.

    Raises:
        DataError: If they say different things, it is no protocol, or the model is to compute in float16.
    """
    chosen = settings_or_default(protocol, Protocol)
    check_precision(checkpoint.asked)
    checkpoint = pooled_by(protocol, checkpoint)
    length = _max_length(chosen, checkpoint.asked)
    return replace(chosen, pooling=checkpoint.pooling, max_length=length), checkpoint


def _max_length(protocol: Protocol, options: Model) -> int:
    """Return at how many tokens texts are cut in fine-tuning; DataError if the options say another length."""
    limit, length = options.max_length, protocol.max_length
    if length == Protocol().max_length:
        return limit or length
    if limit not in (None, length):
        raise DataError(f"expected one maximum length, got {limit} of the model and {length} of the protocol")
    return length


def pooled_by(protocol: Protocol | None, checkpoint: Resolved) -> Resolved:
    """Return a model that pools as the protocol, where it says nothing itself; DataError if it says another way."""
    if protocol is None or protocol.pooling == Protocol().pooling:
        return checkpoint
    check_pooling(protocol, checkpoint.asked)
    return checkpoint.with_options(pooling=protocol.pooling)


def check_pooling(protocol: Protocol, options: Model) -> None:
    """Raise DataError if options say another way of pooling than the protocol."""
    stated, pooling = options.pooling, protocol.pooling
    if stated not in (None, pooling):
        raise DataError(f"expected one way of pooling, got {stated} of the model and {pooling} of the protocol")


def check_precision(options: Model) -> None:
    """Raise DataError for float16, in which small gradients vanish."""
    if options.dtype == "float16":
        raise DataError("expected float32 or bfloat16 to fine-tune in, got float16, whose small gradients vanish")


def check_layers(checkpoint: Resolved, layers: object) -> list[int]:
    """Return layers of a model, `all` or as `as_layers` takes them; raise DataError if it has no such layer."""
    n_blocks = count_blocks(checkpoint.config)
    every = isinstance(layers, str) and layers == "all"  # an array is compared by element
    chosen = list(range(n_blocks + 1)) if every else as_layers(layers)
    if wrong := [str(layer) for layer in chosen if not 0 <= layer <= n_blocks]:
        raise DataError(f"expected layers from 0 to {n_blocks} of {checkpoint.label}, got {', '.join(wrong)}")
    return chosen


def with_prompts(task: Task, model: Resolved) -> Task:
    """Return the task with the prompt before every text, or those of queries and documents, as extraction has it."""
    splits = task.train, task.validation, task.test
    if task.train.prompts is not None:
        train, validation, test = (part.with_prompts(*model.retrieval_prompts) for part in splits)
    elif model.prompt:
        train, validation, test = (part.prompted(model.prompt) for part in splits)
    else:
        return task
    return replace(task, train=train, validation=validation, test=test)


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
    protocol, checkpoint = agreed(protocol, resolve(model, items=task.readable))
    options = checkpoint.asked
    encoder = load(checkpoint)
    prompted, n_blocks = with_prompts(task, checkpoint), encoder.n_layers - 1
    steps, full = block_steps(n_blocks), seeds * (n_blocks + 1) * (n_blocks + 2) // 2
    run_seconds = seconds_of_run(encoder, prompted, protocol, batch_tokens=options.batch_tokens)
    sweep = duration(run_seconds * full / (n_blocks + 1))
    train, validation, test = sizes = (len(task.train), len(task.validation), len(task.test))
    return Estimate(
        title=f"Fine-tuning {short_name(checkpoint.name)} ({n_blocks} blocks)",
        seconds=run_seconds * steps / (n_blocks + 1),
        computed_on=f"{checkpoint.computed_on}, {steps / full:.0%} of a full sweep (every layer with "
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
            "computed_on": checkpoint.computed_on,
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
