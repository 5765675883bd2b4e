"""Workers in separate processes on this machine. Knows processes and pipes, not the content of jobs.

A killed process loses only its current job; a process whose parent is gone ends.

On Linux, CPU workers are forked from a process that has only imported what they need, which
takes seconds: once, and in parallel with other work. CUDA, and libraries of macOS, fail in forked processes.

No library does all of this (tests/jobs/test_processes.py, tried in 2026): processes of loky 3.7 and pebble 5.2
outlive a killed parent, share one setting and forward no logs, and loky gives up every job if one process dies; Ray
2.60 takes seconds to start and does not report how a process ended (many machines: `layerprobe.jobs.ray_cluster`).
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from layerprobe.context import settings
from layerprobe.errors import ON_COMMAND_LINE, LayerProbeError
from layerprobe.jobs.crew import Begin, Crew, Message, Share, Worker, Workers, attempt, forward_logs

_STARTS = 3
"""How many processes in a row may end before they are ready."""
_UNGUARDED = 70
"""Exit code of a process that, on starting, repeats the unguarded call of a script."""
_GUARD = 'in a script, put the call under `if __name__ == "__main__":`'
_SECONDS = 1.0
"""Seconds between two progress messages of a job."""


class Processes(Crew):
    """Spawned processes that share the processors and GPUs of this machine."""

    tries = 2

    def __init__(self, workers: Workers, begin: Begin, setting: Any, *, most: int) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # is importing its parent's script
            os._exit(_UNGUARDED)
        super().__init__(workers, begin, setting, most=most)
        import_ahead(begin.__module__, workers)
        self.free = shares(workers, most)
        self.n_at_a_time = len(self.free)
        self.unready = 0

    def hire(self, n_jobs: int) -> None:
        """Start processes for the free shares."""
        while self.free and len(self.workers) < n_jobs:
            self.workers.append(_Process(self.begin, self.setting, self.free.pop(0)))

    def give(self, worker: "_Process", job: Any, part: contextlib.AbstractContextManager[object]) -> None:
        """Send a job."""
        with contextlib.suppress(OSError):  # the process is gone: reading reports it
            worker.pipe.send(job)

    def messages(self, seconds: float | None) -> Iterator[Message]:
        """Yield the messages of processes; their log lines are logged here."""
        pipes = wait([worker.pipe for worker in self.workers], seconds)
        for worker in [worker for worker in self.workers if worker.pipe in pipes]:
            try:
                kind, value = worker.pipe.recv()
            except (EOFError, OSError):
                kind, value = "ended", worker.end()
            if kind == "log":
                self.log(*value)
            else:
                yield worker, kind, value

    def dismiss(self, worker: "_Process", kind: str, value: Any) -> None:
        """End a process and free its share."""
        self.free.append(worker.share)
        exit_code = worker.end()
        super().dismiss(worker, kind, value)
        self.unready = 0 if worker.ready else self.unready + 1
        if self.unready == _STARTS or exit_code == _UNGUARDED:
            raise LayerProbeError(f"the worker processes end before they are ready (exit code {exit_code}): {_GUARD}")

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.end()
            self.free.append(worker.share)
        self.workers = []


def shares(workers: Workers, most: int) -> list[Share]:
    """Return each worker's share of this machine: a device in turn, and a part of the processors."""
    devices = workers.devices
    count = max(1, min(workers.count or len(devices), most))
    return [Share(threads=max(1, available_cores() // count), device=devices[i % len(devices)]) for i in range(count)]


def available_cores() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def import_ahead(module: str, workers: Workers) -> None:
    """Start importing a module in the process that workers are forked from, if any; return at once."""
    if workers.executor == "processes" and all(map(_is_forked, workers.devices)):
        with contextlib.suppress(OSError), _sigint_ignored():
            forkserver.set_forkserver_preload([module])  # has no effect once the fork server runs
            forkserver.ensure_running()


def _is_forked(device: str | None) -> bool:
    return device == "cpu" and sys.platform == "linux"


class _Process(Worker):
    """A worker process, seen from its parent."""

    def __init__(self, begin: Begin, setting: Any, share: Share) -> None:
        super().__init__()
        self.share = share
        self.pipe, theirs = multiprocessing.Pipe()
        alive, self.alive = multiprocessing.Pipe(duplex=False)
        work = ForkingPickler.dumps((begin, setting, share))
        inherited = theirs, alive, ON_COMMAND_LINE.get(), dict(os.environ)
        with _sigint_ignored():  # inherited: Ctrl-C reaches only the parent, which ends its workers
            try:
                self.process = _begun("forkserver" if _is_forked(share.device) else "spawn", *inherited)
            except EOFError:  # the fork server has ended, for example without memory
                self.process = _begun("spawn", *inherited)
        theirs.close()
        alive.close()
        # a pipe buffers little before the process reads, which takes seconds: processes start in parallel
        threading.Thread(target=self._send, args=(work,), daemon=True).start()

    def _send(self, work: Any) -> None:
        with contextlib.suppress(OSError):  # the process is gone: reading reports it
            self.pipe.send_bytes(work)

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


def _begun(how: str, *inherited: Any) -> BaseProcess:
    process: BaseProcess = multiprocessing.get_context(how).Process(target=_serve, args=inherited, daemon=True)  # type: ignore[attr-defined]
    process.start()
    return process


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


def _serve(pipe: Connection, alive: Connection, on_command_line: bool, environment: dict[str, str]) -> None:
    ON_COMMAND_LINE.set(on_command_line)
    os.environ.clear()
    os.environ.update(environment)  # the parent's current one, not that of the fork server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()

    def send(level: int, line: str) -> None:
        with contextlib.suppress(OSError):
            pipe.send(("log", (level, line)))

    forward_logs(send)
    # any error of a job is sent; EOFError or BrokenPipeError on this pipe: the parent has closed it
    with contextlib.suppress(EOFError, BrokenPipeError):
        begin, setting, share = pipe.recv()
        kind, value = attempt(begin, setting, share)
        if kind != "answer":
            pipe.send((kind, value))
            return
        pipe.send(("ready", None))
        work, told = value, 0.0

        def progress(task: str, done: float, total: float) -> None:
            nonlocal told
            if time.monotonic() > told + _SECONDS:
                told = time.monotonic()
                pipe.send(("progress", done / total))

        with settings(progress=progress):
            while kind in ("answer", "failed"):
                kind, value = attempt(work, pipe.recv())
                pipe.send((kind, value))


def _end_with(alive: Connection) -> None:
    """End this process as soon as its parent is gone: only the parent holds the other end of the pipe."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)
