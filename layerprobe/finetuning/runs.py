"""Fine-tuning runs as directories: never repeated, safe between processes.

Knows where a run's result lies; knows nothing of how it was trained.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import Checkpoint
from layerprobe.errors import InsufficientMemoryError, TrainingError
from layerprobe.files.atomic import inside, make_directory, remove_leftovers, store_errors
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.epochs import forget_epochs
from layerprobe.finetuning.joint import fine_tune_jointly
from layerprobe.finetuning.outputs import RunOutputs
from layerprobe.finetuning.results import (
    FAILED,
    R,
    keep_origin,
    load_failure,
    load_finished,
    runs_root,
    save_failure,
    save_finished,
)
from layerprobe.finetuning.saved import has_model, saving_model
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.finetuning.values import FailedRun, FineTuningRun, JointRun, Protocol, RunsOrigin, Weighting
from layerprobe.progress import Progress, part_of, silent
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from layerprobe.versions import FINETUNING_VERSION, versions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The runs of one model, task and protocol: a directory a layer and seed; StoreError if the disk fails."""

    path: Path
    origin: RunsOrigin | None = None
    """Written beside the runs, where it is known."""

    @classmethod
    def of(
        cls,
        root: Path,
        checkpoint: Checkpoint,
        task: Task,
        protocol: Protocol,
        *,
        computed_on: str,
        batch_tokens: int | None = None,
        attn: str = "auto",
        origin: RunsOrigin | None = None,
    ) -> RunFolder:
        """Return the folder under `root` that is named by everything the numbers depend on.

        That includes the kind of device and the precision, and, where they are given, the tokens of a pass, by which
        another dropout is drawn, and the attention implementation: others round, and draw, in ways of their own.
        """
        given = [*([] if batch_tokens is None else [batch_tokens]), *([] if attn == "auto" else [attn])]
        key = [FINETUNING_VERSION, checkpoint.identity, computed_on, task.digest, protocol, *given]
        return cls(path=inside(root, root / "runs" / digest(key)[:32]), origin=origin)

    def keep_origin(self) -> None:
        """Write what the runs are of beside them, where it is known and not there yet."""
        if self.origin is not None:
            keep_origin(self.path, self.origin)

    def run_path(self, layer: int, seed: int) -> Path:
        """Return the directory of one run."""
        return self.path / f"layer-{layer:03d}-seed-{seed}"

    def joint_path(self, weighting: Weighting, seed: int) -> Path:
        """Return the directory of one joint run."""
        return self.path / f"{weighting}-seed-{seed}"

    def load(self, layer: int, seed: int) -> FineTuningRun | None:
        """Return the finished run, or None; one that is not as it was written, with its outputs, is unfinished."""
        return load_finished(FineTuningRun, self.run_path(layer, seed))

    def load_failure(self, layer: int, seed: int) -> FailedRun | None:
        """Return why the run failed, or None; a garbled mark, or one of other versions of the libraries, is none."""
        return load_failure(self.run_path(layer, seed))


def fine_tune_layers(
    load: Callable[[], Encoder],
    layers: Sequence[int],
    task: Task,
    *,
    seeds: Sequence[int],
    protocol: Protocol,
    folder: RunFolder,
    batch_tokens: int | None = None,
    enough: Callable[[Sequence[FineTuningRun]], bool] | None = None,
    save_models: bool = False,
    prompt: str = "",
    progress: Progress = silent,
) -> list[FineTuningRun]:
    """Fine-tune at every layer with every seed, in the order of seeds, then layers; done runs are read.

    A sweep that is killed goes on with the run it was at, after its last epoch on disk, and gives the same numbers: see
    `layerprobe.finetuning.epochs`. A run that fails by its numbers is marked, and not tried again while the mark is
    there and the libraries are the same.

    The arguments are those of `finetune` and `fine_tune`, but that `load` returns the pretrained encoder and is called
    once, and only where a run is missing. The prompt, which the task has already, is written beside checkpoints.

    Raises:
        ModelError: If the model has no such layer, or no checkpoint of it can be saved.
        TrainingError: If a run fails, or did before.
        StoreError: If a result cannot be written.
    """
    loaded = loaded_once(load, task, protocol)
    # a run that is named twice is one run: copies would narrow the intervals over seeds
    layers, seeds = list(dict.fromkeys(layers)), list(dict.fromkeys(seeds))
    # a block costs about as much as the rest of a step
    total, done = sum(layer + 1.0 for layer in layers) * len(seeds), 0.0
    runs: list[FineTuningRun] = []
    for seed in seeds:
        for layer in layers:
            run = load_or_run(
                folder,
                loaded,
                layer,
                task,
                seed=seed,
                protocol=protocol,
                batch_tokens=batch_tokens,
                save_model=save_models,
                prompt=prompt,
                progress=part_of(progress, start=done, share=layer + 1.0, whole=total),
            )
            assert run is not None  # it was waited for
            runs.append(run)
            done += layer + 1.0
        if enough is not None and enough(runs):
            break
    return runs


def loaded_once(load: Callable[[], Encoder], task: Task, protocol: Protocol) -> Callable[[], Encoder]:
    """Return a function that loads at its first call, and then warns of texts that fine-tuning cuts."""

    @functools.cache
    def loaded() -> Encoder:
        encoder = load()
        warn_of_cut_texts(encoder, task, protocol)
        return encoder

    return loaded


def warn_of_cut_texts(encoder: Encoder, task: Task, protocol: Protocol) -> None:
    """Warn of what fine-tuning cuts."""
    splits = (task.train, task.validation, task.test)
    said = KINDS[task.kind].load_loss().cut(encoder, splits, max_length=protocol.max_length)
    if said:
        logger.warning("%s", said)


def load_or_run(
    folder: RunFolder,
    load: Callable[[], Encoder],
    layer: int,
    task: Task,
    *,
    seed: int,
    protocol: Protocol,
    batch_tokens: int | None = None,
    save_model: bool = False,
    prompt: str = "",
    wait: bool = True,
    retry_failed: bool = False,
    progress: Progress = silent,
) -> FineTuningRun | None:
    """Return one run, read or made now; for the arguments see `fine_tune_layers`.

    Without `wait`, None is returned where another process makes the run. With
    `retry_failed`, a run that is marked as failed is made again.

    Raises:
        TrainingError: If the run fails, or did before.
        StoreError: If the result cannot be written.
    """
    directory = folder.run_path(layer, seed)
    folder.keep_origin()

    def make(encoder: Encoder, save_to: Path | None) -> tuple[FineTuningRun, RunOutputs]:
        return fine_tune(
            encoder,
            layer,
            task,
            protocol=protocol,
            seed=seed,
            batch_tokens=batch_tokens,
            save_to=save_to,
            unfinished=directory,
            progress=progress,
        )

    return _once(
        FineTuningRun,
        directory,
        load,
        make,
        layer=layer,
        seed=seed,
        saving=functools.partial(saving_model, layer=layer, task=task, prompt=prompt) if save_model else None,
        wait=wait,
        retry_failed=retry_failed,
    )


def load_or_run_jointly(
    folder: RunFolder,
    load: Callable[[], Encoder],
    task: Task,
    *,
    seed: int,
    protocol: Protocol,
    weighting: Weighting = "falling",
    batch_tokens: int | None = None,
    save_model: bool = False,
    prompt: str = "",
    wait: bool = True,
    retry_failed: bool = False,
    progress: Progress = silent,
) -> JointRun | None:
    """Return one joint run, read or made now; as `load_or_run`."""
    directory = folder.joint_path(weighting, seed)
    folder.keep_origin()

    def make(encoder: Encoder, save_to: Path | None) -> tuple[JointRun, RunOutputs]:
        return fine_tune_jointly(
            encoder,
            task,
            protocol=protocol,
            seed=seed,
            weighting=weighting,
            batch_tokens=batch_tokens,
            save_to=save_to,
            unfinished=directory,
            progress=progress,
        )

    return _once(
        JointRun,
        directory,
        load,
        make,
        layer=None,
        seed=seed,
        saving=functools.partial(saving_model, layer=None, task=task, prompt=prompt) if save_model else None,
        wait=wait,
        retry_failed=retry_failed,
    )


def _once(
    kind: type[R],
    directory: Path,
    load: Callable[[], Encoder],
    make: Callable[[Encoder, Path | None], tuple[R, RunOutputs]],
    *,
    layer: int | None,
    seed: int,
    saving: Callable[[Path, Encoder], AbstractContextManager[Path]] | None,
    wait: bool,
    retry_failed: bool,
) -> R | None:
    """Return the finished run of a directory, made now by one process if it is not there."""
    what = f"layer {layer}" if layer is not None else "all layers"

    def finished() -> R | None:
        return None if saving and not has_model(directory) else load_finished(kind, directory)

    if run := finished():
        return run
    make_directory(inside(runs_root(directory), directory))
    lock = FileLock(inside(directory, directory / "lock"))
    with store_errors("lock", Path(lock.lock_file)):
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                return None
            logger.info("waiting for another process that fine-tunes %s with seed %d", what, seed)
            held = lock.acquire()
    with held:
        if run := finished():
            return run
        if not retry_failed and (failed := load_failure(directory)):
            mark = directory / FAILED
            raise TrainingError(f"{failed.message} (it failed before: to try again, remove {mark})", step=failed.step)
        encoder = load()
        remove_leftovers(directory)
        try:
            with saving(directory, encoder) if saving else nullcontext() as save_to:
                run, outputs = make(encoder, save_to)
        except InsufficientMemoryError:
            raise  # no mark: what else is in the memory does not follow from the run
        except TrainingError as error:
            failed = FailedRun(
                layer=encoder.n_layers - 1 if layer is None else layer,
                seed=seed,
                message=str(error),
                step=error.step,
                versions=versions(),
            )
            save_failure(directory, failed)
            forget_epochs(directory)
            raise
        save_finished(directory, run, outputs)
        forget_epochs(directory)
        with store_errors("remove", directory / FAILED):
            (directory / FAILED).unlink(missing_ok=True)
        return run
