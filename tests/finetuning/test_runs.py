"""Runs on disk: never repeated, never half-written, the same numbers after an interruption."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import InsufficientMemoryError, StoreError, TrainingError
from layerprobe.files import atomic as files
from layerprobe.files.serialisation import to_dict, unsealed
from layerprobe.finetuning import runs
from layerprobe.finetuning.runs import RunJob, RunSet, RunWorker, load_failure, run_directory, run_folder
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.jobs.crew import Share
from layerprobe.versions import versions
from tests.finetuning.finished import Tuned, mark_failed, outputs_of, run_in, save_run
from tests.finetuning.sweeps import (
    LAYERS,
    PROTOCOL,
    SEEDS,
    STEPS,
    TASK,
    Loaded,
    fine_tuned,
    folder_of,
    one_run,
    runs_of,
    sweep,
)
from tests.toy_task import toy_task

JOBS = [(layer, seed) for seed in SEEDS for layer in LAYERS]


def numbers(found: Sequence[FineTuningRun]) -> list[FineTuningRun]:
    """Runs without what differs from time to time."""
    return [dataclasses.replace(run, seconds=0.0, peak_memory=0) for run in found]


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[FineTuningRun]:
    return sweep(folder, tmp_path_factory.mktemp("uninterrupted"))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The layer and seed of every run that is really made."""
    made: list[tuple[int, int]] = []
    fine_tune = runs.fine_tune

    def counting(encoder: Encoder, layer: int, *arguments: Any, seed: int, **options: Any) -> Tuned:
        made.append((layer, seed))
        return fine_tune(encoder, layer, *arguments, seed=seed, **options)

    monkeypatch.setattr(runs, "fine_tune", counting)
    return made


@pytest.fixture
def finished(folder: Path, tmp_path: Path, uninterrupted: list[FineTuningRun]) -> Path:
    """A folder with all four runs, in `tmp_path`."""
    where = folder_of(folder, tmp_path)
    for run in uninterrupted:
        save_run(where, run)
    return where


def half_written(root: Path) -> list[Path]:
    return [
        path
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("origin.json", "result.json", "outputs.safetensors", "lock")
    ]


# ---- what is done is not done again -------------------------------------------------------------------


def test_finished_runs_are_read(
    folder: Path, tmp_path: Path, trained: list[tuple[int, int]], uninterrupted: list[FineTuningRun]
) -> None:
    first = sweep(folder, tmp_path)
    assert trained == JOBS
    assert numbers(first) == numbers(uninterrupted)
    assert sweep(folder, tmp_path) == first
    assert trained == JOBS
    assert half_written(tmp_path) == []


def test_the_model_is_loaded_once_for_all_missing_runs(
    encoder: Encoder, finished: Path, trained: list[tuple[int, int]]
) -> None:
    loads = 0

    def load() -> Encoder:
        nonlocal loads
        loads += 1
        return encoder

    fine_tuned(runs_of(load, finished, TASK, PROTOCOL), (0, 1, 2), seeds=SEEDS)
    assert loads == 1
    assert trained == [(0, 0), (2, 0), (0, 1), (2, 1)]


# ---- damage -------------------------------------------------------------------------------------------

GARBLED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "not text": lambda data: b"\xff\xfe" + data,
    "another value": lambda data: b"[1, 2]",
    "a field less": lambda data: data.replace(b'"seed"', b'"side"'),
    "NaN": lambda data: data.replace(b'"seconds": ', b'"seconds": NaN, "side": '),
}


def test_a_garbled_result_is_made_again(
    folder: Path, tmp_path: Path, finished: Path, trained: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    file = run_directory(finished, 3, 0) / "result.json"
    whole = file.read_bytes()
    for garble in GARBLED.values():
        caplog.clear()
        file.write_bytes(garble(whole))
        assert run_in(finished, 3, 0) is None
        (warning,) = caplog.messages
        assert str(file) in warning
        assert "the run will be repeated" in warning
        assert "\n" not in warning
    sweep(folder, tmp_path)
    assert trained == [(3, 0)]
    assert run_in(finished, 3, 0) is not None


def text_of(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text()))


@pytest.mark.parametrize("whole", [True, False], ids=["directories", "results"])
def test_runs_that_changed_places_are_made_again(
    folder: Path, tmp_path: Path, finished: Path, uninterrupted: list[FineTuningRun], whole: bool
) -> None:
    first, second = run_directory(finished, 1, 0), run_directory(finished, 3, 1)
    if not whole:
        first, second = first / "result.json", second / "result.json"
    third = first.with_name("third")
    first.rename(third)
    second.rename(first)
    third.rename(second)
    assert [run_in(finished, layer, seed) is None for layer, seed in JOBS] == [True, False, False, True]
    assert numbers(sweep(folder, tmp_path)) == numbers(uninterrupted)


def test_outputs_that_changed_places_are_made_again(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = run_directory(finished, 1, 0) / "outputs.safetensors"
    (run_directory(finished, 3, 0) / "outputs.safetensors").write_bytes(other.read_bytes())
    assert run_in(finished, 3, 0) is None
    assert "result.json cannot be read (its file outputs.safetensors: its checksum does not" in caplog.text


@pytest.mark.parametrize("name", ["layer-001-seed-0", "layer-001-seed-0/result.json", "layer-001-seed-0/lock", ""])
def test_a_run_that_is_a_link_is_refused(
    folder: Path, tmp_path: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    kept, elsewhere = finished / name, tmp_path_factory.mktemp("elsewhere") / "mine"
    if name.endswith("lock"):
        elsewhere.write_text("mine")
        (run_directory(finished, 1, 0) / "result.json").unlink()
    else:
        kept.rename(elsewhere)
    before = {path: path.stat() for path in [elsewhere, *elsewhere.rglob("*")]}
    kept.symlink_to(elsewhere)
    with pytest.raises(StoreError, match=rf"expected .* itself, got a link to {elsewhere}.*: remove the link"):
        sweep(folder, tmp_path)
    assert {path: path.stat() for path in [elsewhere, *elsewhere.rglob("*")]} == before


def test_a_result_that_cannot_be_read_is_an_error(finished: Path, trained: list[tuple[int, int]]) -> None:
    """Not a reason to train again: the same disk would have to take the result."""
    file = run_directory(finished, 3, 0) / "result.json"
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*result\.json: Is a directory"):
        run_in(finished, 3, 0)


# ---- the key ------------------------------------------------------------------------------------------


def test_the_folder_is_named_by_all_that_the_numbers_depend_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = resolve(Model(str(folder), device="cpu", cache_dir=tmp_path))

    def path_of(task: Any = TASK, protocol: Protocol = PROTOCOL, **fields: Any) -> Path:
        return run_folder(dataclasses.replace(checkpoint, **fields), task, protocol)

    def asking(**options: Any) -> Path:
        return path_of(asked=dataclasses.replace(checkpoint.asked, **options))

    def path_on(computed_on: str) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr(type(checkpoint), "computed_on", computed_on)
            return path_of()

    adapted = dataclasses.replace(PROTOCOL, lora=4)
    protocols = [
        dataclasses.replace(adapted if name.startswith("lora_") else PROTOCOL, **{name: value})
        for name, value in OTHER_PROTOCOLS.items()
    ]
    assert OTHER_PROTOCOLS.keys() == {field.name for field in dataclasses.fields(Protocol)}
    others = [
        path_on("cpu bfloat16"),
        path_on("cuda float32"),
        asking(batch_tokens=1024),
        asking(batch_tokens=10),
        asking(attn="eager"),
        asking(attn="sdpa"),
        path_of(pinned={**checkpoint.pinned, "trust_remote_code": True}),
        path_of(revision="another"),
        path_of(tokenizer_digest="another"),
        asking(random_init=0),
        asking(random_init=1),
        path_of(task=toy_task(train=33)),
        path_of(task=toy_task(train=32, validation=33)),
        path_of(task=toy_task(train=32, test=33)),
        *(path_of(protocol=protocol) for protocol in protocols),
    ]
    assert len({path_of(), *others}) == 1 + len(others)
    assert path_of() == path_of(
        asked=dataclasses.replace(checkpoint.asked, name="elsewhere"), source="elsewhere"
    )  # a folder is known by its content
    assert path_of().parent == tmp_path / "runs"


def test_whole_numbers_name_the_same_folder(folder: Path, tmp_path: Path) -> None:
    """The protocol of a run that is read has 0.0 where 0 was given."""
    checkpoint = resolve(Model(str(folder), device="cpu", cache_dir=tmp_path))
    whole, read = Protocol(weight_decay=0, warmup=0, max_grad_norm=1), Protocol(weight_decay=0.0, warmup=0.0)
    paths = [run_folder(checkpoint, TASK, p) for p in (whole, read)]
    assert paths[0] == paths[1]


OTHER_PROTOCOLS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "epochs": 3,
    "batch_size": 9,
    "warmup": 0.2,
    "max_grad_norm": 2.0,
    "max_length": 64,
    "pooling": "cls",
    "lora": 4,
    "lora_alpha": 4,
    "lora_modules": ("query",),
    "gradient_checkpointing": True,
    "dropout": False,
    "evaluations": 2,
    "kept_epoch": 1,
    "patience": 0,
    "positive_share": 0.5,
}


def test_a_run_says_the_same_after_the_disk(uninterrupted: list[FineTuningRun], tmp_path: Path) -> None:
    where = tmp_path
    save_run(where, uninterrupted[0])
    assert run_in(where, 1, 0) == uninterrupted[0]
    content, checksum = unsealed(json.loads((run_directory(where, 1, 0) / "result.json").read_text()))
    assert content == {"runs": [to_dict(uninterrupted[0])]}
    assert checksum is not None
    assert checksum.name == f"{tmp_path.name}/layer-001-seed-0/result.json"
    assert list(checksum.files) == ["outputs.safetensors"]
    assert run_in(where, 1, 1) is None


# ---- processes ----------------------------------------------------------------------------------------


def sweeping(model: Path, root: Path, *, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.finetuning.sweeps", str(model), str(root), str(pause)]
    return subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_sweep_goes_on_to_the_same_numbers(
    folder: Path, tmp_path: Path, trained: list[tuple[int, int]], uninterrupted: list[FineTuningRun]
) -> None:
    with sweeping(folder, tmp_path, pause=0.05) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(STEPS + 3)]  # one run and three steps of the next
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    assert lines[-1].startswith("TMFT layer 3 seed 0")
    assert [path.parent.name for path in tmp_path.rglob("result.json")] == ["layer-001-seed-0"]
    assert numbers(sweep(folder, tmp_path)) == numbers(uninterrupted)
    assert trained == JOBS[1:]
    assert half_written(tmp_path) == []


def test_what_a_kill_leaves_of_a_result_goes_with_the_next_run(
    encoder: Encoder, finished: Path, uninterrupted: list[FineTuningRun]
) -> None:
    """A process can be killed between writing a result and giving it its name."""
    where = run_directory(finished, 1, 0)
    (where / "result.json").rename(where / f"{files.TEMPORARY}0a1b")
    found = fine_tuned(runs_of(lambda: encoder, finished, TASK, PROTOCOL), LAYERS, seeds=SEEDS)
    assert numbers(found) == numbers(uninterrupted)
    assert half_written(finished) == []


# ---- runs that fail -----------------------------------------------------------------------------------

FAILED = "failed.json"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Layer 3 fails with seed 0; the layer and seed of every run that was begun."""
    begun: list[tuple[int, int]] = []
    fine_tune = runs.fine_tune

    def fails(encoder: Encoder, layer: int, *arguments: Any, seed: int, **options: Any) -> Tuned:
        begun.append((layer, seed))
        if (layer, seed) == (3, 0):
            raise TrainingError("the loss became nan")
        return fine_tune(encoder, layer, *arguments, seed=seed, **options)

    monkeypatch.setattr(runs, "fine_tune", fails)
    return begun


def test_a_run_that_fails_is_marked_and_not_tried_again(
    folder: Path, tmp_path: Path, failing: list[tuple[int, int]]
) -> None:
    where = folder_of(folder, tmp_path)
    with pytest.raises(TrainingError, match=r"^the loss became nan$"):
        sweep(folder, tmp_path)
    assert load_failure(run_directory(where, 3, 0)) == "the loss became nan"
    assert text_of(run_directory(where, 3, 0) / FAILED)["torch"] == torch.__version__
    assert failing == [(1, 0), (3, 0)]
    mark = run_directory(where, 3, 0) / FAILED
    with pytest.raises(
        TrainingError, match=r"the loss became nan \(this run failed before: to try again, remove "
    ) as caught:
        sweep(folder, tmp_path)
    assert str(mark) in str(caught.value)
    assert failing == [(1, 0), (3, 0)]


def test_a_run_that_works_after_all_has_no_mark(
    encoder: Encoder,
    folder: Path,
    tmp_path: Path,
    failing: list[tuple[int, int]],
    uninterrupted: list[FineTuningRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = folder_of(folder, tmp_path)
    with pytest.raises(TrainingError):
        sweep(folder, tmp_path)
    monkeypatch.setattr(runs, "fine_tune", lambda *_, **__: ((uninterrupted[1],), outputs_of(3)))
    one_run(runs_of(lambda: encoder, where, TASK, PROTOCOL, retry_failed=True), 3, 0)
    assert load_failure(run_directory(where, 3, 0)) is None
    assert run_in(where, 3, 0) == uninterrupted[1]


def test_a_run_without_memory_is_not_marked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: list[FineTuningRun]
) -> None:
    """A neighbour on the device may be gone when it is tried again."""

    def full(*arguments: Any, **options: Any) -> Tuned:
        raise InsufficientMemoryError("layer 1 does not fit")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "fine_tune", full)
        with pytest.raises(InsufficientMemoryError, match=r"^layer 1 does not fit$"):
            sweep(folder, tmp_path)
    assert list(tmp_path.rglob(FAILED)) == []
    assert numbers(sweep(folder, tmp_path)) == numbers(uninterrupted)


def test_texts_that_are_cut_are_reported_for_each_task(
    encoder: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where two tasks have one name, as those of one file have."""
    short, model = dataclasses.replace(PROTOCOL, max_length=3), Loaded(lambda: encoder)
    tasks = [toy_task(train=n) for n in (16, 24, 24)]
    sets = [RunSet(model=model, folder=tmp_path / str(n), task=task, protocol=short) for n, task in enumerate(tasks)]
    worker = RunWorker(sets, Share())
    for number in range(len(sets)):
        worker(RunJob(1, 0, number))
    assert caplog.text.count("were cut at 3 tokens in fine-tuning") == 2


def test_only_one_of_several_workers_is_told_to_use_fewer(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(RunSet, "make", full)
    runs = runs_of(lambda: encoder, tmp_path, TASK, PROTOCOL)
    for share, advice in ((Share(), "a smaller batch"), (Share(threads=1, device="cpu"), "fewer workers, a smaller")):
        with pytest.raises(InsufficientMemoryError, match=f"^out of memory: use {advice}"):
            RunWorker((runs,), share)(RunJob(1, 0))


def test_a_run_that_is_made_alone_has_the_threads_of_all(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunSet, "make", lambda *_: torch.get_num_threads())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        worker = RunWorker((runs_of(lambda: encoder, tmp_path, TASK, PROTOCOL),), Share())
        worker.threads = 1  # of a share of the processors
        assert [worker(RunJob(1, 0, alone=alone)) for alone in (False, True, False)] == [1, 3, 1]
    finally:
        torch.set_num_threads(before)


def test_a_mark_of_other_versions_or_half_a_mark_is_none(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("layerprobe.finetuning.runs.versions", lambda: {**versions(), "torch": "0.1"})
        mark_failed(finished, 9, 0)
    assert load_failure(run_directory(finished, 9, 0)) is None
    mark_failed(finished, 9, 0)
    assert load_failure(run_directory(finished, 9, 0)) == "no"
    mark = run_directory(finished, 9, 0) / FAILED
    mark.write_bytes(GARBLED["cut short"](mark.read_bytes()))
    assert load_failure(run_directory(finished, 9, 0)) is None
