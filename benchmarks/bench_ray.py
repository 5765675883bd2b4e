"""What a job costs beside its work: empty jobs in a process here, and on Ray.

python benchmarks/bench_ray.py [JOBS]

Prints milliseconds a job, from the first answer to the last, the seconds until the first, and resident memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import psutil

from layerprobe.jobs.crew import Plan, Share, Workers, execute, make_crew


def empty(setting: object, share: Share) -> Callable[[int], bool]:
    """Jobs of nothing."""
    return lambda job: True


def done(workers: Workers, n_jobs: int) -> Generator[Any, None, None]:
    plan: Plan[int, bool] = Plan(jobs=dict.fromkeys(range(n_jobs), 1.0))
    with make_crew(empty, None, workers, most=n_jobs) as crew:
        yield from execute(plan, crew)


def mebibytes() -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


def measure(name: str, answers: Generator[Any, None, None], n_jobs: int) -> None:
    before, began = mebibytes(), time.perf_counter()
    next(answers)
    first = time.perf_counter()
    n_left = sum(1 for _ in answers)
    ended = time.perf_counter()
    assert n_left == n_jobs - 1
    each = (ended - first) / n_left * 1000
    grown = mebibytes() - before
    print(f"{name:8} {each:8.3f} ms a job   first after {first - began:5.1f} s   {grown:+.0f} MiB here", flush=True)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=int, nargs="?", default=10_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args(given)
    n_jobs = arguments.jobs
    with tempfile.TemporaryDirectory() as folder:
        for workers in arguments.processes:
            print(f"{n_jobs:,} empty jobs, {workers} processes")
            local = Workers(executor="processes", count=workers)
            cluster = Workers(executor="ray", address="local", folders=(Path(folder),), count=workers)
            measure("local", done(local, n_jobs), n_jobs)
            measure("Ray", done(cluster, n_jobs), n_jobs)


if __name__ == "__main__":
    main()
