"""What processes of the pool do in its tests.

python -m tests.jobs.pool_jobs FOLDER: two processes that work for ever, their ids in FOLDER.
"""

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from layerprobe.errors import StoreError
from layerprobe.files.atomic import make_directory, write_whole
from layerprobe.jobs.crew import Begin, Plan, Share, Workers, execute, make_crew


def done(
    begin: Begin, setting: Any, jobs: Iterable[Any], workers: Workers | None = None
) -> Generator[tuple[Any, Any], None, None]:
    """Give jobs of one cost with their answers, by one process unless there are other workers."""
    plan: Plan[Any, Any] = Plan(jobs=dict.fromkeys(jobs, 1.0), label="is at {}".format)
    workers = workers or Workers(executor="processes")
    with make_crew(begin, setting, workers, most=len(plan.jobs)) as crew:
        yield from execute(plan, crew)


def doubling(setting: str, share: Share) -> Callable[[int], tuple[str, int]]:
    return lambda job: (share.device or setting, 2 * job)


def of_environment(setting: str, share: Share) -> Callable[[str], str | None]:
    """Jobs that say what a variable is."""
    return lambda job: os.environ.get(job, "")


def later_at_first(folder: Path, share: Share) -> Callable[[str], str | None]:
    """Jobs that are not to be done when they are first seen."""

    def work(job: str) -> str | None:
        seen = folder / job
        if job.startswith("held") and not seen.exists():
            seen.touch()
            return None
        return job

    return work


def killed(folder: Path, share: Share) -> Callable[[str], tuple[str, int]]:
    """Jobs that kill their process: `once`, or `always`."""

    def work(job: str) -> tuple[str, int]:
        seen = folder / job
        if job == "always" or (job == "once" and not seen.exists()):
            seen.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return job, os.getpid()

    return work


def raising(setting: type[Exception], share: Share) -> Callable[[str], str]:
    """Of jobs named `bad`."""

    def work(job: str) -> str:
        if job == "bad":
            raise setting(f"of {job}")
        return job

    return work


def on_a_full_disk(setting: str, share: Share) -> Callable[[str], str]:
    """No space at the start, or for jobs named `bad`."""

    def work(job: str) -> str:
        if job in ("start", "bad"):
            raise StoreError(f"no space for {job}")
        return job

    work(setting)
    return work


def raising_at_start(setting: str, share: Share) -> Callable[[str], str]:
    raise ValueError(f"{setting} alone")


def unstartable(setting: str, share: Share) -> Callable[[str], str]:
    sys.exit(3)


def kept(folder: Path, share: Share) -> Callable[[str], str | None]:
    """Jobs that are folders with a lock and a result, as runs are."""

    def work(job: str) -> str | None:
        here = folder / job
        make_directory(here)
        try:
            with FileLock(here / "lock").acquire(timeout=0):
                if not (here / "result").exists():
                    (here / f"begun-{secrets.token_hex(4)}").touch()
                    time.sleep(0.2)
                    write_whole(here / "result", job.encode())
                    (here / f"made-{secrets.token_hex(4)}").touch()
        except Timeout:
            return None
        return job

    return work


def kept_and_said(folder: Path, share: Share) -> Callable[[str], int]:
    """The same, with a line in the log; the answer is the process."""
    work = kept(folder, share)

    def said(job: str) -> int:
        logging.getLogger("layerprobe.somewhere").warning("%s", "100 % of it")
        assert work(job) == job
        return os.getpid()

    return said


def waiting_for_others(folder: Path, share: Share) -> Callable[[str], str]:
    """A job named `long` ends when all others have been done."""

    def work(job: str) -> str:
        end = time.monotonic() + 60
        while job == "long" and len(list(folder.iterdir())) < 4:
            assert time.monotonic() < end, "the others wait behind it"
            time.sleep(0.01)
        (folder / job).touch()
        return job

    return work


def logging_work(setting: str, share: Share) -> Callable[[str], str]:
    def work(job: str) -> str:
        logging.getLogger("layerprobe.somewhere").warning("100 %% of %s", job)
        return job

    return work


def working_for_ever(folder: Path, share: Share) -> Callable[[int], int]:
    def work(job: int) -> int:
        (folder / str(os.getpid())).touch()
        time.sleep(600)
        return job

    return work


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
    for _ in done(working_for_ever, Path(sys.argv[1]), [1, 2], Workers(executor="processes", count=2)):
        raise AssertionError
