"""State of the whole process: how several threads change it, and what a forked process must avoid."""

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

_ADVICE = {
    "failed to map segment|cannot allocate memory": "free memory, or raise the limit of a process (ulimit -v)",
    "too many open files": "raise the limit of open files (ulimit -n)",
    "file too large": "raise the limit on the size of files (ulimit -f)",
    "can't start new thread|resource temporarily unavailable": "raise the limit of processes and threads (ulimit -u)",
    "no usable temporary directory": "free space, or name another folder with TMPDIR",
}
"""Advice by the text of an error, of Python and of its libraries."""


def limit_advice(error: BaseException) -> str | None:
    """Return advice where the system runs out of memory, files, threads or space; None for other errors.

    Examples:
        >>> limit_advice(OSError(24, "Too many open files"))
        'raise the limit of open files (ulimit -n)'
    """
    text = str(error)
    return next((advice for words, advice in _ADVICE.items() if re.search(words, text, re.IGNORECASE)), None)


Context = Callable[[], AbstractContextManager[None]]


_STATE = {"lost threads": False}
"""Whether this process was forked after torch was imported, so that torch's threads are missing."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _STATE.update({"lost threads": "torch" in sys.modules}))


def use_one_thread_if_forked() -> None:
    """Restrict torch to one thread in a forked process: GNU's OpenMP would wait for its parent's threads for ever."""
    if _STATE["lost threads"]:
        sys.modules["torch"].set_num_threads(1)
        _STATE["lost threads"] = False


MAKING_MODELS = threading.RLock()
"""Lock for making models: transformers replaces `torch.nn.init` meanwhile. No other lock is taken inside it."""


def while_needed(change: Context) -> Context:
    """Share a context between threads: the first to enter makes its change, the last to leave undoes it.

    Contexts that each restore an earlier state leave the change behind where threads overlap.

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
    lock = threading.RLock()
    within: dict[object, int] = {}
    undo = contextlib.ExitStack()

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
        """Undo the change in a process forked by a thread outside the context."""
        if within and get_ident() not in within.values():
            within.clear()
            undo.close()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forked)
    return shared


@while_needed
@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress warnings of libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@while_needed
@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress printed output."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def silence_if(needed: bool) -> AbstractContextManager[None]:
    """Suppress printed output on request: code that comes with a model may print."""
    return silence() if needed else contextlib.nullcontext()
