"""Plans of jobs with keys and costs, crews of workers that do them, and the one loop over jobs.

A crew starts workers, in this process, in others or on a cluster, and carries messages. The loop assigns jobs to
workers: finished jobs are not repeated; a job that another process holds is postponed; a job whose worker is lost
restarts; a failure is a value, and the caller decides what follows. Knows nothing about the content of jobs.
"""

import abc
import collections
import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from layerprobe.context import part, report
from layerprobe.errors import DataError, LayerProbeError, LostWorkerError, StoreError, WorkerError

J = TypeVar("J")
A = TypeVar("A")
Executor = Literal["here", "processes", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan(Generic[J, A]):
    """Jobs, each with its own key, which can be hashed and sent."""

    jobs: Mapping[J, float]
    """Cost of each job, in the order for one worker; several workers begin with the longest."""
    done: Callable[[J], A | None] = lambda job: None
    """Returns the finished answer of a job; None if it is still to do."""
    sent: Callable[[J], Any] = lambda job: job
    """Returns the data that a worker receives for a job."""
    label: Callable[[J], str] = str
    """Describes a process that does the job, such as: fine-tunes layer 3 with seed 0."""
    unit: str = "jobs"
    """Unit of progress."""
    whole: float = 0.0
    """Upper limit of all costs, for plans that grow during the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Kind, number and devices of worker processes."""

    executor: Executor = "here"
    """This process, processes of this machine, or processes on the nodes of a Ray cluster."""
    count: int | None = None
    """Most jobs at a time; by default one per GPU, else one; on a cluster one per node."""
    devices: tuple[str, ...] = ("cpu",)
    """Devices of this machine, used in turn, such as cuda:0 and cuda:1; a job has a GPU for itself."""
    address: str | None = None
    """Address of a Ray cluster for `ray.init`: host:port, auto for one on this machine, local for a new one."""
    folders: tuple[Path, ...] = ()
    """Folders of the jobs, which all machines must see."""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise DataError(f"expected at least one worker, got {self.count}")

    @property
    def gpus(self) -> int:
        """Number of GPUs per job."""
        return int(self.devices[0].startswith("cuda"))


HERE = Workers()
"""The current process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Resources of one worker on its machine; None: the same as the planning process, which is this one."""

    threads: int | None = None
    device: str | None = None


logger = logging.getLogger(__name__)

Work = Callable[[Any], Any]
"""Does one job. None: another process holds it. StoreError and WorkerError: no job can be done
here; any other LayerProbeError: this job cannot be done."""
Begin = Callable[[Any, Share], Work]
"""Returns the function that does jobs, from a setting and a share of the machine; called once per worker, and imported
by name where workers are other processes."""


Message = tuple[Any, str, Any]
"""A worker, the kind of its message, and a value: the finished share of its job, the answer, the error, the
traceback, or an exit code. Kinds: ready: can be given jobs; progress; answer; failed: the job cannot be
done; unfit: the worker cannot do any job; raised: it ended with an unexpected error; ended: it is gone."""


class Worker:
    """A worker that does one job at a time."""

    name = "a worker process"

    def __init__(self) -> None:
        self.ready = False
        self.jobs: list[Any] = []
        """Its current job, if any."""
        self.done = 0.0
        """Finished share of the job, as last reported."""


class Crew(abc.ABC):
    """A group of workers with the same setup; closing it ends them, and later workers are new.

    Args:
        workers: Kind and number of workers.
        begin: Function that prepares a worker for jobs.
        setting: Argument of `begin`.
        most: Largest number of jobs: further workers would leave their processors idle.
    """

    tries: ClassVar[int]
    """How many workers a job may lose."""
    inside: ClassVar[bool] = False
    """Whether jobs report their own progress, because they run in this process."""
    n_at_a_time: int | None = None
    """Number of jobs at a time; None if it varies."""

    def __init__(self, workers: Workers, begin: Begin, setting: Any, *, most: int) -> None:
        self.spec, self.begin, self.setting, self.most = workers, begin, setting, most
        self.workers: list[Any] = []
        self._logged: set[tuple[int, str]] = set()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def hire(self, n_jobs: int) -> None:
        """Start workers where there is room, at most one per job."""

    @abc.abstractmethod
    def give(self, worker: Any, job: Any, part: AbstractContextManager[object]) -> None:
        """Let an idle worker begin a job; progress inside `part` counts as a part of the whole plan."""

    @abc.abstractmethod
    def messages(self, seconds: float | None) -> Iterator[Message]:
        """Wait for workers, at most `seconds` if given, and yield their messages."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all workers."""

    def dismiss(self, worker: Any, kind: str, value: Any) -> None:
        """End a lost or unusable worker, given its last message; raise if no other worker could do its jobs."""
        self.workers.remove(worker)
        if kind in ("unfit", "failed"):
            raise value
        if kind == "raised" and not worker.ready:
            raise RuntimeError(f"a worker process raised:\n{value}")

    def log(self, level: int, line: str) -> None:
        """Log a worker's line in this process; repeated lines of several workers are logged once."""
        if (level, line) not in self._logged:
            self._logged.add((level, line))
            logger.log(level, "%s", line)


def make_crew(begin: Begin, setting: Any, workers: Workers = HERE, *, most: int = 1) -> Crew:
    """Return the crew for the jobs; workers start only when there is a job."""
    if workers.executor == "here":
        return Here(workers, begin, setting, most=most)
    if workers.executor == "processes":
        from layerprobe.jobs.processes import Processes

        return Processes(workers, begin, setting, most=most)
    from layerprobe.jobs.ray_cluster import RayProcesses

    return RayProcesses(workers, begin, setting, most=most)


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
        """Remember a job; `messages` does it."""
        self.current = (job, part)

    def messages(self, seconds: float | None) -> Iterator[Message]:
        """Do the job; unexpected errors propagate."""
        (worker,) = self.workers
        if worker.jobs:
            job, part = self.current
            with part:
                answer = answered(self.work, job)
            yield worker, *answer
        else:
            time.sleep(seconds or 0.0)

    def close(self) -> None:
        """Forget the worker."""
        self.workers = []


def answered(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Return a function's result as `answer`, or its error as `unfit` or `failed`."""
    try:
        return "answer", function(*arguments)
    except (StoreError, WorkerError) as error:
        return "unfit", error
    except LayerProbeError as error:
        return "failed", error


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Do the same in another process; unexpected errors become a traceback, as `raised`."""
    try:
        return answered(function, *arguments)
    except Exception:
        return "raised", traceback.format_exc()


def forward_logs(send: Callable[[int, str], None]) -> None:
    """Send layerprobe's log of this process, level and line, to `send` only."""
    root, handler = logging.getLogger("layerprobe"), logging.Handler()
    handler.emit = lambda record: send(record.levelno, record.getMessage())  # type: ignore[method-assign]
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.INFO)


PAUSE = 0.5
"""Seconds before a postponed job is tried again."""


def execute(
    plan: Plan[J, A], crew: Crew, *, reports: bool = True
) -> Generator[tuple[J, A | LayerProbeError], None, None]:
    """Run the unfinished jobs of a plan; yield each with its answer or error as it ends.

    Finished jobs come first. Jobs that are added to the plan meanwhile are done as well. Close the generator to end all
    workers early. A job whose workers were all killed, or that raised an unexpected error, is a `LostWorkerError`.

    Args:
        plan: The jobs.
        crew: The workers; a crew can do one plan after another.
        reports: Whether to report the cost of finished jobs as progress; False if the caller does.
    """
    queue = _Queue(plan, crew)
    finished = 0.0
    try:
        while True:
            for job, answer in queue.admitted():
                finished += plan.jobs[job]
                yield job, answer
            if not queue.left:
                break
            whole = max(plan.whole, sum(plan.jobs.values()))
            crew.hire(queue.left if queue else 0)  # without waiting jobs, more workers would not help
            for worker in crew.workers:
                if worker.ready and not worker.jobs and (taken := queue.take()):
                    worker.jobs, worker.done = taken, 0.0
                    cost = plan.jobs[taken[0]]
                    within = part(start=finished, share=cost, whole=whole) if reports else contextlib.nullcontext()
                    crew.give(worker, plan.sent(taken[0]), within)
            idle = any(worker.ready and not worker.jobs for worker in crew.workers)
            for worker, kind, value in crew.messages(queue.seconds_to_next() if idle else None):
                if kind == "progress":
                    worker.done = value
                    if reports:
                        report(plan.unit, finished + _begun(plan, crew), whole)
                    continue
                for job, outcome in queue.taken(worker, kind, value):
                    finished += plan.jobs[job]
                    if reports and not crew.inside:
                        report(plan.unit, finished + _begun(plan, crew), whole)
                    yield job, outcome
    finally:
        if queue.left:
            crew.close()


def _begun(plan: Plan[Any, Any], crew: Crew) -> float:
    """Return the finished cost of the jobs in progress."""
    return float(sum(worker.done * plan.jobs[job] for worker in crew.workers for job in worker.jobs))


def results(plan: Plan[J, A], crew: Crew) -> dict[J, A]:
    """Return the result of every job of a plan, in its order."""
    answers = {}
    for job, outcome in execute(plan, crew):
        if isinstance(outcome, LayerProbeError):
            raise outcome
        answers[job] = outcome
    return {job: answers[job] for job in plan.jobs}


class _Queue(Generic[J, A]):
    """Waiting jobs, and the number of unfinished ones."""

    def __init__(self, plan: Plan[J, A], crew: Crew) -> None:
        self.plan, self.crew = plan, crew
        self._jobs: collections.deque[J] = collections.deque()
        self._known = set[J]()
        self.left = 0
        """All jobs except those that are done or lost."""
        self._later: collections.deque[tuple[float, J]] = collections.deque()
        """Postponed jobs, and when to try them again."""
        self._ended: collections.Counter[J] = collections.Counter()
        self._waited_for: set[J] = set()

    def admitted(self) -> Iterator[tuple[J, A]]:
        """Accept new jobs of the plan; yield those that are already finished."""
        while new := [job for job in self.plan.jobs if job not in self._known]:
            self._known.update(new)
            finished = {job: self.plan.done(job) for job in new}
            missing = [job for job in new if finished[job] is None]
            self._jobs.extend(missing if self.crew.inside else sorted(missing, key=lambda job: -self.plan.jobs[job]))
            self.left += len(missing)
            yield from ((job, answer) for job, answer in finished.items() if answer is not None)

    def __bool__(self) -> bool:
        """Whether any job is waiting."""
        return bool(self._jobs or self._later)

    def take(self) -> list[J]:
        """Return the next job; empty if there is none, or if postponed ones must still wait."""
        if self._jobs:
            return [self._jobs.popleft()]
        if self._later and self._later[0][0] <= time.monotonic():
            return [self._later.popleft()[1]]
        if self._later and (job := self._later[0][1]) not in self._waited_for:
            self._waited_for.add(job)
            logger.info("waiting for another process that %s", self.plan.label(job))
        return []

    def seconds_to_next(self) -> float | None:
        """Return the seconds until a postponed job is tried again; None without one."""
        return max(self._later[0][0] - time.monotonic(), 0.0) if self._later else None

    def taken(self, worker: Any, kind: str, value: Any) -> Iterator[tuple[J, A | LayerProbeError]]:
        """Handle a worker's message; yield its job if that is done or has failed."""
        if kind == "ready":
            worker.ready = True
            return
        jobs, worker.jobs = worker.jobs, []
        if kind not in ("answer", "failed") or not worker.ready:
            self.crew.dismiss(worker, kind, value)
        for job in jobs:
            if kind == "answer" and value is None:
                self._later.append((time.monotonic() + PAUSE, job))
            elif kind == "unfit":  # the job itself is fine
                self._jobs.append(job)
            elif kind == "ended" and self._ended[job] < self.crew.tries - 1:
                self._ended[job] += 1
                self._jobs.append(job)
                code = f" (exit code {value})" if isinstance(value, int) else ""
                logger.warning("%s ended%s: restarting its run", worker.name, code)
            else:
                self.left -= 1
                yield job, value if kind in ("answer", "failed") else _lost(kind, value)


def _lost(kind: str, value: Any) -> LostWorkerError:
    """Return the answer for a job that lost all of its workers."""
    if kind == "raised":
        logger.error("%s", value)
        return LostWorkerError(f"unexpected error: {value.splitlines()[-1]}")
    how = "repeatedly"
    if isinstance(value, int):
        how = f"twice ({f'signal {-value}' if value < 0 else f'exit code {value}'})"
    return LostWorkerError(f"its process was killed {how}: if memory ran out, use fewer workers or a smaller batch")
