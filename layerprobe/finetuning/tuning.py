"""Fine-tuning of models on tasks at many layers with many seeds, scans, and estimates of their cost.

Finished runs are reused. The cost is counted in block-steps: a run at layer l costs l + 1, a scan as much as a run at
the last layer.
"""

import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from layerprobe.checks import Seeds, check_choice, check_seeds, layer_numbers
from layerprobe.context import current, duration
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.batching import token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.identity import ModelLike, Resolved, check_different, resolve, resolve_all
from layerprobe.encoders.loading import SharedModel, choose_workers, load
from layerprobe.errors import DataError, LayerProbeError, LostWorkerError
from layerprobe.finetuning.losses import criterion_of
from layerprobe.finetuning.outcomes import compared, not_trained, outcomes, run_items
from layerprobe.finetuning.runs import RunJob, RunSet, RunWorker, agreed, log_reading, run_set, runs_plan, with_prompts
from layerprobe.finetuning.step import EVALUATION_BATCH_TOKENS, FineTuner, prepare_model, read_layers
from layerprobe.finetuning.values import FineTuningRun, LayerOutcome, Protocol, Runs, TuningResult, Weighting
from layerprobe.jobs.crew import Workers, execute, make_crew
from layerprobe.names import counted, short_name
from layerprobe.results.shown import BUSY, Estimate, Layers
from layerprobe.rng import plain_torch, seeded
from layerprobe.stats.values import TOLERANCE, AgainstBest, Floor, ItemInfluences
from layerprobe.store.store import Store
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task

logger = logging.getLogger(__name__)

PAPER_SEEDS = (0, 1, 2, 3, 4)


def finetune(
    model: ModelLike | list[Any],
    task: Task | list[Task],
    layers: Layers = "all",
    *,
    seeds: Seeds | None = None,
    protocol: Protocol | None = None,
    scan: bool = False,
    weighting: Weighting = "falling",
    blocks: Sequence[Sequence[int]] = (),
    save_models: bool = False,
    retry_failed: bool = False,
    tolerance: float = TOLERANCE,
    workers: int | None = None,
    ray: str | None = None,
) -> TuningResult:
    """Fine-tune models truncated at layers on tasks, once per seed; finished runs are reused.

    There is one run per model, task, layer and seed, with 0 .. n_blocks blocks kept, by the paper's protocol unless
    another is given. A model's own pooling and length take precedence over the protocol's; all other settings are the
    model's. Test scores are compared with the best of all layers of a model on a task.

    A run that fails is marked and left out, and the others continue; a run that another process holds is postponed, so
    that several processes share the work; a run whose process was killed is started once more. A run that did not train
    is named in a warning, and stays in the mean of its layer. If no run finishes, the first failure is raised.

    With `scan`, one run per seed trains the whole model with a loss at every layer: a curve over layers for the price
    of one run. It shows which layers are worth truncating at; its scores are not those of TMFT, see `fine_tune`.

    Args:
        model: A name, a folder or a `Model`; or a list of different ones.
        task: The task to fine-tune on, or a list of tasks.
        layers: Numbers (negative ones count from the last layer), a text such as 3,6,9-12 or all, or results that
            choose a layer, such as a prediction or a finding.
        seeds: Number of seeds, or a list of them; by default five, and one with `scan`.
        protocol: Settings of fine-tuning; those of the paper by default.
        scan: Whether to make one run per seed with a loss at every layer.
        weighting: Weights of the layers' losses in a scan.
        blocks: Sets of blocks to keep instead of the first ones, from 1, such as [(1, 3, 5)]: compared with the layers.
        save_models: Whether to keep the best epoch's checkpoint of every run in `model/` of its directory, for
            `export_model` (a scan needs a layer); a finished run without one is repeated, with the same numbers.
        retry_failed: Whether to repeat runs that are marked as failed.
        tolerance: Loss that you accept for a smaller model, in points of the primary metric x 100.
        workers: Number of parallel runs, in processes that import the calling script: call this under
            `if __name__ == "__main__":`. By default one, in this process; with `ray` one per GPU, or per node.
        ray: Address of a Ray cluster to make the runs on; all nodes must see the folder of the runs, and a node that
            fails alone is left out.

    Raises:
        ModelError: If a model cannot be loaded, or a layer has no checkpoint to save.
        DataError: If `task` is not a task, a model has no such layer, or there are no layers or seeds.
        TrainingError: If every run fails.
        StoreError: If a result cannot be written.
    """
    check_choice(weighting, Weighting, name="weighting")
    models = model if isinstance(model, list) else [model]
    tasks = [checked_task(one) for one in (task if isinstance(task, list) else [task])]
    if not models or not tasks:
        raise DataError(f"expected at least one model and one task, got {len(models)} and {len(tasks)}")
    every = isinstance(layers, str) and layers == "all"  # an array is compared by element
    if scan and (blocks or not every):
        raise DataError("expected neither layers nor blocks with a scan, which has a loss at every layer")
    numbers = list(dict.fromkeys(check_seeds(seeds if seeds is not None else (0,) if scan else PAPER_SEEDS)))
    resolved = {readable: resolve_all(models, items=readable) for readable in {one.readable for one in tasks}}
    for checkpoints in resolved.values():
        check_different(checkpoints)
    options = resolved[tasks[0].readable][0].asked
    machines = choose_workers(
        options,
        Store(options.cache_dir).root,
        count=workers,
        ray=ray,
        local="here" if workers in (None, 1) else "processes",
    )
    work = _Work(machines)
    how: dict[str, Any] = {"weighting": weighting, "save_models": save_models, "retry_failed": retry_failed}
    for i, (one, name) in itertools.product(range(len(models)), zip(tasks, _distinct(tasks), strict=True)):
        agreed_protocol, checkpoint = agreed(protocol, resolved[one.readable][i])
        chosen = [count_blocks(checkpoint.config)] if scan else check_layers(checkpoint, layers)
        if not chosen and not blocks:
            raise DataError(f"expected layers of {checkpoint.label} to fine-tune, got none")
        label = checkpoint.label
        kept = [tuple(choice) for choice in blocks]
        for cut, jobs in ((None, chosen), *((choice, [len(choice)]) for choice in kept)):
            shared = SharedModel(
                checkpoint if cut is None else checkpoint.with_blocks(cut), items=one.readable, workers=machines
            )
            runs = run_set(shared, one, agreed_protocol, **how)
            work.add(runs, {"model": label, "task": name, "blocks": cut}, jobs, numbers, scan=scan)
    work.run()
    return work.result(dict(zip(_distinct(tasks), tasks, strict=True)), tolerance=tolerance)


class _Work:
    """The runs of some models on some tasks, and their outcomes."""

    def __init__(self, machines: Workers) -> None:
        self.machines = machines
        self.sets: list[RunSet] = []
        self.names: list[dict[str, Any]] = []
        """Model, task and blocks of each set, as fields of a run."""
        self.costs: dict[RunJob, float] = {}
        self.runs: dict[RunJob, Runs] = {}
        """Finished runs."""
        self.failures: dict[RunJob, LayerProbeError] = {}

    def add(
        self, runs: RunSet, names: dict[str, Any], layers: Sequence[int], seeds: Sequence[int], *, scan: bool
    ) -> None:
        """Add the runs of a set."""
        for other, other_names in zip(self.sets, self.names, strict=True):
            if other.folder == runs.folder:  # every run would count twice
                pairs = f"{other_names['model']} on {other_names['task']} and {names['model']} on {names['task']}"
                raise DataError(f"expected each model and task once, got {pairs}, which have the same runs")
        # one block costs about as much as the rest of a step
        width = getattr(runs.model.checkpoint.config, "hidden_size", None) or 1
        size = width**2 * sum(len(text) + 1 for side in runs.task.train.sides for text in side)
        for seed, layer in itertools.product(seeds, layers):
            self.costs[RunJob(layer, seed, len(self.sets), scan=scan)] = (layer + 1.0) * size
        self.sets.append(runs)
        self.names.append(names)

    def run(self) -> None:
        """Make the runs, or read finished ones."""
        with make_crew(RunWorker, tuple(self.sets), self.machines, most=len(self.costs)) as crew:
            for job, outcome in execute(runs_plan(self.sets, self.costs), crew):
                self._take(job, outcome)
        if not self.runs:
            raise next(iter(self.failures.values()))

    def _take(self, job: RunJob, outcome: Runs | LayerProbeError) -> None:
        if isinstance(outcome, LostWorkerError):
            # its process may have been lost after writing the result, or another one made it
            outcome = self.sets[job.of].read(job) or outcome
        if not isinstance(outcome, LayerProbeError):
            self.runs[job] = outcome
            if not job.scan and (why := not_trained(outcome[0], self.sets[job.of].task)):
                (run,) = self._rows(job)
                logger.warning("%s did not train: %s; it stays in the mean of its layer", run.label, why)
            return
        self.failures[job] = outcome
        if len(self.costs) > 1:
            (failed,) = self._rows(job)
            logger.warning("%s failed: %s", failed.label, outcome)

    def rows(self) -> list[FineTuningRun]:
        """Return all runs so far."""
        return [run for job in self.costs if job in self.runs or job in self.failures for run in self._rows(job)]

    def _rows(self, job: RunJob) -> Runs:
        if job in self.runs:
            return tuple(replace(run, **self.names[job.of]) for run in self.runs[job])
        runs = self.sets[job.of]
        failed = FineTuningRun(
            layer=job.layer,
            seed=job.seed,
            protocol=runs.protocol,
            parameters=0,
            primary=runs.task.primary,
            best_epoch=0,
            validation={},
            test={},
            epochs=(),
            seconds=0.0,
            peak_memory=None,
            weighting=runs.weighting if job.scan else None,
            error=str(self.failures[job]),
            **self.names[job.of],
        )
        return (failed,)

    def result(self, tasks: Mapping[str, Task], *, tolerance: float) -> TuningResult:
        """Return the result of the runs."""
        level = current().level
        rows = self.rows()
        by_layer: list[LayerOutcome] = []
        floors: list[Floor | None] = []
        against: list[AgainstBest | None] = []
        for model, name in dict.fromkeys((run.model, run.task) for run in rows if not run.error):
            task = tasks[name]
            runs = [run for run in rows if (run.model, run.task, run.error) == (model, name, "")]
            items = run_items(task, runs)
            floor = KINDS[task.kind].floors(task.test).get(task.primary)
            curve = outcomes(runs, items, level=level)
            by_layer += curve
            floors.append(floor)
            against.append(compared(runs, curve, items, level=level, tolerance=tolerance, floor=floor))
        influences = None
        if len(floors) == 1:
            of_first_blocks = sorted((run for run in runs if not run.blocks), key=lambda run: run.key)
            influences = ItemInfluences.of(
                items.of(of_first_blocks), digest=task.items_digest("test"), links=items.links["test"]
            )
        return TuningResult(
            level=level,
            runs=tuple(rows),
            outcomes=tuple(by_layer),
            floors=tuple(floors),
            compared=tuple(against),
            influences=influences,
        )


def _distinct(tasks: Sequence[Task]) -> list[str]:
    """Return the names of tasks; equal names get numbers."""
    names = [task.name for task in tasks]
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]


def check_layers(checkpoint: Resolved, layers: object) -> list[int]:
    """Return layers of a model, given as `all` or for `layer_numbers`; raise DataError if it has no such layer."""
    n_blocks = count_blocks(checkpoint.config)
    every = isinstance(layers, str) and layers == "all"  # an array is compared by element
    return list(range(n_blocks + 1)) if every else layer_numbers(layers, n_blocks, of=checkpoint.label)


STEPS, TEXTS = 3, 64
"""Timed training steps, after one to warm up, and texts embedded for evaluation."""


def plan_tuning(
    model: ModelLike,
    task: Task,
    *,
    block_steps: Callable[[int], float],
    seeds: int = len(PAPER_SEEDS),
    protocol: Protocol | None = None,
) -> Estimate:
    """Estimate the time of runs by timing a few steps of the whole model on the task; writes nothing.

    Args:
        model: A name, a folder or a `Model`.
        task: The task to fine-tune on.
        block_steps: Function from the number of blocks to the largest number of block-steps of all runs.
        seeds: Number of seeds of the full sweep, for comparison.
        protocol: As in `finetune`.
    """
    task = checked_task(task)
    protocol, checkpoint = agreed(protocol, resolve(model, items=task.readable))
    options = checkpoint.asked
    encoder = load(checkpoint)
    prompted = with_prompts(task, checkpoint)
    n_blocks = encoder.n_layers - 1
    steps = block_steps(n_blocks)
    full = seeds * (n_blocks + 1) * (n_blocks + 2) // 2
    log_reading(checkpoint, encoder, prompted, protocol)
    run_seconds, slower = seconds_of_run(encoder, prompted, protocol, batch_tokens=options.batch_tokens)
    sweep = duration(run_seconds * full / (n_blocks + 1))
    train, validation, test = sizes = (len(task.train), len(task.validation), len(task.test))
    return Estimate(
        title=f"Fine-tuning {short_name(checkpoint.name)} ({n_blocks} blocks)",
        seconds=run_seconds * steps / (n_blocks + 1),
        load=slower,
        computed_on=f"{checkpoint.computed_on}, {100 * steps / full:.0f} % of a full sweep (every layer with "
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
def seconds_of_run(
    encoder: Encoder, task: Task, protocol: Protocol, *, batch_tokens: int | None = None
) -> tuple[float, float]:
    """Estimate the seconds of a fine-tuning run of the whole model on an idle machine, and the factor for its load.

    On a CPU, one thread is timed by the process's own clock, since threads wait for each other if other processes run;
    if it does not wait for a core, all threads are timed, too. The encoder is not changed.
    """
    model = TruncatedEncoder(encoder, encoder.n_layers - 1)
    device = encoder.device
    prepare_model(model, protocol)
    with seeded(0, device):
        criterion = criterion_of(task, width=encoder.description.hidden_size).to(device)
        n = (1 + STEPS) * protocol.batch_size
        some = task.train.take(range(len(task.train))[:: max(1, len(task.train) // n)][:n])
        examples = criterion.prepare(encoder, some, max_length=protocol.max_length)
        examples_an_item = len(examples) / len(some)
        tuner = FineTuner(
            encoder, model, protocol, steps_per_epoch=1 + STEPS, criteria=[criterion], batch_tokens=batch_tokens
        )
        rows = np.arange(len(examples))[:n]
        batches = np.array_split(rows, max(1, min(1 + STEPS, len(rows))))
        texts = task.validation.texts
        tokens = encoder.tokenize(texts[:: max(1, len(texts) // TEXTS)][:TEXTS], max_length=protocol.max_length)
        budget = batch_tokens or EVALUATION_BATCH_TOKENS
        same_length = not encoder.padding_invariant
        passes = list(token_batches(tokens.lengths, budget=budget, same_length=same_length))
        evaluated = protocol.epochs * protocol.evaluations * len(texts) + len(task.test.texts)

        def evaluate() -> None:
            for batch in passes:
                read_layers(encoder, model, tokens, batch, [criterion.read], protocol.pooling)

        def timed(threads: int) -> list[float]:
            """Return the seconds of a run by the process's clock (GPU: the wall clock), and by the wall clock."""
            torch.set_num_threads(threads)
            model.train(protocol.dropout)
            taken = [_seconds(functools.partial(tuner.update, examples, batch), device) for batch in batches]
            model.eval()
            with torch.inference_mode():
                embedding = zip(*(_seconds(evaluate, device) for _ in range(2)), strict=True)
            runs = []
            for steps, of_texts in zip(zip(*taken, strict=True), embedding, strict=True):
                by_example = [one / len(batch) for one, batch in zip(steps, batches, strict=True)]
                # the first time includes allocating memory
                trained = protocol.epochs * len(task.train) * examples_an_item * median(by_example[1:] or by_example)
                runs.append(trained + evaluated * min(of_texts) / len(tokens.lengths))
            return runs

        threads = torch.get_num_threads()
        try:
            cpu, wall = timed(1)
            if threads > 1 and wall < BUSY * cpu:
                wall = timed(threads)[1]
                cpu = min(cpu, wall)
        finally:
            torch.set_num_threads(threads)
    return cpu, wall / cpu if cpu else 1.0


def _seconds(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    began = clock(), time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - began[0], time.perf_counter() - began[1]
