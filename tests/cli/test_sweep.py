"""layerprobe lab sweep: one line for what is wrong, a table, JSON and a page for what came out."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layerprobe.encoders.workers import workers_of
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.values import FailedRun
from layerprobe.sweeps import run as sweeping
from layerprobe.sweeps.values import SweepResult
from layerprobe.versions import versions

from .conftest import Layerprobe, Pair

TOML = """
layers = [0, 3]
seeds = 2

[[models]]
id = "{0}"

[[models]]
id = "{1}"
layers = [1]

[[tasks]]
source = "{2}"

[protocol]
epochs = 1
learning_rate = 1e-3
"""
SAME = ("--layers", "0,3", "--seeds", "2", "--epochs", "1", "--learning-rate", "1e-3")


@pytest.fixture
def toml(pair: Pair, pairs_file: Path, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(TOML.format(*pair, pairs_file))
    return path


def test_a_sweep_from_toml(
    layerprobe: Layerprobe, toml: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tests/sweeps begins processes, each of which loads torch
    monkeypatch.setattr(sweeping, "workers_of", lambda *given, local, **how: workers_of(*given, **how))
    planned = layerprobe("lab", "sweep", toml, "--dry-run")
    assert planned.code == 0, planned.err
    assert "6 runs, the longest first: 0 done, 0 failed, 6 left (100 % of the cost)" in planned.out
    report = tmp_path / "out" / "sweep.html"
    done = layerprobe("lab", "sweep", toml, "--report", report)
    assert done.code == 0, done.err
    assert "6 runs: 6 done, 0 failed" in done.out
    assert f"Report: {report}" in done.out
    rows = [line for line in done.out.splitlines() if " pairs.csv " in line]
    assert [row.split()[:3] for row in rows] == [
        ["electra", "pairs.csv", "0"],
        ["electra", "pairs.csv", "3"],
        ["bert", "pairs.csv", "1"],
    ]
    assert "6 of 6 runs done." in report.read_text()
    result = from_json(SweepResult, layerprobe("lab", "sweep", toml, "--json").out)
    assert (result.n_done, result.level) == (6, 0.95)

    # the same runs by other commands, and marks of runs that fail
    tuned = layerprobe("finetune", pair[0], "-t", result.curves[0].task, *SAME, "--json").json["runs"]
    by_layer = {actual.layer: actual for actual in result.curves[0].outcomes}
    assert all(run["test"]["spearman"] in by_layer[run["layer"]].scores for run in tuned)
    again = layerprobe("lab", "sweep", pair[0], "-t", result.curves[0].task, *SAME, "--json")
    assert from_json(SweepResult, again.out).curves == result.curves[:1]
    lost = next((tmp_path / "cache").rglob("layer-003-seed-1/result.json"))
    mark = FailedRun(layer=3, seed=1, message="the loss became nan", step=2, versions=versions())
    (lost.parent / "failed.json").write_text(to_json(mark))
    lost.unlink()
    failed = layerprobe("lab", "sweep", toml)
    assert failed.code == 1
    assert "6 runs: 5 done, 1 failed" in failed.out
    assert "failed: electra on pairs.csv, layer 3, seed 1 at step 2: the loss became nan" in failed.out
    assert failed.err.count("error: ") == 0
    assert layerprobe("lab", "sweep", toml, "--json").json["curves"][0]["failed"][0]["step"] == 2
    tuned_again = layerprobe("finetune", pair[0], "-t", result.curves[0].task, *SAME)
    assert tuned_again.code == 1
    assert "error: the loss became nan (it failed before: to try again, remove " in tuned_again.err


def test_the_command_line_says_the_same_as_toml(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    said = layerprobe("lab", "sweep", *pair, "-t", pairs_file, "-t", "stsb", *SAME, "--pooling", "cls", "--print-toml")
    assert said.code == 0, said.err
    assert [line for line in said.out.splitlines() if line] == [
        "layers = [0, 3]",
        "seeds = [0, 1]",
        "[[models]]",
        f'id = "{pair[0]}"',
        "[[models]]",
        f'id = "{pair[1]}"',
        "[[tasks]]",
        f'source = "{pairs_file}"',
        "[[tasks]]",
        'source = "stsb"',
        "[protocol]",
        "learning_rate = 0.001",
        "epochs = 1",
        'pooling = "cls"',
        "[options]",
        'pooling = "cls"',
    ]
    cut = layerprobe("lab", "sweep", pair[0], "-t", pairs_file, "--keep-blocks", "1,3", "--print-toml")
    assert "blocks = [1, 3]" in cut.out
    path = tmp_path / "same.toml"
    path.write_text(said.out)
    assert layerprobe("lab", "sweep", path, "--print-toml").out == said.out


def test_a_model_in_the_current_folder_says_nothing_of_others(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pair[0])
    said = layerprobe("lab", "sweep", "org/deep", "-t", pairs_file, "--layers", "9-12", "--print-toml")
    assert said.code == 0, said.err


def test_options_of_the_machine_may_be_given_beside_toml(layerprobe: Layerprobe, toml: Path) -> None:
    toml.write_text(toml.read_text() + '[options]\ndevice = "cuda"\nbatch_tokens = 100\n')
    said = layerprobe("lab", "sweep", "org/a", "-t", "stsb", "--no-end-token", "--print-toml")
    assert "end_token = false" in said.out
    assert 'device = "cuda"\nbatch_tokens = 100' in layerprobe("lab", "sweep", toml, "--print-toml").out
    said = layerprobe("lab", "sweep", toml, "--print-toml", "--device", "cpu", "--batch-tokens", "500")
    assert 'device = "cpu"\nbatch_tokens = 500' in said.out


BAD = {
    "no task": (("MODEL",), 2, "expected a task"),
    "layers beside TOML": (("TOML", "--layers", "3"), 2, "expected models, tasks, layers, seeds"),
    "the default layers beside TOML": (("TOML", "--layers", "all"), 2, "expected models, tasks, layers, seeds"),
    "the default seeds beside TOML": (("TOML", "--seeds", "5", "--epochs", "10"), 2, "expected models, tasks, layers"),
    "a precision beside TOML": (("TOML", "--dtype", "float32"), 2, "expected models, tasks, layers, seeds"),
    "a model beside TOML": (("TOML", "MODEL"), 2, "expected models, tasks, layers, seeds"),
    "no such TOML": (("nothing.toml",), 1, "cannot read the sweep nothing.toml: No such file"),
    "no such layer": (("MODEL", "-t", "TASK", "--layers", "2-9"), 1, "expected layers from 0 to 3"),
    "no such model": (("./nothing", "-t", "TASK"), 1, "there is no folder ./nothing"),
    "no such task": (("MODEL", "-t", "nothing.csv"), 1, "nothing.csv"),
    "blocks of several models": (
        ("MODEL", "MODEL", "-t", "TASK", "--keep-blocks", "1,3"),
        2,
        "expected one model for --keep-blocks, got 2",
    ),
    "no workers": (("MODEL", "-t", "TASK", "--workers", "0"), 2, "--workers"),
    "no such cluster": (("MODEL", "-t", "TASK", "--ray", "nowhere"), 1, "nowhere"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(
    layerprobe: Layerprobe,
    pair: Pair,
    pairs_file: Path,
    toml: Path,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    stands_for = {"MODEL": pair[0], "TASK": pairs_file, "TOML": toml}
    printed = layerprobe("lab", "sweep", *(stands_for.get(argument, argument) for argument in arguments), "-q")
    assert printed.code == code
    assert message in printed.err
    if code == 1:
        assert printed.error


def living_in_group(group: int) -> list[int]:
    """The processes of a group that did not end, by /proc."""
    result = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text().rsplit(")", 1)[1].split()[:3]
            result += [int(stat.parent.name)] if int(its_group) == group and state != "Z" else []
    return result


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_keeps_what_is_done(toml: Path, tmp_path: Path) -> None:
    toml.write_text(toml.read_text().replace("epochs = 1", "epochs = 4000"))
    # a shell that starts its jobs in the background has them ignore SIGINT, and what is ignored is inherited
    main = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from layerprobe_cli.main import main; main()"
    )
    command = [sys.executable, "-c", main, "lab", "sweep", str(toml), "--cache-dir", str(tmp_path / "cache")]
    with subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 120
        while not list((tmp_path / "cache").rglob("lock")):
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted; what is done is kept, the same command goes on from there"
    assert "Traceback" not in err
    assert out == ""
    end = time.monotonic() + 10
    while living_in_group(process.pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_json_of_a_dry_run(layerprobe: Layerprobe, toml: Path) -> None:
    planned = json.loads(layerprobe("lab", "sweep", toml, "--dry-run", "--json").out)
    assert [run["layer"] for run in planned["jobs"]] == [3, 3, 1, 1, 0, 0]


def test_tasks_of_one_file_are_told_apart_and_its_notes_shown_once(
    layerprobe: Layerprobe, toml: Path, pairs_file: Path
) -> None:
    toml.write_text(f'{toml.read_text()}\n[[tasks]]\nsource = "{pairs_file}"\nsplit_seed = 1\n')
    planned = layerprobe("lab", "sweep", toml, "--dry-run")
    assert {tuple(re.split(r" {2,}", line)[:2]) for line in planned.table[2:14]} == {
        (model, f"pairs.csv (sts, task {number})") for model in ("electra", "bert") for number in (1, 2)
    }
    lines = planned.err.splitlines()
    assert lines
    assert len(set(lines)) == len(lines)
    jobs = layerprobe("lab", "sweep", toml, "--dry-run", "--json").json["jobs"]
    assert {run["task"] for run in jobs} == {f"pairs.csv (sts, task {number})" for number in (1, 2)}
