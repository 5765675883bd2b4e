"""Sweeps: shared with `finetune`, with each other and with what a killed one left; what fails does not end them."""

import contextlib
import dataclasses
import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import Model
from layerprobe.encoders.workers import SharedModel, taken_over, workers_of
from layerprobe.errors import DataError, ModelError, StoreError, TaskError, WorkerError
from layerprobe.files.serialisation import from_json
from layerprobe.finetuning.runs import RunFolder, RunJob, RunSet
from layerprobe.finetuning.tuning import finetune, run_folder
from layerprobe.finetuning.values import FailedRun
from layerprobe.jobs.crew import Crew, Message, Share, Worker
from layerprobe.sweeps import run as sweeping
from layerprobe.sweeps.run import plan_sweep, run_sweep
from layerprobe.sweeps.values import Sweep, SweepModel, SweepResult
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import TaskSettings
from layerprobe.versions import versions
from tests.finetuning.finished import lock_of, mark_failed
from tests.models import given, save_tiny
from tests.sweeps.tiny import LAYERS, N_RUNS, PROTOCOL, SEEDS, half_written, plan_of, results_in


@pytest.fixture
def cache(undisturbed: SweepResult, undisturbed_cache: Path, tmp_path: Path) -> Path:
    """A copy of the folder of the undisturbed sweep."""
    return shutil.copytree(undisturbed_cache, tmp_path / "cache")


def folder_of(inputs: Path, cache: Path, model: str) -> RunFolder:
    task = load_task(inputs / "toy-train.csv", score_range=(0.0, 1.0))
    checkpoint = resolve(str(inputs / model))
    return run_folder(given(checkpoint, Model(device="cpu", cache_dir=cache)), task, PROTOCOL)


def sweep_process(inputs: Path, cache: Path, workers: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweeps.tiny", str(inputs), str(cache), str(workers)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def no_process(*arguments: object, **options: object) -> None:
    raise AssertionError("a run is made that is there")


# ---- what a sweep is ----------------------------------------------------------------------------------


def test_a_sweep_has_a_curve_for_each_model_and_task(undisturbed: SweepResult, inputs: Path) -> None:
    assert [Path(curve.model).name for curve in undisturbed.curves] == ["bert", "electra"]
    assert {curve.task for curve in undisturbed.curves} == {str(inputs / "toy-train.csv")}
    for curve in undisturbed.curves:
        assert [found.layer for found in curve.outcomes] == list(LAYERS)
        assert all(found.seeds == SEEDS for found in curve.outcomes)
        assert curve.failed == ()
    assert (undisturbed.n_runs, undisturbed.n_done, undisturbed.n_left) == (N_RUNS, N_RUNS, 0)
    assert undisturbed.seconds_left == 0.0


def test_a_run_is_the_one_that_finetune_makes(
    undisturbed: SweepResult, inputs: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task(inputs / "toy-train.csv", score_range=(0.0, 1.0))
    curve = undisturbed.curves[1]

    def scores(where: Path) -> list[float]:
        options = Model(device="cpu", cache_dir=where)
        runs = finetune(given(curve.model, options), task, LAYERS, seeds=SEEDS, protocol=PROTOCOL)
        return [run.test["spearman"] for run in runs]

    made = scores(tmp_path / "elsewhere")
    assert made == [found.scores[seed] for seed in SEEDS for found in curve.outcomes]
    monkeypatch.setattr("layerprobe.encoders.first_use.load_encoder", no_process)
    assert scores(cache) == made


def test_finished_runs_are_read(
    undisturbed: SweepResult, inputs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.jobs.processes._Process", no_process)
    seen: list[SweepResult] = []
    assert run_sweep(plan_of(inputs, cache), watch=seen.append) == undisturbed
    assert seen == [undisturbed]


def test_the_longest_run_is_planned_first(inputs: Path, cache: Path, tmp_path: Path) -> None:
    planned = plan_sweep(plan_of(inputs, tmp_path / "new")).jobs
    assert [run["layer"] for run in planned] == [3] * 4 + [1] * 4 + [0] * 4
    assert [Path(run["model"]).name for run in planned[:4]] == ["bert", "bert", "electra", "electra"]
    assert sum(run["cost"] for run in planned) == pytest.approx(1.0)
    assert planned[0]["cost"] == pytest.approx(4 * planned[-1]["cost"])
    assert {run["state"] for run in planned} == {"left"}
    results_in(cache)[0].unlink()
    assert sorted(run["state"] for run in plan_sweep(plan_of(inputs, cache)).jobs) == ["done"] * 11 + ["left"]


def test_layers_of_a_model_go_before_those_of_the_sweep(inputs: Path, tmp_path: Path) -> None:
    plan = plan_of(inputs, tmp_path)
    random = dataclasses.replace(plan.models[1].model, random_init=5)
    models = (dataclasses.replace(plan.models[0], layers=(2,)), SweepModel(model=random))
    planned = plan_sweep(dataclasses.replace(plan, models=models, layers=None, seeds=(0,))).jobs
    layers: dict[str, list[int]] = {}
    for run in planned:
        layers.setdefault(run["model"], []).append(run["layer"])
    assert layers == {Path(models[0].model.name).name: [2], f"{Path(random.name).name} (random init 5)": [3, 2, 1, 0]}


@pytest.mark.slow
def test_the_time_left_is_told(inputs: Path, cache: Path) -> None:
    for file in results_in(cache)[-2:]:
        file.unlink()
    seen: list[SweepResult] = []
    run_sweep(plan_of(inputs, cache), watch=seen.append)
    assert [found.n_left for found in seen] == [2, 1, 0]
    left = [found.seconds_left or 0.0 for found in seen]
    assert left[0] > left[1] > left[2] == 0.0


# ---- what happens to a sweep --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_results(undisturbed: SweepResult, inputs: Path, tmp_path: Path) -> None:
    """kill -9: what was finished is not made again, and nothing is left half-written."""
    with sweep_process(inputs, tmp_path, 2) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "3":
            assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    done = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in results_in(tmp_path)}
    assert 3 <= len(done) < N_RUNS
    seen: list[SweepResult] = []
    found = run_sweep(plan_of(inputs, tmp_path), workers=1, watch=seen.append)
    assert found == undisturbed
    assert seen[0].n_done >= len(done)
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in done} == done
    assert half_written(tmp_path) == []


@pytest.mark.slow
def test_two_sweeps_on_one_folder_share_the_work(undisturbed: SweepResult, inputs: Path, tmp_path: Path) -> None:
    cache, made = tmp_path / "cache", tmp_path / "made"
    made.mkdir()
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(sweep_process(inputs, cache, 1, NOTE_RUNS=str(made))) for _ in range(2)]
        outputs = [process.communicate(timeout=300) for process in both]
    for output, errors in outputs:
        assert from_json(SweepResult, output[output.index("{") :]) == undisturbed, errors
    jobs = [f"{model} {layer} {seed}" for model in ("bert", "electra") for layer in LAYERS for seed in SEEDS]
    assert sorted(file.stem for file in made.iterdir()) == jobs
    assert half_written(cache) == []


@pytest.mark.slow
def test_a_run_that_another_process_is_at_is_waited_for_at_the_end(
    undisturbed: SweepResult,
    inputs: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for file in results_in(cache)[:3]:
        file.rename(file.with_name("kept"))
    kept = sorted(cache.rglob("kept"))
    layer, seed = (int(kept[0].parent.name.split("-")[i]) for i in (1, 3))
    where = RunFolder(path=kept[0].parent.parent)
    held = lock_of(where, layer, seed)
    held.acquire()
    begun = time.time()
    label = sweeping._SweepRuns._label

    def finish(runs: Any, job: Any) -> str:
        """The other one ends when it is waited for."""
        assert len(results_in(cache)) == N_RUNS - 1
        kept[0].rename(kept[0].with_name("result.json"))
        held.release()
        return label(runs, job)

    monkeypatch.setattr(sweeping._SweepRuns, "_label", finish)
    with caplog.at_level(logging.INFO):
        assert run_sweep(plan_of(inputs, cache)) == undisturbed
    assert held.is_locked is False
    assert [file.stat().st_mtime < begun for file in sorted(cache.rglob("result.json"))].count(False) == 2
    (waited,) = [text for text in caplog.messages if text.startswith("waiting for another process")]
    assert waited.endswith(f"toy-train.csv at layer {layer} with seed {seed}")


@pytest.mark.slow
def test_half_written_results_are_made_again(
    undisturbed: SweepResult, inputs: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = results_in(cache)[:3]
    for file, cut in zip(files, (0, 1, 200), strict=True):
        file.write_bytes(file.read_bytes()[:cut])
    assert run_sweep(plan_of(inputs, cache)) == undisturbed
    for file in files:
        assert any(str(file) in text and "the run is done again" in text for text in caplog.messages)


# ---- runs that fail -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diverged(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, Path]:
    """A sweep of one model whose learning rate is far too high at every layer, and of one that is not trained."""
    cache = tmp_path_factory.mktemp("diverged")
    plan = plan_of(inputs, cache, models=("bert",))
    protocol = dataclasses.replace(PROTOCOL, learning_rate=1e30)
    return run_sweep(dataclasses.replace(plan, protocol=protocol, layers=(1, 2), seeds=(0,))), cache


def test_a_note_names_its_file_once(
    inputs: Path, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(inputs / "toy-train.csv")
    task = load_task(source, score_range=(0.0, 1.0))
    notes = (f"{source}: read as UTF-16 text", "took another file")
    noted = dataclasses.replace(task, notes=notes, warnings=())
    monkeypatch.setattr(sweeping, "load_settings", lambda settings: noted)
    with caplog.at_level(logging.INFO):
        run_sweep(plan_of(inputs, cache))
    assert [text for text in caplog.messages if text.startswith(source)] == [
        f"{source}: read as UTF-16 text",
        f"{source}: took another file",
    ]


@pytest.mark.slow
def test_a_run_that_diverges_is_marked_and_the_others_go_on(diverged: tuple[SweepResult, Path]) -> None:
    result, cache = diverged
    (curve,) = result.curves
    assert curve.outcomes == ()
    assert [(failed.layer, failed.seed) for failed in curve.failed] == [(1, 0), (2, 0)]
    assert all(failed.message.startswith(("the loss at layer", "the embeddings at layer")) for failed in curve.failed)
    assert (result.n_failed, result.n_left, result.seconds_left) == (2, 0, 0.0)
    marks = [from_json(FailedRun, file.read_text()) for file in sorted(cache.rglob("failed.json"))]
    assert tuple(marks) == curve.failed


@pytest.mark.slow
def test_a_mark_is_read_and_not_tried_again_unless_asked(
    inputs: Path, cache: Path, undisturbed: SweepResult, caplog: pytest.LogCaptureFixture
) -> None:
    where = folder_of(inputs, cache, "electra")
    (where.run_path(3, 1) / "result.json").unlink()
    mark = FailedRun(layer=3, seed=1, message="the loss became nan", step=7, versions=versions())
    mark_failed(where, mark)
    found = run_sweep(plan_of(inputs, cache))
    assert found.curves[1].failed == (mark,)
    assert found.curves[1].outcomes[-1].seeds == (0,)
    assert found.curves[0] == undisturbed.curves[0]
    assert (found.n_done, found.n_failed, found.n_left) == (N_RUNS - 1, 1, 0)
    assert {run["state"] for run in plan_sweep(plan_of(inputs, cache)).jobs} == {"done", "failed"}
    assert run_sweep(plan_of(inputs, cache), retry_failed=True) == undisturbed
    assert where.load_failure(3, 1) is None


@pytest.mark.slow
def test_a_half_written_mark_is_no_mark(undisturbed: SweepResult, inputs: Path, cache: Path) -> None:
    where = folder_of(inputs, cache, "bert")
    (where.run_path(1, 0) / "result.json").unlink()
    (where.run_path(1, 0) / "failed.json").write_text('{"layer": 1, "se')
    assert run_sweep(plan_of(inputs, cache)) == undisturbed


@pytest.mark.slow
def test_a_model_whose_weights_cannot_be_read_fails_alone(inputs: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(inputs / "bert", tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"half")
    plan = plan_of(inputs, tmp_path / "cache", models=("electra",))
    models = (SweepModel(model=Model(str(broken))), *plan.models)
    result = run_sweep(dataclasses.replace(plan, models=models, layers=(1,), seeds=(0,)))
    assert [len(curve.failed) for curve in result.curves] == [1, 0]
    assert list((tmp_path / "cache").rglob("failed.json")) == []  # another copy of the weights may be whole


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps make their runs in this process."""

    def workers(*arguments: Any, **settings: Any) -> Any:
        return workers_of(*arguments, **{**settings, "local": "here"})

    monkeypatch.setattr(sweeping, "workers_of", workers)


def test_a_full_disk_ends_the_sweep(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None) -> None:
    """Every further run would be trained and lost."""
    begun: list[int] = []

    def full(runs: object, job: RunJob, *arguments: object) -> None:
        begun.append(job.layer)
        raise StoreError("No space left on device")

    monkeypatch.setattr(RunSet, "make", full)
    with pytest.raises(StoreError, match="No space left on device"):
        run_sweep(plan_of(inputs, tmp_path))
    assert len(begun) == 1


def test_a_model_that_does_not_fit_is_a_failed_run(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None
) -> None:
    def full(*arguments: object) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(RunSet, "make", full)
    result = run_sweep(plan_of(inputs, tmp_path))
    assert result.n_failed == N_RUNS
    assert result.curves[0].failed[0].message == "out of memory: use a smaller batch or a lower maximum length"


class Lossy(Crew):
    """Workers that are all lost."""

    tries = 1
    ending = ("ended", -signal.SIGKILL)
    before: Callable[[], object] = staticmethod(lambda: None)

    def hire(self, n_jobs: int) -> None:
        if not self.workers:
            self.workers = [Worker()]
            self.workers[0].ready = True

    def give(self, worker: Worker, job: object, part: object) -> None:
        type(self).before()

    def messages(self, seconds: float | None) -> Iterator[Message]:
        kind, value = self.ending
        yield Message(worker=self.workers[0], kind=kind, value=value)

    def close(self) -> None:
        self.workers = []


@pytest.mark.parametrize("trace", [None, "Traceback\nRuntimeError: a bug\n"])
def test_a_run_whose_process_is_lost_fails_and_is_not_marked(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str | None
) -> None:
    monkeypatch.setattr(sweeping, "crew_of", lambda begin, sets, workers, most: Lossy(workers, begin, sets, most=most))
    if trace is not None:
        monkeypatch.setattr(Lossy, "ending", ("raised", trace))
    result = run_sweep(dataclasses.replace(plan_of(inputs, tmp_path), seeds=(0,)))
    assert (result.n_failed, result.n_left) == (6, 0)
    message = result.curves[0].failed[0].message
    assert message.startswith("an error that was not expected" if trace else "its process was ended twice (signal 9)")
    assert list(tmp_path.rglob("failed.json")) == []


def test_a_run_that_is_there_after_all_is_not_lost(
    undisturbed: SweepResult, inputs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed behind the writing of the result, or another sweep has made it meanwhile."""
    file = results_in(cache)[0]
    kept = file.rename(file.with_name("kept"))
    monkeypatch.setattr(Lossy, "before", staticmethod(lambda: kept.rename(file)))
    monkeypatch.setattr(sweeping, "crew_of", lambda begin, sets, workers, most: Lossy(workers, begin, sets, most=most))
    assert run_sweep(plan_of(inputs, cache)) == undisturbed


# ---- where runs are made ------------------------------------------------------------------------------


def test_there_is_a_worker_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "layerprobe.encoders.workers.resolve_device", lambda device: torch.device(device.replace("auto", "cuda"))
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert workers_of(Model(), local="processes").devices == ("cuda:0", "cuda:1", "cuda:2")
    assert workers_of(Model(device="cuda:1"), local="processes").devices == ("cuda:1",)
    assert workers_of(Model(device="cpu"), local="processes").devices == ("cpu",)
    assert workers_of(Model(), ray="local").gpus == 1


def test_a_worker_refuses_what_computes_something_else() -> None:
    with pytest.raises(WorkerError, match="expected to compute on cuda float32, got cpu float32: give --device and"):
        taken_over(Model(), "cuda float32", Share(threads=1, device="cpu"))
    assert taken_over(Model(device="cuda:9"), "cuda float32", Share()) == Model(device="cuda:9")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_worker_computes_in_the_precision_that_auto_was_where_the_work_began(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.encoders.device._computes_bfloat16", lambda _: dtype == "bfloat16")
    options = Model(dtype="auto", device="cpu", cache_dir=tmp_path / "here")
    model = SharedModel(resolve(given(str(save_tiny("bert", tmp_path / "model")), options)))
    monkeypatch.setattr(
        "layerprobe.encoders.device._computes_bfloat16", lambda _: dtype == "float32"
    )  # a stopwatch says otherwise
    there = pickle.loads(pickle.dumps(model))  # noqa: S301
    there.asked = replace(there.asked, cache_dir=tmp_path / "elsewhere")
    there.take_over(Share(threads=1, device="cpu"))
    assert there.encoder.description.dtype == model.encoder.description.dtype == dtype


# ---- bad input ----------------------------------------------------------------------------------------


def test_bad_input_is_told_before_a_process_begins(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.jobs.processes._Process", no_process)
    plan = plan_of(inputs, tmp_path)
    with pytest.raises(DataError, match=r"expected layers from 0 to 3 of .*bert, got 4"):
        run_sweep(dataclasses.replace(plan, layers=(1, 4)))
    with pytest.raises(ModelError, match="there is no folder"):
        run_sweep(dataclasses.replace(plan, models=(SweepModel(model=Model(str(tmp_path / "nothing"))),)))
    with pytest.raises(TaskError, match=r"nothing\.csv"):
        run_sweep(dataclasses.replace(plan, tasks=(TaskSettings(source=str(tmp_path / "nothing.csv")),)))
    with pytest.raises(DataError, match="expected at least one worker, got 0"):
        run_sweep(plan, workers=0)
    with pytest.raises(DataError, match="expected at least one model, and each of them once, got 2"):
        dataclasses.replace(plan, models=plan.models[:1] * 2)
    with pytest.raises(DataError, match=r"once, got .*/bert on .* and .*/\./bert on .*, which have the same runs"):
        run_sweep(plan_of(inputs, tmp_path, models=("bert", "electra", "./bert")))
    with pytest.raises(DataError, match="expected at least one task, and each of them once, got 0"):
        dataclasses.replace(plan, tasks=())
    with pytest.raises(DataError, match="expected seeds from 0"):
        dataclasses.replace(plan, seeds=())
    with pytest.raises(DataError, match="expected one way of pooling"):
        dataclasses.replace(plan, options=Model(pooling="cls"))
    with pytest.raises(DataError, match="got float16"):
        dataclasses.replace(plan, options=Model(dtype="float16"))


def test_a_sweep_survives_json(undisturbed: SweepResult) -> None:
    text = json.dumps(json.loads(json.dumps(dataclasses.asdict(undisturbed))))
    assert from_json(SweepResult, text) == undisturbed
    assert isinstance(plan_of(Path("a"), Path("b")), Sweep)
