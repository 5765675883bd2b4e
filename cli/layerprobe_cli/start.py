"""Where the command begins: from here on, an interruption or a request to end is answered in one line.

Until a command is called there is nothing to tidy up, and the process ends at once. Then both raise
`KeyboardInterrupt` in the main thread, so that what is written is whole and workers end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}


class Ended(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number, self.word, self.code = number, WORDS[signal.Signals(number)], 128 + number


def main() -> None:
    """Run the command line."""
    _open_streams()
    with _answered(_leave):
        try:
            Path.cwd()
        except OSError as error:  # of a folder that was removed, where libraries abort
            os.write(2, f"error: the working directory cannot be used: {error.strerror}: change to another\n".encode())
            sys.exit(1)
        try:
            from layerprobe_cli.main import main as run

            run()
        except (EOFError, ValueError, TypeError, RuntimeError) as error:
            file = cut_bytecode(error)
            if file is None:
                raise
            name = (
                f"error: {file}, which Python writes, was cut off, as on a full disk: remove it and the other folders "
            )
            os.write(2, f"{name}__pycache__ that were written then\n".encode(errors="replace"))
            sys.exit(1)


def _open_streams() -> None:
    """Open streams that are closed to nothing; else the next file takes the number of one, and what it is sent."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, opened == number)
            setattr(sys, name, open(opened, "w" if number else "r"))  # noqa: PTH123, SIM115 - as long as the process


def cut_bytecode(error: BaseException | None) -> str | None:
    """Return the file of bytecode that could not be imported, which Python itself does not name; None where none was.

    Python replaces such a file by what a full disk, or a limit on the size of files, takes of it, and fails ever after.
    """
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if [frame.f_code.co_name for frame in frames[-2:]] == ["get_code", "_compile_bytecode"]:
            return str(frames[-2].f_locals["bytecode_path"])
        error = error.__cause__
    return None


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let signals raise `Ended`, even where Python cannot raise at once, as in a destructor."""

    def again(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, Ended):
            threading.Timer(0.05, os.kill, (os.getpid(), unraisable.exc_value.number)).start()
        else:
            hook(unraisable)

    hook, sys.unraisablehook = sys.unraisablehook, again
    try:
        with _answered(_raise):
            yield
    finally:
        sys.unraisablehook = hook


@contextlib.contextmanager
def _answered(by: Any) -> Iterator[None]:
    """Answer signals by a function, but those that whoever started the process has it ignore."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.getsignal(number) for number in WORDS}
    for number, handler in earlier.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, by)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, f"error: {WORDS[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


if __name__ == "__main__":
    main()
