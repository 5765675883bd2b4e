"""What processes of the pool do in its tests.

python -m tests.sweeps.pool_jobs FOLDER: two processes that work for ever, their ids in FOLDER.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from layerprobe.pool import pooled


def doubling(setting: str) -> Callable[[int], tuple[str, int]]:
    return lambda job: (setting, 2 * job)


def later_at_first(folder: Path) -> Callable[[str], str | None]:
    """Jobs that are not to be done when they are first seen."""

    def work(job: str) -> str | None:
        seen = folder / job
        if job.startswith("held") and not seen.exists():
            seen.touch()
            return None
        return job

    return work


def killed(folder: Path) -> Callable[[str], tuple[str, int]]:
    """Jobs that kill their process: `once`, or `always`."""

    def work(job: str) -> tuple[str, int]:
        seen = folder / job
        if job == "always" or (job == "once" and not seen.exists()):
            seen.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return job, os.getpid()

    return work


def raising(setting: str) -> Callable[[str], str]:
    """Of jobs named `bad`."""

    def work(job: str) -> str:
        if job == "bad":
            raise ValueError(f"{setting} and {job}")
        return job

    return work


def cut_short(setting: type[Exception]) -> Callable[[str], str]:
    """Jobs that read a file or a pipe of their own, which ends."""

    def work(job: str) -> str:
        raise setting("ran out of input")

    return work


def raising_at_start(setting: str) -> Callable[[str], str]:
    raise ValueError(f"{setting} alone")


def unstartable(setting: str) -> Callable[[str], str]:
    sys.exit(3)


def logging_work(setting: str) -> Callable[[str], str]:
    def work(job: str) -> str:
        logging.getLogger("layerprobe.somewhere").warning("100 %% of %s", job)
        return job

    return work


def working_for_ever(folder: Path) -> Callable[[int], int]:
    def work(job: int) -> int:
        (folder / str(os.getpid())).touch()
        time.sleep(600)
        return job

    return work


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
    for _ in pooled(working_for_ever, [Path(sys.argv[1])] * 2, [1, 2]):
        raise AssertionError
