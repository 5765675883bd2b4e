"""What belongs to the whole process, how several threads change it, and what a forked process must not do."""

import contextlib
import io
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import get_ident
from typing import TYPE_CHECKING, Any

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


class _Fork:
    """What a forked process knows of the one that it comes from."""

    computed = False
    """Whether another thread was in layerprobe."""
    lost_threads = False
    """Whether torch is still to be told that the threads that it had are not here."""

    @classmethod
    def before(cls) -> None:
        frames: Any = sys._current_frames()
        cls.computed = any(_in_layerprobe(frame) for thread, frame in frames.items() if thread != get_ident())

    @classmethod
    def in_parent(cls) -> None:
        cls.computed = False

    @classmethod
    def in_child(cls) -> None:
        cls.lost_threads = "torch" in sys.modules


def _in_layerprobe(frame: Any) -> bool:
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("layerprobe."):
        frame = frame.f_back
    return frame is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_Fork.before, after_in_parent=_Fork.in_parent, after_in_child=_Fork.in_child)


def check_fork() -> None:
    """Raise WorkerError in a process forked while another thread was in layerprobe.

    Libraries hold locks while they compute, and Python does while it imports: here, nobody would ever free them.
    """
    if _Fork.computed:
        raise WorkerError(
            "this process was forked while another thread computed, so it could wait for ever for locks of that "
            "thread: start processes by spawn (multiprocessing.get_context('spawn')), or before such threads"
        )
    if _Fork.lost_threads:  # OpenMP of GNU waits for ever for threads that were not forked
        sys.modules["torch"].set_num_threads(1)
        _Fork.lost_threads = False


MAKING_MODELS = threading.RLock()
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
    lock, within, undo = threading.RLock(), dict[object, int](), contextlib.ExitStack()

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


# ---- attributes that are computed on first use -----------------------------------------------------------


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - the name of what it stands for
        """`functools.cached_property` without the lock that it has before Python 3.12.

        One lock serves all instances of a class: threads that embed with different models wait for each other, and a
        process that is forked meanwhile waits for ever.
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.function(instance)
            return value
