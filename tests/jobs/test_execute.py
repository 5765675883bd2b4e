"""One loop over jobs: what is there is left out, the longest comes first, a failure is a value."""

from typing import Any

import pytest

from layerprobe.context import report, settings
from layerprobe.errors import DataError, StoreError, TrainingError
from layerprobe.jobs import processes
from layerprobe.jobs.crew import Plan, Share, Workers, execute, make_crew, results
from layerprobe.jobs.processes import shares
from tests.jobs import pool_jobs

COSTS = {"short": 1.0, "long": 4.0, "middle": 2.0}


class Upper:
    """Makes capital letters, and fails with whom it is told to."""

    def __init__(self, failures: dict[str, Exception], share: Share) -> None:
        self.failures, self.begun = failures, list[str]()

    def __call__(self, job: str) -> str:
        self.begun.append(job)
        report("half", 1.0, 2.0)
        if job in self.failures:
            raise self.failures[job]
        return job.upper()


def test_what_is_there_is_given_and_not_done() -> None:
    plan = Plan(jobs=COSTS, done={"long": "there"}.get)
    with make_crew(Upper, {}) as crew:
        assert list(execute(plan, crew)) == [("long", "there"), ("short", "SHORT"), ("middle", "MIDDLE")]
        assert results(plan, crew) == {"short": "SHORT", "long": "there", "middle": "MIDDLE"}


def test_a_crew_without_a_job_does_not_begin() -> None:
    with make_crew(pool_jobs.raising_at_start, "here") as crew:
        assert results(Plan(jobs=COSTS, done=str.upper), crew) == {job: job.upper() for job in COSTS}


def test_a_failure_is_a_value() -> None:
    failures = {"long": TrainingError("the loss became nan")}
    with make_crew(Upper, failures) as crew:
        answers: dict[str, Any] = dict(execute(Plan(jobs=COSTS), crew))
        assert answers == {"short": "SHORT", "long": failures["long"], "middle": "MIDDLE"}
        with pytest.raises(TrainingError, match="the loss became nan"):
            results(Plan(jobs=COSTS), crew)


@pytest.mark.parametrize("error", [StoreError("the disk is full"), ValueError("a mistake")])
def test_what_ends_the_worker_ends_all_here(error: Exception) -> None:
    with make_crew(Upper, {"long": error}) as crew, pytest.raises(type(error), match=str(error)):
        list(execute(Plan(jobs=COSTS), crew))


def test_progress_is_the_share_of_the_cost() -> None:
    calls: list[tuple[str, float, float]] = []
    with make_crew(Upper, {}) as crew:
        plan: Plan[str, str] = Plan(jobs=COSTS, done={"long": "there"}.get, unit="words")
        with settings(progress=lambda *call: calls.append(call)):
            results(plan, crew)
    assert calls == [("half", 4.5, 7.0), ("half", 6.0, 7.0)]
    calls.clear()
    noting = settings(progress=lambda *call: calls.append(call))
    with make_crew(pool_jobs.doubling, "", Workers(executor="processes")) as crew, noting:
        results(Plan(jobs={1: 1.0, 2: 3.0}, unit="numbers"), crew)
    assert calls == [("numbers", 3.0, 4.0), ("numbers", 4.0, 4.0)]


def test_processes_begin_the_longest_first() -> None:
    with make_crew(pool_jobs.doubling, "", Workers(executor="processes")) as crew:
        assert [job for job, _ in execute(Plan(jobs={1: 1.0, 2: 4.0, 3: 2.0, 4: 4.0}), crew)] == [2, 4, 3, 1]


def test_processors_and_devices_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    def divided(count: int | None, *devices: str, most: int = 100) -> list[tuple[str | None, int | None]]:
        workers = Workers(executor="processes", count=count, devices=devices or ("cpu",))
        return [(share.device, share.threads) for share in shares(workers, most)]

    assert divided(None) == [("cpu", 8)]
    assert divided(3) == [("cpu", 2)] * 3
    assert divided(20) == [("cpu", 1)] * 20
    assert divided(20, most=2) == [("cpu", 4)] * 2
    assert divided(3, most=0) == [("cpu", 8)]
    assert divided(None, "cuda:0", "cuda:1", "cuda:2") == [(f"cuda:{i}", 2) for i in range(3)]
    assert [device for device, _ in divided(3, "cuda:0", "cuda:1")] == ["cuda:0", "cuda:1", "cuda:0"]


def test_workers_are_counted_from_one() -> None:
    with pytest.raises(DataError, match="expected at least one worker, got 0"):
        Workers(count=0)
