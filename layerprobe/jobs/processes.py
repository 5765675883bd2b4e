"""Jobs in processes of their own, some at a time. Knows processes and pipes, not what a job is.

A process that is killed costs the job it was at; one whose parent is gone ends.

No library keeps all of this (tests/jobs/test_processes.py, tried in 2026): processes of loky 3.7 and pebble 5.2 outlive
a killed parent, all get one setting and forward no logs, and loky gives up every job where one process is killed; Ray
2.60 takes seconds to begin and does not say how a process ended (for many machines: `layerprobe.jobs.ray_cluster`).
"""

from __future__ import annotations

import collections
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from layerprobe.errors import LayerProbeError, StoreError, WorkerError

logger = logging.getLogger(__name__)

S = TypeVar("S")
J = TypeVar("J")
A = TypeVar("A")
Start = Callable[[S], Callable[[J], A | None]]

TRIES = 2
"""How often a job may lose its process."""
_STARTS = 3
"""How many processes in a row may end before they are ready."""
PAUSE = 0.5
"""Seconds before a job that could not be done is tried again."""


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of an answer: every process that tried the job was killed, or one raised what nobody expected."""

    exit_code: int | None
    """Of the last one; negative: the signal; None where that is not known."""
    trace: str | None = None
    """The traceback of what was raised."""


def pooled(
    start: Start[S, J, A],
    settings: Sequence[S],
    jobs: Sequence[J],
    *,
    waiting: Callable[[J], None] = lambda job: None,
) -> Generator[tuple[J, A | Lost], None, None]:
    """Do jobs in as many processes as there are settings; give each job with its answer as it ends.

    What the processes log is logged here, the same text once. Close the generator to end all processes early.

    Args:
        start: Given a setting, returns what does a job; it is called once in each process. It must be found by name
            in its module. An answer of None means: not now; the job is put at the end.
        settings: One process each.
        jobs: In the order they are begun.
        waiting: Called with a job that is waited for, once, when there is nothing else to do.

    Raises:
        LayerProbeError: If the processes cannot be started.
        StoreError, WorkerError: That `start` or a job raises: no process could go on.
        RuntimeError: If `start` raises anything else; with its traceback.
    """
    pool = _Pool(start, jobs, waiting)
    say = said_once()
    try:
        for setting in settings[: len(jobs)]:
            pool.workers.append(_Worker(start, setting))
        while pool.jobs.left:
            pool.assign()
            for worker, kind, value in pool.messages():
                if kind == "log":
                    say(*value)
                elif kind == "ready":
                    worker.ready = True
                elif kind == "unfit":
                    raise value
                else:
                    answer = pool.answered(worker, value) if kind == "answer" else pool.ended(worker, value)
                    if answer is not None:
                        yield answer
    finally:
        for worker in pool.workers:
            worker.end()


class Jobs(Generic[J]):
    """The jobs of a pool that no process has, and how many are left to be done."""

    def __init__(self, jobs: Sequence[J], waiting: Callable[[J], None], *, tries: int = TRIES) -> None:
        self.waiting, self.tries = waiting, tries
        self.left = len(jobs)
        """Without those that are done or lost."""
        self._queue = collections.deque(jobs)
        self._later: collections.deque[tuple[float, J]] = collections.deque()
        """Jobs that could not be done, and from when on they are tried again."""
        self._lost: collections.Counter[J] = collections.Counter()
        self._waited_for: set[J] = set()

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._queue or self._later)

    def take(self) -> list[J]:
        """Return the next job; none where there is none, or it is too early for those that are put off."""
        if self._queue:
            return [self._queue.popleft()]
        if self._later and self._later[0][0] <= time.monotonic():
            return [self._later.popleft()[1]]
        if self._later and (job := self._later[0][1]) not in self._waited_for:
            self._waited_for.add(job)
            self.waiting(job)
        return []

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds a job that is put off is tried again; None where there is none."""
        return max(self._later[0][0] - time.monotonic(), 0.0) if self._later else None

    def put_off(self, job: J) -> None:
        """Put a job at the end that cannot be done now."""
        self._later.append((time.monotonic() + PAUSE, job))

    def give_back(self, job: J) -> None:
        """Take a job back whose process cannot do it; it is not the job's fault."""
        self._queue.append(job)

    def is_given_up(self, job: J) -> bool:
        """Take a job back that has lost its process; return whether that was once too often."""
        self._lost[job] += 1
        if self._lost[job] < self.tries:
            self._queue.append(job)
        return self._lost[job] >= self.tries


def said_once() -> Callable[[int, str], None]:
    """Return what logs the lines of processes here: what several say is said once."""
    said: set[tuple[int, str]] = set()

    def say(level: int, line: str) -> None:
        if (level, line) not in said:
            said.add((level, line))
            logger.log(level, "%s", line)

    return say


class _Pool(Generic[S, J, A]):
    """The processes and the jobs."""

    def __init__(self, start: Start[S, J, A], jobs: Sequence[J], waiting: Callable[[J], None]) -> None:
        self.start = start
        self.jobs = Jobs(jobs, waiting)
        self.workers: list[_Worker[S, J, A]] = []
        self.unready = 0

    def assign(self) -> None:
        """Give idle processes their next jobs."""
        for worker in [worker for worker in self.workers if worker.idle]:
            for job in self.jobs.take():
                worker.give(job)

    def messages(self) -> Iterator[tuple[_Worker[S, J, A], str, Any]]:
        """Wait for processes to say something, or for a job to be tried again; give what they say."""
        due = self.jobs.seconds_to_next() if any(worker.idle for worker in self.workers) else None
        ready = wait([worker.pipe for worker in self.workers], due)
        for worker in [worker for worker in self.workers if worker.pipe in ready]:
            try:
                kind, value = worker.pipe.recv()
            except (EOFError, OSError):
                kind, value = "ended", None
            yield worker, kind, value

    def answered(self, worker: _Worker[S, J, A], answer: A | None) -> tuple[J, A] | None:
        """Take the answer to a job; None where it is to be tried again."""
        job, worker.job = worker.job, None
        assert job is not None
        if answer is None:
            self.jobs.put_off(job)
            return None
        self.jobs.left -= 1
        return job, answer

    def ended(self, worker: _Worker[S, J, A], trace: str | None) -> tuple[J, Lost] | None:
        """Begin another process in place of one that ended; return its job where that is not tried again."""
        exit_code, job = worker.end(), worker.job
        self.workers.remove(worker)
        self.unready = 0 if worker.ready else self.unready + 1
        if self.unready == _STARTS:
            raise LayerProbeError(
                f"the worker processes end before they are ready (exit code {exit_code}): in a script, begin the sweep "
                'under `if __name__ == "__main__":`'
            )
        if job is None and trace is not None:
            raise RuntimeError(f"a worker process raised:\n{trace}")
        lost = None
        if job is not None:
            if trace is not None or self.jobs.is_given_up(job):
                self.jobs.left -= 1
                lost = job, Lost(exit_code, trace)
            else:
                logger.warning("a worker process ended (exit code %d): its run is begun again", exit_code)
        if self.jobs:
            self.workers.append(_Worker(self.start, worker.setting))
        return lost


class _Worker(Generic[S, J, A]):
    """A process, seen from its parent."""

    def __init__(self, start: Start[S, J, A], setting: S) -> None:
        self.setting = setting
        self.job: J | None = None
        self.ready = False
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        alive, self.alive = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, alive, start, setting), daemon=True)
        with _sigint_ignored():  # which a new process inherits: Ctrl-C is for the parent, which ends the others
            self.process.start()
        theirs.close()
        alive.close()

    @property
    def idle(self) -> bool:
        return self.ready and self.job is None

    def give(self, job: J) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # the process is gone: reading says so
            self.pipe.send(job)

    def end(self) -> int:
        """End the process and return its exit code."""
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.alive.close()
        return self.process.exitcode or 0


@contextlib.contextmanager
def _sigint_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- in the process -----------------------------------------------------------------------------------


def _serve(pipe: Connection, alive: Connection, start: Start[Any, Any, Any], setting: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()

    def send(level: int, line: str) -> None:
        with contextlib.suppress(OSError):
            pipe.send(("log", (level, line)))

    forward_logs(send)
    # what a job raises is sent, whatever it is; EOFError or BrokenPipeError of this pipe: the parent has closed it
    with contextlib.suppress(EOFError, BrokenPipeError):
        kind, value = attempt(start, setting)
        if kind != "answer":
            pipe.send((kind, value))
            return
        pipe.send(("ready", None))
        work = value
        while kind == "answer":
            kind, value = attempt(work, pipe.recv())
            pipe.send((kind, value))


def attempt(function: Callable[[Any], Any], argument: Any) -> tuple[str, Any]:
    """Return what a function gives as `answer`, or as `unfit` or `raised` why it gives nothing."""
    try:
        return "answer", function(argument)
    except (StoreError, WorkerError) as error:
        return "unfit", error
    except Exception:
        return "raised", traceback.format_exc()


def _end_with(alive: Connection) -> None:
    """End this process as soon as its parent is gone: the parent has the only other end of the pipe."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)


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
