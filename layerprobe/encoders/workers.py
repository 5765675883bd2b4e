"""Settings and resources of workers that load models for others. Knows no job."""

import gc
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from layerprobe.encoders.device import computed_on, resolve_device
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import Resolved, resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError, WorkerError, option
from layerprobe.files.images import Readable
from layerprobe.jobs.crew import HERE, Share, Workers


def choose_workers(
    options: Model, *folders: Path, count: int | None = None, ray: str | None = None, local: str = "here"
) -> Workers:
    """Return the workers for jobs with these options in these folders: `local` ones, or a Ray cluster if given."""
    if ray is None and local == "here":
        return Workers(count=count)
    device = resolve_device(options.device)
    gpus = torch.cuda.device_count() if str(device) == "cuda" else 0
    return Workers(
        executor=local if ray is None else "ray",
        count=count,
        devices=tuple(f"cuda:{i}" for i in range(gpus)) or (str(device),),
        address=ray,
        folders=folders,
    )


def leave_gpus() -> None:
    """Free GPU memory of models that this process no longer uses, before workers load theirs."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def taken_over(options: Model, computes: str, share: Share) -> Model:
    """Return the options of a worker, on its share of a machine; in the process that planned they are what they are.

    `computes` is what `computed_on` says where the work was begun.
    """
    if share.device is None or share.threads is None:
        return options
    options = replace(options, device=share.device)
    try:
        here = computed_on(options)
    except ModelError as error:
        raise WorkerError(str(error)) from error
    if here != computes:
        raise WorkerError(
            f"expected to compute on {computes}, got {here}: give {option('device')} and {option('dtype')}"
        )
    # two processes that both use all cores wait for each other at every step
    torch.set_num_threads(min(share.threads, torch.get_num_threads()))
    return options


class SharedModel:
    """A model that workers load, each of them once; another process resolves it again: some have code of their own."""

    def __init__(self, checkpoint: Resolved, *, items: Readable | None = None, workers: Workers = HERE) -> None:
        if checkpoint.loaded is not None and workers.executor != "here":
            raise DataError(
                f"expected the name or the folder of a model for a Ray cluster, got {checkpoint.label} loaded"
            )
        # `auto` is resolved here, for all machines of a cluster
        self.checkpoint, self.items = checkpoint, items
        self.asked = replace(checkpoint.asked, dtype=checkpoint.dtype)
        self._loaded_as = checkpoint.identity, checkpoint.pooling, checkpoint.prompt
        self.computes = checkpoint.computed_on

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("checkpoint", "encoder")}

    def take_over(self, share: Share) -> None:
        """Load the model on a worker's share of a machine; WorkerError if its results would differ there."""
        self.asked = taken_over(self.asked, self.computes, share)

    @cached_property
    def checkpoint(self) -> Resolved:
        """The resolved checkpoint; WorkerError if it cannot be resolved here or differs from the planner's."""
        try:
            checkpoint = resolve(self.asked, items=self.items)
        except ModelError as error:
            raise WorkerError(str(error)) from error
        if (checkpoint.identity, checkpoint.pooling, checkpoint.prompt) != self._loaded_as:
            raise WorkerError(f"{checkpoint.label} is not the model that the work started with: start again")
        return checkpoint

    @cached_property
    def encoder(self) -> Encoder:
        """The loaded encoder."""
        return load(self.checkpoint)

    def forget(self) -> None:
        """Free the loaded model."""
        self.__dict__.pop("encoder", None)
