"""What belongs to the whole process, and how several threads change it. Knows no torch."""

import contextlib
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Context = Callable[[], AbstractContextManager[None]]


class OneAtATime:
    """A context for one thread at a time, in which that thread may be again; free in a process forked meanwhile."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
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
    lock, within, undo = OneAtATime(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        nonlocal within
        with lock:
            if not within:
                undo.enter_context(change())
            within += 1
        try:
            yield
        finally:
            with lock:
                within -= 1
                if not within:
                    undo.close()

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
