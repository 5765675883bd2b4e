"""What is to be done, and by whom: a plan of jobs with keys and costs, crews of workers, and the one loop over jobs.

A crew begins workers, in this process, in others or on a cluster, and carries messages. The loop decides which worker
gets which job: what is there is not done again; a job that another process is at is put off; one whose worker is lost
is begun again; a failure is a value, and the caller decides what follows from it. Knows not what a job is.
"""

import abc
import collections
import contextlib
import logging
import pkgutil
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from layerprobe.context import part, report
from layerprobe.errors import DataError, LayerProbeError, LostWorkerError, StoreError, WorkerError

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
    whole: float = 0.0
    """What all cost at most, where further ones are added while some are done."""


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


Message = tuple[Any, str, Any]
"""A worker, the kind of its message, and a value: the share of its job that is done, the answer, the error, the
traceback, or how a process ended. Kinds are ready: it can be given jobs; progress; answer; failed: the job cannot be
done; unfit: the worker cannot do any; raised: it ended with what nobody expected; ended: it is gone."""


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
        """Let an idle worker begin a job; inside `part` what it reports is a part of the whole plan."""

    @abc.abstractmethod
    def messages(self, seconds: float | None) -> Iterator[Message]:
        """Wait for workers, so long at most where that is given, and give what came of them."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all workers."""

    def dismiss(self, worker: Any, kind: str, value: Any) -> None:
        """End a worker that is lost or unusable by its last message; raise if no other could do its jobs."""
        self.workers.remove(worker)
        if kind in ("unfit", "failed"):
            raise value
        if kind == "raised" and not worker.ready:
            raise RuntimeError(f"a worker process raised:\n{value}")

    def log(self, level: int, line: str) -> None:
        """Log a line of a worker here: what several log is logged once."""
        if (level, line) not in self._logged:
            self._logged.add((level, line))
            logger.log(level, "%s", line)


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
                answer = answered(self.work, job)
            yield worker, *answer
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


def forward_logs(send: Callable[[int, str], None]) -> None:
    """Give what layerprobe logs in this process, level and line, to `send` alone."""
    root, handler = logging.getLogger("layerprobe"), logging.Handler()
    handler.emit = lambda record: send(record.levelno, record.getMessage())  # type: ignore[method-assign]
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.INFO)


EXECUTORS = {
    "here": "layerprobe.jobs.crew:Here",
    "processes": "layerprobe.jobs.processes:Processes",
    "ray": "layerprobe.jobs.ray_cluster:RayProcesses",
}

PAUSE = 0.5
"""Seconds before a job that could not be done is tried again."""


def execute(
    plan: Plan[J, A], crew: Crew, *, done: Collection[J] | None = None, reports: bool = True
) -> Generator[tuple[J, A | LayerProbeError], None, None]:
    """Run the unfinished jobs of a plan; yield each with its answer, or why there is none, as it ends.

    What is there comes first, where it is not known to the caller. Jobs that are added to the plan while its jobs are
    done are done, too.
    Close the generator to end all workers early. The failure of a job whose workers were all killed, or that raised
    what nobody expected, is a `LostWorkerError`.

    Args:
        plan: What is to be done.
        crew: Who does it; a crew can be given one plan after another.
        done: The jobs that are there, which are left out; by default the plan is asked, and they are given.
        reports: Whether what costs are done, of all, is reported; False where the caller does that.
    """
    queue = _Queue(plan, done, crew)
    finished = sum(plan.jobs[job] for job in done or ())
    try:
        while True:
            for job, answer in queue.admitted():
                finished += plan.jobs[job]
                yield job, answer
            if not queue.left:
                break
            whole = max(plan.whole, sum(plan.jobs.values()))
            crew.hire(queue.left if queue else 0)  # where none waits, no further worker is of use
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
    """Return how much is done of the jobs that workers are at."""
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
    """Jobs that no worker has taken, and how many are unfinished."""

    def __init__(self, plan: Plan[J, A], done: Collection[J] | None, crew: Crew) -> None:
        self.plan, self.crew = plan, crew
        self._jobs: collections.deque[J] = collections.deque()
        self._known = set(done or ())
        self._asks = done is None
        self.left = 0
        """Without those that are done or lost."""
        self._later: collections.deque[tuple[float, J]] = collections.deque()
        """Jobs that could not be done, and from when on they are tried again."""
        self._ended: collections.Counter[J] = collections.Counter()
        self._waited_for: set[J] = set()

    def admitted(self) -> Iterator[tuple[J, A]]:
        """Take new jobs of the plan; yield those that are finished already."""
        while new := [job for job in self.plan.jobs if job not in self._known]:
            self._known.update(new)
            finished = {job: self.plan.done(job) for job in new} if self._asks else {}
            missing = [job for job in new if finished.get(job) is None]
            self._jobs.extend(missing if self.crew.inside else sorted(missing, key=lambda job: -self.plan.jobs[job]))
            self.left += len(missing)
            yield from ((job, answer) for job, answer in finished.items() if answer is not None)

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._jobs or self._later)

    def take(self) -> list[J]:
        """Return the next job; none where there is none, or it is too early for those that are put off."""
        if self._jobs:
            return [self._jobs.popleft()]
        if self._later and self._later[0][0] <= time.monotonic():
            return [self._later.popleft()[1]]
        if self._later and (job := self._later[0][1]) not in self._waited_for:
            self._waited_for.add(job)
            logger.info("waiting for another process that %s", self.plan.label(job))
        return []

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds a job that is put off is tried again; None where there is none."""
        return max(self._later[0][0] - time.monotonic(), 0.0) if self._later else None

    def taken(self, worker: Any, kind: str, value: Any) -> Iterator[tuple[J, A | LayerProbeError]]:
        """Take the message of a worker; give its job where that is done, or cannot be."""
        if kind == "ready":
            worker.ready = True
            return
        jobs, worker.jobs = worker.jobs, []
        if kind not in ("answer", "failed") or not worker.ready:
            self.crew.dismiss(worker, kind, value)
        for job in jobs:
            if kind == "answer" and value is None:
                self._later.append((time.monotonic() + PAUSE, job))
            elif kind == "unfit":  # it is not the job's fault
                self._jobs.append(job)
            elif kind == "ended" and self._ended[job] < self.crew.tries - 1:
                self._ended[job] += 1
                self._jobs.append(job)
                code = f" (exit code {value})" if isinstance(value, int) else ""
                logger.warning("%s ended%s: its run is begun again", worker.name, code)
            else:
                self.left -= 1
                yield job, value if kind in ("answer", "failed") else _lost(kind, value)


def _lost(kind: str, value: Any) -> LostWorkerError:
    """Return the answer for a job whose workers were all lost."""
    if kind == "raised":
        logger.error("%s", value)
        return LostWorkerError(f"an error that was not expected: {value.splitlines()[-1]}")
    how = "again and again"
    if isinstance(value, int):
        how = f"twice ({f'signal {-value}' if value < 0 else f'exit code {value}'})"
    return LostWorkerError(f"its process was ended {how}: if memory ran out, use fewer workers or a smaller batch")
