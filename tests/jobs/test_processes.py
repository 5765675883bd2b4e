"""Jobs in processes: killed ones, held ones, and none that outlives its parent."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from layerprobe.errors import LayerProbeError, LostWorkerError, StoreError
from layerprobe.jobs import crew as module
from layerprobe.jobs import processes
from layerprobe.jobs.crew import HERE, Workers
from tests.jobs import pool_jobs
from tests.jobs.pool_jobs import done


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def on(*devices: str) -> Workers:
    """A process on each device."""
    return Workers(executor="processes", devices=devices)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not asked how does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def pids_in(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


def test_more_processes_than_jobs_are_not_begun() -> None:
    answers = dict(done(pool_jobs.doubling, "", [1, 2], on("a", "b", "c")))
    assert {job: answer for job, (_, answer) in answers.items()} == {1: 2, 2: 4}
    assert {setting for setting, _ in answers.values()} <= {"a", "b"}


@pytest.mark.parametrize("workers", [HERE, Workers(executor="processes")], ids=["here", "processes"])
def test_what_cannot_be_done_now_is_put_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, workers: Workers
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.05)
    jobs = ["held 1", "free 1", "held 2", "free 2"]
    with caplog.at_level(logging.INFO):
        answers = [job for job, _ in done(pool_jobs.later_at_first, tmp_path, jobs, workers)]
    assert sorted(answers) == sorted(jobs)
    assert answers.index("free 1") < answers.index("held 1")
    assert answers[-1] == "held 2"
    assert caplog.messages[0] == "waiting for another process that is at held 1"
    assert len(caplog.messages) == len(set(caplog.messages))


def test_a_killed_process_costs_its_job_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jobs = ["once", "first", "always", "last"]
    answers = dict(done(pool_jobs.killed, tmp_path, jobs))
    lost = answers.pop("always")
    assert isinstance(lost, LostWorkerError)
    assert str(lost).startswith("its process was killed twice (signal 9): if memory ran out, use fewer workers")
    assert {job: answer for job, (answer, _) in answers.items()} == {job: job for job in ("once", "first", "last")}
    assert len({pid for _, pid in answers.values()}) == 2, "a process does many jobs"
    assert caplog.messages == ["a worker process ended (exit code -9): restarting its run"] * 2


def test_no_job_waits_behind_another_while_a_process_is_idle(tmp_path: Path) -> None:
    answers = done(pool_jobs.waiting_for_others, tmp_path, ["long", "1", "2", "3", "4"], on("cpu", "cpu"))
    assert [job for job, _ in answers] == ["1", "2", "3", "4", "long"]


def test_what_the_start_raises_is_told_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in raising_at_start.*ValueError: here alone"):
        list(done(pool_jobs.raising_at_start, "here", ["job"]))


@pytest.mark.parametrize("jobs", [["start"], ["good", "bad", "fine"]])
def test_a_disk_that_fails_ends_all(jobs: list[str]) -> None:
    with pytest.raises(StoreError, match=f"^no space for {[*jobs, *jobs][1]}$"):
        list(done(pool_jobs.on_a_full_disk, jobs[0], jobs))


def test_processes_that_cannot_start_are_an_error_of_one_line() -> None:
    with pytest.raises(LayerProbeError, match=r"\(exit code 3\): in a script, put the call under `if __name__"):
        list(done(pool_jobs.unstartable, "a", ["job"]))


@pytest.mark.parametrize("error", [ValueError, EOFError, BrokenPipeError])
def test_what_a_job_raises_costs_that_job_only(error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """Even the end of what it reads, which is not the end of its process."""
    answers = dict(done(pool_jobs.raising, error, ["good", "bad", "fine"]))
    lost = answers.pop("bad")
    assert isinstance(lost, LostWorkerError)
    assert str(lost) == f"unexpected error: {error.__name__}: of bad"
    (trace,) = caplog.messages
    assert "in work" in trace
    assert answers == {"good": "good", "fine": "fine"}


UNGUARDED = """
from tests.jobs import pool_jobs
from tests.jobs.test_processes import done
list(done(pool_jobs.logging_work, "a", ["it"]))
"""


def test_a_script_without_a_guard_ends_in_one_line(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(UNGUARDED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1, "expected that of the script's own call alone"
    assert ended.stderr.rstrip().endswith('in a script, put the call under `if __name__ == "__main__":`')


@pytest.mark.parametrize("lost", [False, True], ids=["forked", "begun afresh"])
def test_processes_have_the_environment_of_today(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """Whoever begins them: the process that forks is as old as the first of them, and may have ended."""
    begun, ways = processes._begun, list[str]()

    def beginning(how: str, *inherited: Any) -> Any:
        ways.append(how)
        if lost and how == "forkserver":
            raise EOFError
        return begun(how, *inherited)

    list(done(pool_jobs.of_environment, "", ["TODAY"]))
    monkeypatch.setattr(processes, "_begun", beginning)
    for value in ("1", "2"):
        monkeypatch.setenv("TODAY", value)
        assert list(done(pool_jobs.of_environment, "", ["TODAY"])) == [("TODAY", value)]
    assert ways == (["forkserver", "spawn"] if lost else ["forkserver"]) * 2


@pytest.mark.parametrize(("device", "platform"), [("cuda:0", "linux"), ("cpu", "darwin")])
def test_only_what_works_in_a_fork_is_forked(monkeypatch: pytest.MonkeyPatch, device: str, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: pytest.fail("expected none that forks"))
    processes.import_ahead("layerprobe.errors", on("cpu", device))
    assert not processes._is_forked(device)


def test_what_every_process_says_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    list(done(pool_jobs.logging_work, "a", ["it", "it", "that"], on("cpu", "cpu")))
    assert sorted(caplog.messages) == ["100 % of it", "100 % of that"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_closing_early_ends_the_processes(tmp_path: Path) -> None:
    answers = done(pool_jobs.killed, tmp_path, ["first", "second"])
    _, answer = next(answers)
    assert not isinstance(answer, LostWorkerError)
    assert is_alive(answer[1])
    answers.close()
    assert not is_alive(answer[1])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.jobs.pool_jobs", str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE) as parent:
        until(lambda: len(pids_in(tmp_path)) == 2)
        workers = pids_in(tmp_path)
        assert all(map(is_alive, workers))
        assert os.getpid() not in workers
        parent.send_signal(how)
        parent.wait(30)
        until(lambda: not any(map(is_alive, workers)), 10)
