"""What is to be done, and by whom: a plan of jobs with keys and costs, and workers. Knows not what a job is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from layerprobe.errors import DataError

J = TypeVar("J")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan(Generic[J, A]):
    """Jobs, each with a key of its own that can be hashed and sent."""

    jobs: Mapping[J, float]
    """What each costs, in the order in which one worker begins them; several begin the longest first."""
    done: Callable[[J], A | None] = lambda job: None
    """What is there of a job; None: it is to be done."""
    sent: Callable[[J], Any] = lambda job: job
    """What a worker is given when it begins a job."""
    label: Callable[[J], str] = str
    """What a process does that is at a job, such as: fine-tunes layer 3 with seed 0."""
    unit: str = "jobs"
    """What progress counts."""

    def read(self) -> dict[J, A]:
        """Return what is there."""
        return {job: answer for job in self.jobs if (answer := self.done(job)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who does jobs: processes of which kind, how many, and on what."""

    executor: str = "here"
    """A name in `layerprobe.jobs.registry.EXECUTORS`."""
    count: int | None = None
    """Jobs at a time at most; by default one a GPU, else one, on a cluster one a node."""
    devices: tuple[str, ...] = ("cpu",)
    """Those of this machine that take turns, such as cuda:0 and cuda:1; a job takes one that is a GPU alone."""
    address: str | None = None
    """Of a Ray cluster, as `ray.init` takes it: host:port, auto for one on this machine, local for one of its own."""
    folders: tuple[Path, ...] = ()
    """Those of the jobs, which all machines must see."""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise DataError(f"expected at least one worker, got {self.count}")

    @property
    def gpus(self) -> int:
        """How many GPUs a job takes."""
        return int(self.devices[0].startswith("cuda"))


HERE = Workers()
"""This process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one worker may use of its machine; None: what the process that planned uses, which is this one."""

    threads: int | None = None
    device: str | None = None
