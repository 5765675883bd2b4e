"""Several models and tasks: runs are shared between calls, processes and what a killed one left; failures are rows."""

import contextlib
import dataclasses
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel, choose_workers, taken_over
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, StoreError, TrainingError, WorkerError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning import tuning
from layerprobe.finetuning.runs import RunJob, RunSet, load_failure, run_folder
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import TuningResult
from layerprobe.jobs.crew import Crew, Message, Share, Worker
from layerprobe.tasks.loading import load_task
from tests.finetuning.finished import lock_of, mark_failed
from tests.finetuning.tiny import LAYERS, N_RUNS, PROTOCOL, SEEDS, half_written, results_in, tuned, write_inputs
from tests.models import given, save_tiny
from tests.toy_task import toy_task, toy_task_of


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Every process computes with one thread: sums over two are others in the last digit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models and a task."""
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def undisturbed_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, undisturbed_cache: Path) -> TuningResult:
    """What comes out where nothing happens."""
    return tuned(inputs, undisturbed_cache)


@pytest.fixture
def cache(undisturbed: TuningResult, undisturbed_cache: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed folder."""
    return shutil.copytree(undisturbed_cache, tmp_path / "cache")


def folder_of(inputs: Path, cache: Path, model: str) -> Path:
    task = load_task(inputs / "toy-train.csv", score_range=(0.0, 1.0))
    return run_folder(resolve(Model(f"{inputs}/{model}", device="cpu", cache_dir=cache)), task, PROTOCOL)


def process_of(inputs: Path, cache: Path, workers: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.finetuning.tiny", str(inputs), str(cache), str(workers)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def no_load(*arguments: object, **options: object) -> None:
    raise AssertionError("a run is made that is there")


# ---- what comes out -----------------------------------------------------------------------------------


def test_there_is_a_row_for_each_model_layer_and_seed(undisturbed: TuningResult) -> None:
    assert len(undisturbed.runs) == N_RUNS
    assert [Path(run.model).name for run in undisturbed.runs[:: N_RUNS // 2]] == ["bert", "electra"]
    assert [(run.layer, run.seed) for run in undisturbed.runs[: N_RUNS // 2]] == [
        (layer, seed) for seed in SEEDS for layer in LAYERS
    ]
    assert undisturbed.failures == ()
    assert [(Path(found.model).name, found.layer) for found in undisturbed.outcomes] == [
        (model, layer) for model in ("bert", "electra") for layer in LAYERS
    ]
    assert all(found.seeds == SEEDS for found in undisturbed.outcomes)
    for found in undisturbed.outcomes:
        rows = [run for run in undisturbed.runs if (run.model, run.layer) == (found.model, found.layer)]
        assert found.scores == tuple(run.test["spearman"] for run in rows)
    with pytest.raises(DataError, match="expected one model and one task, to name the best layer, got 2 pairs"):
        _ = undisturbed.best_layer


def test_tasks_have_curves_of_their_own(folder: Path, tmp_path: Path) -> None:
    model = Model(str(folder), device="cpu", cache_dir=tmp_path)
    tasks = [toy_task(train=16), toy_task_of("entailment", train=24), toy_task(train=24)]
    result = finetune(model, tasks, [1], seeds=1, protocol=PROTOCOL)
    assert list(dict.fromkeys(run.task for run in result.runs)) == ["toy (1)", tasks[1].name, "toy (3)"]
    assert [outcome.primary for outcome in result.outcomes] == ["spearman", "macro f1", "spearman"]
    assert result.table.data["metric"] == ("spearman", "macro f1", "spearman")
    alone = finetune(model, tasks[1], [1], seeds=1, protocol=PROTOCOL)
    assert result.outcomes[1] == alone.outcomes[0]


# ---- what happens to it -------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_on_one_folder_share_the_work(undisturbed: TuningResult, inputs: Path, tmp_path: Path) -> None:
    cache, made = tmp_path / "cache", tmp_path / "made"
    made.mkdir()
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(process_of(inputs, cache, 1, NOTE_RUNS=str(made))) for _ in range(2)]
        outputs = [process.communicate(timeout=300) for process in both]
    for output, errors in outputs:
        found = from_json(TuningResult, output[output.index("{") :])
        assert found.outcomes == undisturbed.outcomes, errors
    jobs = [f"{model} {layer} {seed}" for model in ("bert", "electra") for layer in LAYERS for seed in SEEDS]
    assert sorted(file.stem for file in made.iterdir()) == jobs
    assert half_written(cache) == []


def test_a_run_that_another_process_is_at_is_waited_for_at_the_end(
    undisturbed: TuningResult,
    inputs: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for file in results_in(cache)[:3]:
        file.rename(file.with_name("kept"))
    kept = sorted(cache.rglob("kept"))
    layer, seed = (int(kept[0].parent.name.split("-")[i]) for i in (1, 3))
    held = lock_of(kept[0].parent.parent, layer, seed)
    held.acquire()

    def finish(job: RunJob) -> str:
        """The other one ends when it is waited for."""
        assert len(results_in(cache)) == N_RUNS - 1
        kept[0].rename(kept[0].with_name("result.json"))
        held.release()
        return f"fine-tunes layer {job.layer} with seed {job.seed}"

    monkeypatch.setattr(RunJob, "label", property(finish))
    with caplog.at_level(logging.INFO):
        assert tuned(inputs, cache).outcomes == undisturbed.outcomes
    assert held.is_locked is False
    (waited,) = [text for text in caplog.messages if text.startswith("waiting for another process")]
    assert waited.endswith(f"fine-tunes layer {layer} with seed {seed}")


# ---- runs that fail -----------------------------------------------------------------------------------


def test_a_run_that_diverges_is_marked_and_the_others_go_on(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make = RunSet.make

    def fails(runs: RunSet, job: RunJob, *arguments: Callable[[], object]) -> object:
        if job.layer == 1 and job.of == 0:
            raise TrainingError("the loss became nan")
        return make(runs, job, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RunSet, "make", fails)
    result = tuned(inputs, tmp_path)
    failed = [run for run in result.runs if run.error]
    assert [(Path(run.model).name, run.layer, run.seed) for run in failed] == [("bert", 1, 0), ("bert", 1, 1)]
    assert [found.layer for found in result.outcomes] == [0, 3, 0, 1, 3]
    assert len(result.scored) == N_RUNS - 2
    name = f"{inputs}/bert on {inputs}/toy-train.csv"
    assert result.failures[0] == f"{name}, layer 1, seed 0: the loss became nan"
    assert caplog.messages.count(f"{name}, layer 1, seed 0 failed: the loss became nan") == 1
    assert from_json(TuningResult, to_json(result)) == result


def test_where_no_run_is_finished_the_first_failure_is_raised(inputs: Path, tmp_path: Path) -> None:
    protocol = dataclasses.replace(PROTOCOL, learning_rate=1e30)
    with pytest.raises(TrainingError, match=r"the (loss|embeddings) at layer 1 "):
        tuned(inputs, tmp_path, models=("bert",), protocol=protocol, layers=(1, 2), seeds=(0,))
    assert len(list(tmp_path.rglob("failed.json"))) == 2


def test_a_mark_is_read_and_not_tried_again_unless_asked(inputs: Path, cache: Path, undisturbed: TuningResult) -> None:
    where = folder_of(inputs, cache, "electra")
    (where / "layer-003-seed-1" / "result.json").unlink()
    mark_failed(where, 3, 1, "the loss became nan")
    found = tuned(inputs, cache)
    (failed,) = [run for run in found.runs if run.error]
    assert (failed.layer, failed.seed) == (3, 1)
    assert failed.error.startswith("the loss became nan (this run failed before: to try again, remove ")
    assert found.outcomes[-1].seeds == (0,)
    assert found.outcomes[:3] == undisturbed.outcomes[:3]
    assert [check.name for check in found.conclusion.checks] == ["runs failed", "not compared"]
    assert tuned(inputs, cache, retry_failed=True).outcomes == undisturbed.outcomes
    assert load_failure(where / "layer-003-seed-1") is None


def test_a_model_whose_weights_cannot_be_read_fails_alone(inputs: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(inputs / "bert", inputs / "broken", dirs_exist_ok=True)
    (broken / "model.safetensors").write_bytes(b"half")
    result = tuned(inputs, tmp_path, models=("broken", "electra"), layers=(1,), seeds=(0,))
    assert [bool(run.error) for run in result.runs] == [True, False]
    assert list(tmp_path.rglob("failed.json")) == []  # another copy of the weights may be whole


def test_a_full_disk_ends_it(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every further run would be trained and lost."""
    begun: list[int] = []

    def full(runs: object, job: RunJob, *arguments: object) -> None:
        begun.append(job.layer)
        raise StoreError("No space left on device")

    monkeypatch.setattr(RunSet, "make", full)
    with pytest.raises(StoreError, match="No space left on device"):
        tuned(inputs, tmp_path)
    assert len(begun) == 1


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
        yield self.workers[0], kind, value

    def close(self) -> None:
        self.workers = []


@pytest.mark.parametrize("trace", [None, "Traceback\nRuntimeError: a bug\n"])
def test_a_run_whose_process_is_lost_fails_and_is_not_marked(
    inputs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, trace: str | None
) -> None:
    results_in(cache)[0].unlink()
    monkeypatch.setattr(tuning, "make_crew", lambda begin, sets, workers, most: Lossy(workers, begin, sets, most=most))
    if trace is not None:
        monkeypatch.setattr(Lossy, "ending", ("raised", trace))
    (message,) = [run.error for run in tuned(inputs, cache).runs if run.error]
    assert message.startswith("unexpected error" if trace else "its process was killed twice (signal 9)")
    assert list(cache.rglob("failed.json")) == []


def test_a_run_that_is_there_after_all_is_not_lost(
    undisturbed: TuningResult, inputs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed behind the writing of the result, or another one has made it meanwhile."""
    file = results_in(cache)[0]
    kept = file.rename(file.with_name("kept"))
    monkeypatch.setattr(Lossy, "before", staticmethod(lambda: kept.rename(file)))
    monkeypatch.setattr(tuning, "make_crew", lambda begin, sets, workers, most: Lossy(workers, begin, sets, most=most))
    assert tuned(inputs, cache) == undisturbed


# ---- where runs are made ------------------------------------------------------------------------------


def test_there_is_a_worker_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "layerprobe.encoders.loading.resolve_device", lambda device: torch.device(device.replace("auto", "cuda"))
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert choose_workers(Model(), local="processes").devices == ("cuda:0", "cuda:1", "cuda:2")
    assert choose_workers(Model(device="cuda:1"), local="processes").devices == ("cuda:1",)
    assert choose_workers(Model(device="cpu"), local="processes").devices == ("cpu",)
    assert choose_workers(Model(), ray="local").gpus == 1


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
    assert model.encoder.description.dtype == dtype
    # another machine
    monkeypatch.setattr("layerprobe.encoders.device._computes_bfloat16", lambda _: dtype == "float32")
    there = pickle.loads(pickle.dumps(model))  # noqa: S301
    there.asked = replace(there.asked, cache_dir=tmp_path / "elsewhere")
    there.take_over(Share(threads=1, device="cpu"))
    assert there.encoder.description.dtype == dtype


# ---- bad input ----------------------------------------------------------------------------------------


def test_bad_input_is_told_before_anything_is_loaded(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.encoders.loading.load_encoder", no_load)
    bert = Model(str(inputs / "bert"), device="cpu", cache_dir=tmp_path)
    half = Model(str(inputs / "bert"), dtype="float16", device="cpu")
    twice = [toy_task(), toy_task()]
    wrong: list[tuple[Model, Any, dict[str, Any], str]] = [
        (bert, twice, {}, r"each model and task once, got .*bert on toy \(1\) and .*bert on toy \(2\)"),
        (bert, [], {}, "expected at least one model and one task, got 1 and 0"),
        (bert, toy_task(), {"workers": 0}, "expected at least one worker, got 0"),
        (bert, toy_task(), {"seeds": ()}, "expected seeds from 0"),
        (bert, toy_task(), {"layers": []}, r"expected layers of .*bert to fine-tune, got none"),
        (half, toy_task(), {}, "cannot fine-tune in float16"),
    ]
    for model, tasks, how, message in wrong:
        with pytest.raises(DataError, match=message):
            finetune(model, tasks, **{"layers": [1], **how})
