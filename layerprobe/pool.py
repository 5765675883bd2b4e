"""Jobs in processes of their own, some at a time. Knows processes and pipes, not what a job is.

A process that is killed costs the job it was at; one whose parent is gone ends.
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

from layerprobe.errors import LayerProbeError

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

    exit_code: int
    """Of the last one; negative: the signal."""
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
        RuntimeError: If `start` raises; with its traceback.
    """
    pool = _Pool(start, jobs, waiting)
    logged: set[tuple[int, str, str]] = set()
    try:
        for setting in settings[: len(jobs)]:
            pool.workers.append(_Worker(start, setting))
        while pool.left:
            pool.assign()
            for worker, kind, value in pool.messages():
                if kind == "log":
                    if value not in logged:  # what every process logs is logged once
                        logged.add(value)
                        logger.log(*value)
                elif kind == "ready":
                    worker.ready = True
                else:
                    answer = pool.answered(worker, value) if kind == "answer" else pool.ended(worker, value)
                    if answer is not None:
                        pool.left -= 1
                        yield answer
    finally:
        for worker in pool.workers:
            worker.end()


class _Pool(Generic[S, J, A]):
    """The processes, and the jobs that none of them has."""

    def __init__(self, start: Start[S, J, A], jobs: Sequence[J], waiting: Callable[[J], None]) -> None:
        self.start, self.waiting = start, waiting
        self.queue = collections.deque(jobs)
        self.later: collections.deque[tuple[float, J]] = collections.deque()
        """Jobs that could not be done, and from when on they are tried again."""
        self.left = len(jobs)
        self.workers: list[_Worker[S, J, A]] = []
        self.tries: collections.Counter[J] = collections.Counter()
        self.waited_for: set[J] = set()
        self.unready = 0

    def assign(self) -> None:
        """Give idle processes their next jobs."""
        for worker in self.workers:
            if worker.idle and self.queue:
                worker.give(self.queue.popleft())
            elif worker.idle and self.later and self.later[0][0] <= time.monotonic():
                worker.give(self.later.popleft()[1])
        if self.later and not self.queue and any(worker.idle for worker in self.workers):
            job = self.later[0][1]
            if job not in self.waited_for:
                self.waited_for.add(job)
                self.waiting(job)

    def messages(self) -> Iterator[tuple[_Worker[S, J, A], str, Any]]:
        """Wait for processes to say something, or for a job to be tried again; give what they say."""
        due = None
        if self.later and any(worker.idle for worker in self.workers):
            due = max(self.later[0][0] - time.monotonic(), 0.0)
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
        if answer is not None:
            return job, answer
        self.later.append((time.monotonic() + PAUSE, job))
        return None

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
            self.tries[job] += 1
            if trace is not None or self.tries[job] == TRIES:
                lost = job, Lost(exit_code, trace)
            else:
                logger.warning("a worker process ended (exit code %d): its run is begun again", exit_code)
                self.queue.append(job)
        if self.queue or self.later:
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
    handler = _Forwarding(pipe)
    root = logging.getLogger("layerprobe")
    root.handlers[:], root.propagate = [handler], False
    root.setLevel(logging.INFO)
    # what a job raises is sent, whatever it is; EOFError or BrokenPipeError of this pipe: the parent has closed it
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            work = start(setting)
        except Exception:
            pipe.send(("raised", traceback.format_exc()))
            return
        pipe.send(("ready", None))
        while True:
            job = pipe.recv()
            try:
                message = "answer", work(job)
            except Exception:
                message = "raised", traceback.format_exc()
            pipe.send(message)
            if message[0] == "raised":
                return


def _end_with(alive: Connection) -> None:
    """End this process as soon as its parent is gone: the parent has the only other end of the pipe."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)


class _Forwarding(logging.Handler):
    """Sends what is logged to the parent."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self.pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(("log", (record.levelno, "%s", record.getMessage())))
