"""What belongs to the whole process, how several threads change it, and what becomes of it where a process forks."""

import contextlib
import importlib
import io
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import get_ident

from layerprobe.errors import WorkerError

_ADVICE = {
    "failed to map segment|cannot allocate memory": "free memory, or raise the limit of a process (ulimit -v)",
    "too many open files": "raise the limit of open files (ulimit -n)",
    "file too large": "raise the limit on the size of files (ulimit -f)",
    "can't start new thread|resource temporarily unavailable": "raise the limit of processes and threads (ulimit -u)",
    "no usable temporary directory": "free space, or name another folder with TMPDIR",
}
"""By what errors say, of Python and of libraries that it loads."""


def limit_advice(error: BaseException) -> str | None:
    """Return what to do where the system has no more memory, files, threads or room; None of another error.

    Examples:
        >>> limit_advice(OSError(24, "Too many open files"))
        'raise the limit of open files (ulimit -n)'
    """
    text = str(error)
    return next((advice for words, advice in _ADVICE.items() if re.search(words, text, re.IGNORECASE)), None)


Context = Callable[[], AbstractContextManager[None]]
FORK_SECONDS = 10.0
"""For which a fork waits for calls in other threads to reach a place where they compute nothing."""


class Forks:
    """Has threads compute nothing while another one forks.

    Libraries hold locks while they compute, and Python does while it imports. What is forked meanwhile waits for them
    for ever, and OpenBLAS, which ends its threads for a fork, for results that never come, in both processes. So a
    fork waits until all other threads that are in a call of layerprobe report progress, and these until it is done.
    """

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._running: Counter[int] = Counter()
        """How many calls a thread is in, one within the other."""
        self._resting: Counter[int] = Counter()
        self._forking = 0
        self._beside = False
        """Whether this process was forked while another thread computed."""
        self._one_thread = False
        """Whether torch is still to be told that the threads that it had are not here."""
        self._registered = not hasattr(os, "register_at_fork")

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Be in a call, which forks wait for; raise WorkerError in a process in which it could wait for ever."""
        if self._beside:
            raise WorkerError(
                "this process was forked while another thread computed, so it could wait for ever for locks of that "
                "thread: start processes by spawn (multiprocessing.get_context('spawn')), or before such threads"
            )
        if not self._registered:
            self._register()
        if self._one_thread:  # OpenMP of GNU waits for ever for threads that were not forked
            sys.modules["torch"].set_num_threads(1)
            self._one_thread = False
        me = get_ident()
        with self._state:
            self._state.wait_for(lambda: not self._forking or self._running[me])
            self._running[me] += 1
        try:
            yield
        finally:
            with self._state:
                self._running[me] -= 1
                self._state.notify_all()

    def _register(self) -> None:
        self._registered = True
        # what registers last is asked first: once these have closed their gates, calls would wait there
        for name in ("concurrent.futures.thread", "filelock", "logging"):
            importlib.import_module(name)
        os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    @contextlib.contextmanager
    def rest(self) -> Iterator[None]:
        """Compute nothing meanwhile, and leave it once no thread forks."""
        me = get_ident()
        with self._state:
            self._resting[me] += 1
            self._state.notify_all()
        try:
            yield
        finally:
            with self._state:
                self._state.wait_for(lambda: not self._forking or self._resting[me] > 1)
                self._resting[me] -= 1

    def _computing(self) -> bool:
        me = get_ident()
        return any(n and thread != me and not self._resting[thread] for thread, n in self._running.items())

    def _before(self) -> None:
        with self._state:
            self._forking += 1
            self._resting[get_ident()] += 1
            self._state.notify_all()
            self._state.wait_for(lambda: not self._computing(), timeout=FORK_SECONDS)

    def _in_parent(self) -> None:
        with self._state:
            self._forking -= 1
            self._resting[get_ident()] -= 1
            self._state.notify_all()

    def _in_child(self) -> None:
        me = get_ident()
        self._beside |= self._computing()
        self._one_thread = "torch" in sys.modules
        self._state, self._forking = threading.Condition(), 0
        self._running, self._resting = Counter({me: self._running[me]}), Counter({me: self._resting[me] - 1})


FORKS = Forks()


class OneAtATime:
    """A context for one thread at a time, in which that thread may be again; free in a process forked meanwhile."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            with FORKS.rest():
                self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


MAKING_MODELS = OneAtATime()
"""In which models are made: transformers replaces `torch.nn.init` meanwhile. No other lock is taken in it."""


def while_needed(change: Context) -> Context:
    """Make the change of a context hold while any thread is in it: the first one makes it, the last one undoes it.

    Contexts that each put back what they found leave the change behind where threads overlap.

    Examples:
        >>> @while_needed
        ... @contextlib.contextmanager
        ... def shown():
        ...     print("made")
        ...     yield
        ...     print("undone")
        >>> with shown(), shown():
        ...     print("needed")
        made
        needed
        undone
    """
    lock, within, undo = OneAtATime(), dict[object, int](), contextlib.ExitStack()

    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        entry = object()
        with lock:
            if not within:
                undo.enter_context(change())
            within[entry] = get_ident()
        try:
            yield
        finally:
            with lock:
                within.pop(entry, None)
                if not within:
                    undo.close()

    def forked() -> None:
        """Undo it in a process forked by a thread that is not in it."""
        if within and get_ident() not in within.values():
            within.clear()
            undo.close()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forked)
    return shared


@while_needed
@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Keep away what libraries warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@while_needed
@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep away what is printed."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def silence_if(needed: bool) -> AbstractContextManager[None]:
    """Keep away what is printed where that is needed: what code prints that came with a model."""
    return silence() if needed else contextlib.nullcontext()
