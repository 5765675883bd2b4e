"""Start of the command: from here on, interruptions and termination requests end in one line.

Before a command is called there is nothing to clean up, and the process ends at once. Later, both raise
`KeyboardInterrupt` in the main thread, so that files are complete and workers end.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}


def main() -> None:
    """Run the command line."""
    _open_streams()
    with interruptible(_leave):
        if sys.flags.optimize > 1:
            os.write(2, b"error: the help is read from docstrings, which PYTHONOPTIMIZE=2 removes: set it to 1\n")
            sys.exit(1)
        try:
            Path.cwd()
        except OSError as error:  # the folder was removed, where libraries abort
            os.write(2, f"error: the working directory cannot be used: {error.strerror}: change to another\n".encode())
            sys.exit(1)
        from layerprobe_cli.main import main as run

        run()


def _open_streams() -> None:
    """Open closed streams to the null device; otherwise the next file would get their number and their output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, opened == number)
            mode = "w" if number else "r"
            setattr(sys, name, open(opened, mode, closefd=False))  # noqa: SIM115 - as long as the process


def _raise(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


@contextlib.contextmanager
def interruptible(by: Any = _raise) -> Iterator[None]:
    """Let signals raise `KeyboardInterrupt` with their number, except those that the process was started to ignore."""
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


if __name__ == "__main__":
    main()
