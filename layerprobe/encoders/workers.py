"""What processes on other machines that load a model for this one must agree on. Knows no job."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_checkpoint, resolve_device
from layerprobe.encoders.options import Options, computed_on
from layerprobe.errors import ModelError, WorkerError
from layerprobe.files.images import Readable
from layerprobe.jobs.ray_cluster import RayCluster

AnyOptions = TypeVar("AnyOptions", bound=Options)


def ray_cluster(address: str, options: Options, *folders: Path, workers: int | None) -> RayCluster:
    """Return a cluster whose jobs compute as the options say, on a GPU each where the device is one, in these folders.

    Raises:
        ModelError: If there is no such device here: a command is begun on a machine like those that do its jobs.
    """
    gpus = int(resolve_device(options.device).type == "cuda")
    return RayCluster(address=address, folders=folders, workers=workers, gpus=gpus)


def on_ray(options: AnyOptions) -> AnyOptions:
    """Return the options of a process of Ray, which sees no GPU but its own."""
    return replace(options, device=resolve_device(options.device).type)


def same_model(model: ModelLike, identity: dict[str, Any], options: Options, *, items: Readable = "text") -> Checkpoint:
    """Resolve a model where its work is shared.

    Raises:
        WorkerError: If it cannot be resolved here, or is another one than where the work was begun.
    """
    try:
        checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code, items=items)
    except ModelError as error:
        raise WorkerError(str(error)) from error
    if checkpoint.identity != identity:
        raise WorkerError(f"{checkpoint.label} is not the model with which the work began: begin it again")
    return checkpoint


def check_computes(options: Options, expected: str) -> None:
    """Raise WorkerError if what `computed_on` says here is not what it says where the work was begun."""
    try:
        here = computed_on(options)
    except ModelError as error:
        raise WorkerError(str(error)) from error
    if here != expected:
        raise WorkerError(f"expected to compute on {expected}, got {here}: give --device and --dtype")
