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


_STATE = {"lost threads": False}
"""Whether this process was forked after torch was imported, whose threads are not here."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _STATE.update({"lost threads": "torch" in sys.modules}))


def use_one_thread_if_forked() -> None:
    """Let torch compute on one thread in a forked process: OpenMP of GNU waits for ever for threads of its parent."""
    if _STATE["lost threads"]:
        sys.modules["torch"].set_num_threads(1)
        _STATE["lost threads"] = False


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
