"""What is to be done, and by whom: a plan of jobs with keys and costs, and crews of workers, as rows of one registry.

A crew begins workers, in this process, in others or on a cluster, and carries messages; which worker gets which job,
and what follows from what it answers, is decided in `layerprobe.jobs.execute`. Knows not what a job is.
"""

import abc
import logging
import pkgutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from layerprobe.errors import DataError, LayerProbeError, StoreError, WorkerError

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
    """A name in `layerprobe.jobs.crew.EXECUTORS`."""
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


logger = logging.getLogger(__name__)

Work = Callable[[Any], Any]
"""Does one job. None: another process is at it. StoreError and WorkerError: no job can be done
here; any other LayerProbeError is why this one cannot."""
Begin = Callable[[Any, Share], Work]
"""Given a setting and what it may use, returns what does jobs; called once a worker, and found by name in its module
where workers are other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message from a worker."""

    worker: "Worker"
    kind: str
    """ready: it can be given jobs; progress; answer; failed: the job cannot be done; unfit: the worker cannot do any;
    raised: it ended with what nobody expected; ended: it is gone."""
    value: Any = None
    """The share of its job that is done, the answer, the error, the traceback, or how a process ended."""


class Worker:
    """A worker that does one job at a time."""

    name = "a worker process"

    def __init__(self) -> None:
        self.ready = False
        self.jobs: list[Any] = []
        """What it is at: at most one."""
        self.done = 0.0
        """Share of it that is done, as far as it has said."""


class Crew(abc.ABC):
    """A group of workers with the same setup; closing it ends them, and later ones are new.

    Args:
        workers: Of what kind, and how many.
        begin: What makes a worker do jobs.
        setting: What that is given.
        most: Jobs there can be: a worker without one would leave its processors idle.
    """

    tries: ClassVar[int]
    """How often a job may lose its worker."""
    inside: ClassVar[bool] = False
    """Whether jobs report how far they are by themselves, being done here."""
    n_at_a_time: int | None = None
    """Jobs at a time; None where that changes."""

    def __init__(self, workers: Workers, begin: Begin, setting: Any, *, most: int) -> None:
        self.spec, self.begin, self.setting, self.most = workers, begin, setting, most
        self.workers: list[Any] = []
        self.log = logged_once()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def hire(self, n_jobs: int) -> None:
        """Start workers where there is room, at most one per job."""

    @abc.abstractmethod
    def give(self, worker: Any, job: Any, part: AbstractContextManager[object]) -> None:
        """Let an idle worker begin a job; inside `part` what it reports is a part of the whole plan."""

    @abc.abstractmethod
    def messages(self, seconds: float | None) -> Iterator[Message]:
        """Wait for workers, so long at most where that is given, and give what came of them."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all workers."""

    def dismiss(self, message: Message) -> None:
        """End a worker that is lost or unusable; raise if no other could do its jobs."""
        self.workers.remove(message.worker)
        if message.kind in ("unfit", "failed"):
            raise message.value
        if message.kind == "raised" and not message.worker.ready:
            raise RuntimeError(f"a worker process raised:\n{message.value}")


def crew_of(begin: Begin, setting: Any, workers: Workers = HERE, *, most: int = 1) -> Crew:
    """Return the crew that does the jobs; no worker starts before there is a job."""
    return cast(Crew, pkgutil.resolve_name(EXECUTORS[workers.executor])(workers, begin, setting, most=most))


class Here(Crew):
    """This process, one job after another."""

    tries, inside, n_at_a_time = 1, True, 1

    def hire(self, n_jobs: int) -> None:
        """Begin the only worker."""
        if not self.workers:
            self.work = self.begin(self.setting, Share())
            self.workers = [Worker()]
            self.workers[0].ready = True

    def give(self, worker: Worker, job: Any, part: AbstractContextManager[object]) -> None:
        """Remember a job; it is done where messages are waited for."""
        self.current = (job, part)

    def messages(self, seconds: float | None) -> Iterator[Message]:
        """Do the job; what nobody expected is raised as it came."""
        (worker,) = self.workers
        if worker.jobs:
            job, part = self.current
            with part:
                kind, value = answered(self.work, job)
            yield Message(worker=worker, kind=kind, value=value)
        else:
            time.sleep(seconds or 0.0)

    def close(self) -> None:
        """Forget the worker."""
        self.workers = []


# ---- where they are ------------------------------------------------------------------------------------


def answered(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Return what a function gives as `answer`, or as `unfit` or `failed` why it gives nothing."""
    try:
        return "answer", function(*arguments)
    except (StoreError, WorkerError) as error:
        return "unfit", error
    except LayerProbeError as error:
        return "failed", error


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Do the same where another process waits; as `raised` the traceback of what nobody expected."""
    try:
        return answered(function, *arguments)
    except Exception:
        return "raised", traceback.format_exc()


def logged_once() -> Callable[[int, str], None]:
    """Return what logs the lines of workers here: what several log is logged once."""
    lines: set[tuple[int, str]] = set()

    def log(level: int, line: str) -> None:
        if (level, line) not in lines:
            lines.add((level, line))
            logger.log(level, "%s", line)

    return log


class _Forwarding(logging.Handler):
    """Sends what is logged elsewhere."""

    def __init__(self, send: Callable[[int, str], None]) -> None:
        super().__init__()
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        self.send(record.levelno, record.getMessage())


def forward_logs(send: Callable[[int, str], None]) -> None:
    """Give what layerprobe logs in this process, level and line, to `send` alone."""
    root = logging.getLogger("layerprobe")
    root.handlers[:], root.propagate = [_Forwarding(send)], False
    root.setLevel(logging.INFO)


EXECUTORS = {
    "here": "layerprobe.jobs.crew:Here",
    "processes": "layerprobe.jobs.processes:Processes",
    "ray": "layerprobe.jobs.ray_cluster:RayProcesses",
}
