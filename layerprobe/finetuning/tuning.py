"""Fine-tuning at many layers with many seeds, and what it says of a prediction; finished runs are read."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Literal

import torch

from layerprobe.checks import check_seeds
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options, Settled, computed_on, load, settled
from layerprobe.encoders.spec import ModelSpec
from layerprobe.encoders.workers import check_computes, on_ray, ray_cluster, same_model
from layerprobe.errors import DataError, LayerProbeError, StoreError, TrainingError, WorkerError
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.items import RunItems, run_items
from layerprobe.finetuning.runs import RunFolder, fine_tune_layers, load_or_run_jointly, loaded_once
from layerprobe.finetuning.values import FineTuningRun, JointRun, Protocol, RunsOrigin, Weighting
from layerprobe.jobs.processes import Lost
from layerprobe.jobs.ray_cluster import ray_pooled
from layerprobe.progress import Progress, notebook_bar, part_of, silent
from layerprobe.store.store import Store
from layerprobe.tasks.values import Task, check_task

logger = logging.getLogger(__name__)

PAPER_SEEDS = (0, 1, 2, 3, 4)


def finetune(
    model: ModelLike,
    layers: Sequence[int],
    task: Task,
    *,
    seeds: Sequence[int] = PAPER_SEEDS,
    protocol: Protocol | None = None,
    options: Options = DEFAULT_OPTIONS,
    enough: Callable[[Sequence[FineTuningRun]], bool] | None = None,
    save_models: bool = False,
    progress: Progress = notebook_bar,
) -> list[FineTuningRun]:
    """Fine-tune the model truncated at each layer, once a seed; finished runs are read, not repeated.

    There is a run a seed and layer, of 0 .. n_blocks kept blocks, by the paper's protocol unless another is given.
    Pooling and length are the protocol's, all else how to load the options'. After each seed `enough` is asked, given
    all runs so far, whether no further one is needed. With `save_models` the best epoch's checkpoint of every run is
    kept, see `saved_models`; a finished run without one is made again, with the same numbers.

    Raises:
        ModelError: If the model cannot be loaded, or a layer has no checkpoint to save.
        DataError: If it is no task, the model has no such layer, or there are no layers or seeds.
        TrainingError: If a run fails.
        StoreError: If a result cannot be written.
    """
    check_task(task)
    check_precision(options)
    seeds, layers = check_seeds(seeds), [index(layer) for layer in layers]
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code, items=task.readable)
    protocol, options = agreed(protocol, options, checkpoint)
    if not layers:
        raise DataError(f"expected layers of {checkpoint.label} to fine-tune, got none")
    check_layers(checkpoint, layers)
    return fine_tune_layers(
        lambda: load(checkpoint, options),
        layers,
        with_prompt(task, options.prompt),
        seeds=seeds,
        protocol=protocol,
        folder=run_folder(checkpoint, task, protocol, options),
        batch_tokens=options.batch_tokens,
        enough=enough,
        save_models=save_models,
        prompt=options.prompt,
        progress=progress,
    )


def scan(
    model: ModelLike,
    task: Task,
    *,
    seeds: Sequence[int] = (0,),
    weighting: Weighting = "falling",
    protocol: Protocol | None = None,
    options: Options = DEFAULT_OPTIONS,
    save_models: bool = False,
    ray: str | None = None,
    workers: int | None = None,
    progress: Progress = notebook_bar,
) -> list[JointRun]:
    """Fine-tune the whole model with a loss at every layer, once a seed: a curve over layers for the price of one run.

    The curve says which layers are worth truncating at; it is not TMFT's own, see `fine_tune_jointly`. With
    `save_models` the best epoch's model is kept, which `export_model` truncates at any layer, see `scan_models`.
    With `ray`, the address of a Ray cluster, the seeds are run on its nodes, at most `workers` at a time; all must see
    the folder of the runs, and a node that fails alone is left out.
    The other arguments are those of `finetune`; finished runs are read, not repeated.

    Raises:
        LayerProbeError: As `finetune`.
    """
    check_task(task)
    check_precision(options)
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code, items=task.readable)
    protocol, options = agreed(protocol, options, checkpoint)
    prompted = with_prompt(task, options.prompt)
    load_once = loaded_once(lambda: load(checkpoint, options), prompted, protocol)
    seeds, runs = list(dict.fromkeys(check_seeds(seeds))), []
    if ray is not None:
        arguments = {"task": task, "weighting": weighting, "protocol": protocol, "save_models": save_models}
        _scan_on_ray(ray, checkpoint, seeds, arguments, options=options, workers=workers, progress=progress)
    for number, seed in enumerate(seeds):
        run = load_or_run_jointly(
            run_folder(checkpoint, task, protocol, options),
            load_once,
            prompted,
            seed=seed,
            protocol=protocol,
            weighting=weighting,
            batch_tokens=options.batch_tokens,
            save_model=save_models,
            prompt=options.prompt,
            progress=part_of(progress, start=float(number), share=1.0, whole=float(len(seeds))),
        )
        assert run is not None  # it was waited for
        runs.append(run)
    return runs


def _scan_on_ray(
    address: str,
    checkpoint: Checkpoint,
    seeds: Sequence[int],
    arguments: Mapping[str, Any],
    *,
    options: Options,
    workers: int | None,
    progress: Progress,
) -> None:
    """Make the runs of `scan` on a Ray cluster; they are then there to be read."""
    if checkpoint.loaded is not None:
        raise DataError(f"expected the name or the folder of a model for a Ray cluster, got {checkpoint.label} loaded")
    cluster = ray_cluster(address, options, Store(options.cache_dir).root, workers=workers)
    setting = _ScanSetting(
        model=checkpoint.spec,
        identity=checkpoint.identity,
        arguments=arguments,
        options=on_ray(options),
        computed_on=computed_on(options),
    )
    with contextlib.closing(
        ray_pooled(cluster, _Scan, lambda threads: replace(setting, threads=threads), seeds)
    ) as runs:
        for done, (seed, answer) in enumerate(runs, 1):
            if isinstance(answer, LayerProbeError):
                raise answer
            if isinstance(answer, Lost):
                logger.error("%s", answer.trace or "its process was ended again and again")
                raise TrainingError(f"the scan with seed {seed} ended with its process")
            progress("seeds", float(done), float(len(seeds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScanSetting:
    """What a process needs that scans for another."""

    model: ModelSpec
    identity: dict[str, Any]
    arguments: Mapping[str, Any]
    options: Options
    computed_on: str
    threads: int = 1


class _Scan:
    """Makes the run of one seed after another."""

    def __init__(self, setting: _ScanSetting) -> None:
        check_computes(setting.options, setting.computed_on)
        torch.set_num_threads(min(setting.threads, torch.get_num_threads()))
        self.setting = setting
        self.checkpoint = same_model(
            setting.model, setting.identity, setting.options, items=setting.arguments["task"].readable
        )

    def __call__(self, seed: int) -> LayerProbeError | Literal[True]:
        """Return True when the run is there, or why there is none."""
        try:
            scan(
                self.checkpoint, seeds=(seed,), options=self.setting.options, progress=silent, **self.setting.arguments
            )
        except (StoreError, WorkerError):
            raise
        except LayerProbeError as error:
            return error
        return True


def scan_models(
    model: ModelLike, runs: Sequence[JointRun], task: Task, *, options: Options = DEFAULT_OPTIONS
) -> list[Path]:
    """Return the directory of every run that `scan` made with the same arguments; the checkpoint is `model` in it."""
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code, items=task.readable)
    folders = {run.protocol: run_folder(checkpoint, task, run.protocol, options) for run in runs}
    return [folders[run.protocol].joint_path(run.weighting, run.seed) for run in runs]


def saved_models(
    model: ModelLike, runs: Sequence[FineTuningRun], task: Task, *, options: Options = DEFAULT_OPTIONS
) -> list[Path]:
    """Return the directory of every run that `finetune` made with the same arguments; the checkpoint is `model` in it.

    `export_model` takes such a directory.
    """
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code, items=task.readable)
    folders = {run.protocol: run_folder(checkpoint, task, run.protocol, options) for run in runs}
    return [folders[run.protocol].run_path(run.layer, run.seed) for run in runs]


def items_of(
    model: ModelLike,
    runs: Sequence[FineTuningRun],
    task: Task,
    *,
    documents: Mapping[str, str] | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> RunItems:
    """Return what each item adds to the scores of runs that `finetune` made with the same arguments.

    With it, `outcomes` and `confirmation` know the error over items; for documents see `run_items`.

    Raises:
        StoreError: If the disk does not let outputs be read.
    """
    directories = saved_models(model, runs, task, options=options)
    return run_items(task, zip(runs, directories, strict=True), documents=documents)


def run_folder(checkpoint: Checkpoint, task: Task, protocol: Protocol, options: Options) -> RunFolder:
    """Return the folder in which `finetune` keeps its runs, with what they are of."""
    options = settled(checkpoint, options)
    origin = RunsOrigin(
        model=checkpoint.spec,
        model_digest=digest(checkpoint.identity),
        task=task.name,
        task_digest=task.digest,
        prompt=options.prompt,
    )
    return RunFolder.of(
        Store(options.cache_dir).root,
        checkpoint,
        with_prompt(task, options.prompt),
        protocol,
        computed_on=computed_on(options),
        batch_tokens=options.batch_tokens,
        attn=options.attn,
        origin=origin,
    )


def agreed(protocol: Protocol | None, options: Options, checkpoint: Checkpoint) -> tuple[Protocol, Settled]:
    """Return the protocol, the paper's by default, and the options; extraction and fine-tuning pool alike.

    Where neither says how, a protocol being left at the mean, the model does: see `settled`.

    Raises:
        DataError: If they say different things.
    """
    chosen = settled(checkpoint, pooled_alike(options, protocol))
    return replace(protocol or Protocol(), pooling=chosen.pooling), chosen


def pooled_alike(options: Options, protocol: Protocol | None) -> Options:
    """Return options that pool as the protocol does where they say nothing and it says something else than the mean.

    Raises:
        DataError: If they say different things.
    """
    if protocol is None:
        return options
    check_pooling(protocol, options)
    own = None if protocol.pooling == Protocol().pooling else protocol.pooling
    return replace(options, pooling=options.pooling or own)


def check_pooling(protocol: Protocol, options: Options) -> None:
    """Raise DataError if options say another way of pooling than the protocol."""
    given, pooling = options.pooling, protocol.pooling
    if given not in (None, pooling):
        raise DataError(f"expected one way of pooling, got {given} in the options and {pooling} in the protocol")


def check_precision(options: Options) -> None:
    """Raise DataError for float16, in which small gradients vanish."""
    if options.dtype == "float16":
        raise DataError("expected float32 or bfloat16 to fine-tune in, got float16, whose small gradients vanish")


def check_layers(checkpoint: Checkpoint, layers: Sequence[int]) -> None:
    """Raise DataError if the model has no such layer."""
    n_blocks = count_blocks(checkpoint.config)
    if wrong := [str(layer) for layer in layers if not 0 <= layer <= n_blocks]:
        raise DataError(f"expected layers from 0 to {n_blocks} of {checkpoint.label}, got {', '.join(wrong)}")


def with_prompt(task: Task, prompt: str) -> Task:
    """Return the task with the prompt before every text, as extraction has it."""
    if not prompt:
        return task
    train, validation, test = (items.prompted(prompt) for items in (task.train, task.validation, task.test))
    return replace(task, train=train, validation=validation, test=test)
