"""Fine-tuning runs as directories: never repeated, safe between processes.

Knows where a run's result lies; knows nothing of how it was trained.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from layerprobe.encoders import Checkpoint, Encoder
from layerprobe.errors import DataError
from layerprobe.files import make_directory, store_errors, write_whole
from layerprobe.finetuning.saved import has_model, saving_model
from layerprobe.finetuning.tmft import fine_tune
from layerprobe.progress import Progress, part_of, silent
from layerprobe.results import FineTuningRun, Protocol, Task, digest, from_json, to_bytes

logger = logging.getLogger(__name__)

Keep = Callable[[Path, Encoder, int, Task], contextlib.AbstractContextManager[Path]]
"""Run directory, encoder, layer, task -> where the checkpoint goes; see `saving_model`."""

# Counts what a run's numbers depend on beyond its key; raise it when the training loop changes them.
LOOP_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The runs of one model, task and protocol: a directory a layer and seed."""

    path: Path

    @classmethod
    def of(cls, root: Path, checkpoint: Checkpoint, task: Task, protocol: Protocol, *, computed_on: str) -> RunFolder:
        """Return the folder under `root` that is named by everything the numbers depend on.

        Args:
            root: Folder of all runs.
            checkpoint: The pretrained model.
            task: What to learn.
            protocol: How to fine-tune.
            computed_on: Kind of device and precision: their rounding and chance differ.
        """
        key = [LOOP_VERSION, checkpoint.identity, computed_on, task.digest, protocol]
        return cls(path=root / "runs" / digest(key)[:32])

    def run_path(self, layer: int, seed: int) -> Path:
        """Return the directory of one run."""
        return self.path / f"layer-{layer:03d}-seed-{seed}"

    def load(self, layer: int, seed: int) -> FineTuningRun | None:
        """Return the finished run, or None; a garbled result counts as unfinished.

        Raises:
            StoreError: If the disk does not let it be read.
        """
        file = self.run_path(layer, seed) / "result.json"
        try:
            with store_errors("read", file):
                text = file.read_text(encoding="utf-8") if file.exists() else None
            return None if text is None else from_json(FineTuningRun, text)
        except (DataError, UnicodeDecodeError) as error:
            logger.warning("%s cannot be read (%s): the run is done again", file, error)
            return None

    def save(self, run: FineTuningRun) -> None:
        """Write the result of a run: whole or not at all.

        Raises:
            StoreError: If the disk is full or the folder cannot be written.
        """
        folder = self.run_path(run.layer, run.seed)
        make_directory(folder)
        write_whole(folder / "result.json", to_bytes(run))

    def lock(self, layer: int, seed: int) -> FileLock:
        """Return the lock that a process holds while it makes a run."""
        folder = self.run_path(layer, seed)
        make_directory(folder)
        return FileLock(folder / "lock")


def never(runs: Sequence[FineTuningRun]) -> bool:
    """Return False: all seeds are wanted."""
    return False


def fine_tune_layers(
    load: Callable[[], Encoder],
    layers: Sequence[int],
    task: Task,
    *,
    seeds: Sequence[int],
    protocol: Protocol,
    folder: RunFolder,
    enough: Callable[[Sequence[FineTuningRun]], bool] = never,
    save_models: bool = False,
    prompt: str = "",
    progress: Progress = silent,
) -> list[FineTuningRun]:
    """Fine-tune at every layer with every seed, in the order of seeds, then layers; done runs are read.

    A killed sweep loses the run it was at; the next one starts that run again and gives the same numbers.

    Args:
        load: Returns the pretrained encoder; called once, and only where a run is missing.
        layers: Blocks kept.
        task: What to learn.
        seeds: One run each.
        protocol: How to fine-tune.
        folder: Where runs are kept.
        enough: Asked after each seed, given all runs so far; where it says so, no further seed is added.
        save_models: Whether the best epoch's checkpoint of every run is kept in its directory; a finished run
            without one is made again, with the same numbers.
        prompt: What the task's sentences begin with; told beside the checkpoint.
        progress: Told the share of the sweep's cost that is done.

    Raises:
        ModelError: If the model has no such layer.
        UnsupportedArchitectureError: If a model is to be saved that has no checkpoint.
        TrainingError: If a run fails.
        StoreError: If a result cannot be written.
    """
    loaded = functools.cache(lambda: _told_what_is_cut(load(), task, protocol))
    # a run that is named twice is one run: copies would narrow the intervals over seeds
    layers, seeds = list(dict.fromkeys(layers)), list(dict.fromkeys(seeds))
    # a block costs about as much as the rest of a step
    total = sum(layer + 1.0 for layer in layers) * len(seeds)
    done = 0.0
    runs: list[FineTuningRun] = []
    for seed in seeds:
        for layer in layers:
            report = part_of(progress, start=done, share=layer + 1.0, whole=total)
            keep = functools.partial(saving_model, prompt=prompt) if save_models else None
            runs.append(
                _load_or_run(folder, loaded, layer, task, seed=seed, protocol=protocol, keep=keep, progress=report)
            )
            done += layer + 1.0
        if enough(runs):
            break
    return runs


def _told_what_is_cut(encoder: Encoder, task: Task, protocol: Protocol) -> Encoder:
    """Warn of texts that fine-tuning cuts."""
    splits = (task.train, task.validation, task.test)
    texts = list(dict.fromkeys(text for examples in splits for text in examples.texts))
    n_cut = encoder.tokenize(texts, max_length=protocol.max_length).n_truncated
    if n_cut:
        logger.warning(
            "%d of %d texts were cut at %d tokens in fine-tuning",
            n_cut,
            len(texts),
            encoder.limit(protocol.max_length),
        )
    return encoder


def _load_or_run(
    folder: RunFolder,
    load: Callable[[], Encoder],
    layer: int,
    task: Task,
    *,
    seed: int,
    protocol: Protocol,
    keep: Keep | None,
    progress: Progress,
) -> FineTuningRun:
    found = _finished(folder, layer, seed, with_model=keep is not None)
    if found is not None:
        return found
    lock = folder.lock(layer, seed)
    with store_errors("lock", Path(lock.lock_file)):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting for another process that fine-tunes layer %d with seed %d", layer, seed)
            lock.acquire()
    try:
        found = _finished(folder, layer, seed, with_model=keep is not None)
        if found is not None:
            return found
        encoder = load()
        with keep(folder.run_path(layer, seed), encoder, layer, task) if keep else contextlib.nullcontext() as save_to:
            run = fine_tune(encoder, layer, task, protocol=protocol, seed=seed, save_to=save_to, progress=progress)
        folder.save(run)
        return run
    finally:
        lock.release()


def _finished(folder: RunFolder, layer: int, seed: int, *, with_model: bool) -> FineTuningRun | None:
    if with_model and not has_model(folder.run_path(layer, seed)):
        return None
    return folder.load(layer, seed)
