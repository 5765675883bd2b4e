"""An interrupted run goes on after its last epoch on disk: to the same numbers, and no epoch twice."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from layerprobe.context import Progress, settings
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.errors import StoreError, TrainingError
from layerprobe.finetuning import runs, tmft
from layerprobe.finetuning.outcomes import RunOutputs
from layerprobe.finetuning.runs import run_directory
from layerprobe.finetuning.step import FineTuner, TokenLimit
from layerprobe.finetuning.tmft import Epochs
from layerprobe.finetuning.values import Protocol, Runs
from layerprobe.tasks.evaluation import Evaluation
from layerprobe.training import SavedSteps
from tests.few import few
from tests.finetuning.finished import outputs_of
from tests.finetuning.sweeps import folder_of, one_run, runs_of
from tests.models import save_tiny
from tests.toy_task import OF_EXAMPLES, toy_task_of

# so fast that an early epoch can be the best one
PROTOCOL = Protocol(learning_rate=3e-2, epochs=4, batch_size=8)
STEPS = 4


@pytest.fixture(autouse=True)
def save_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tmft, "SAVE_AFTER", 0.0)


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The step before each epoch that is really trained."""
    begun: list[int] = []
    epoch = FineTuner.epoch

    def counting(tuner: FineTuner, *arguments: Any, **options: Any) -> list[float]:
        begun.append(tuner.step)
        return epoch(tuner, *arguments, **options)

    monkeypatch.setattr(FineTuner, "epoch", counting)
    return begun


@pytest.fixture(scope="module", params=["bert"])
def dropping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model with dropout; the blocks of ALBERT share their weights."""
    path = tmp_path_factory.mktemp("models") / request.param
    save_tiny(request.param, path, hidden_dropout_prob=0.2)
    return path


def killed_at(step: int) -> Progress:
    def report(task: str, done: float, total: float) -> None:
        if round(done / total * PROTOCOL.epochs * STEPS) == step:
            raise KeyboardInterrupt

    return report


def run(model: Path, root: Path, kind: str, *, joint: bool) -> Runs:
    task = toy_task_of(kind, train=8 * STEPS)

    def load() -> Encoder:
        return load_encoder(str(model), device="cpu")

    runs = runs_of(load, folder_of(model, root), task, PROTOCOL, weighting="random", save_models=True)
    done = one_run(runs, 2, 1, scan=joint)
    return tuple(dataclasses.replace(of, seconds=0.0, peak_memory=0) for of in done)


def directory_of(model: Path, root: Path, *, joint: bool) -> Path:
    return run_directory(folder_of(model, root), 2, 1, "random" if joint else None)


def weights_of(directory: Path) -> bytes:
    return (directory / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("joint", [False, True], ids=["truncated", "joint"])
@pytest.mark.parametrize(
    ("dropping", "kind"),
    few([*(("bert", kind) for kind in OF_EXAMPLES), ("albert", "sts")], lambda case: case == ("bert", "sts")),
    indirect=["dropping"],
)
def test_a_run_killed_in_each_epoch_gives_the_same_numbers(
    dropping: Path, tmp_path: Path, trained: list[int], kind: str, joint: bool
) -> None:
    whole = run(dropping, tmp_path / "whole", kind, joint=joint)
    trained.clear()
    for epoch in range(PROTOCOL.epochs):
        with pytest.raises(KeyboardInterrupt), settings(progress=killed_at(epoch * STEPS + 2)):
            run(dropping, tmp_path / "killed", kind, joint=joint)
    assert run(dropping, tmp_path / "killed", kind, joint=joint) == whole
    # each was begun, killed, and begun again: none that was done
    assert trained == [epoch * STEPS for epoch in range(PROTOCOL.epochs) for _ in range(2)]
    ones, others = (directory_of(dropping, tmp_path / name, joint=joint) for name in ("whole", "killed"))
    assert weights_of(ones) == weights_of(others)
    first, second = map(outputs_of, (ones, others))
    np.testing.assert_array_equal(first.validation, second.validation)
    np.testing.assert_array_equal(first.test, second.test)
    assert not list(others.glob("step-*"))


@pytest.mark.parametrize("dropping", ["albert"], indirect=True)
def test_epochs_of_other_libraries_or_that_are_damaged_are_done_again(
    dropping: Path,
    tmp_path: Path,
    trained: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = run(dropping, tmp_path / "whole", "sts", joint=False)

    def interrupted() -> Path:
        with pytest.raises(KeyboardInterrupt), settings(progress=killed_at(2 * STEPS + 2)):
            run(dropping, tmp_path, "sts", joint=False)
        (step,) = directory_of(dropping, tmp_path, joint=False).glob("step-*")
        trained.clear()
        return step

    tensors = interrupted() / "tensors.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-5] ^= 1
    tensors.write_bytes(data)
    assert run(dropping, tmp_path, "sts", joint=False) == whole
    assert trained == [0, STEPS, 2 * STEPS, 3 * STEPS]
    assert f"{tensors.parent} cannot be read" in caplog.text
    (directory_of(dropping, tmp_path, joint=False) / "result.json").unlink()
    interrupted()
    monkeypatch.setattr(tmft, "versions", lambda: {"torch": "another"})
    assert run(dropping, tmp_path, "sts", joint=False) == whole
    assert trained == [0, STEPS, 2 * STEPS, 3 * STEPS]


def test_a_full_disk_does_not_end_a_run(
    dropping: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise StoreError("cannot write the folder: No space left on device: free space")

    monkeypatch.setattr(SavedSteps, "save", fail)
    run(dropping, tmp_path, "sts", joint=False)
    assert "No space left on device: free space; fine-tuning continues, but cannot be resumed" in caplog.text


@pytest.mark.parametrize(("later", "best"), [(60.0, 1), (80.0, 2)])
def test_the_best_epoch_is_that_of_the_layers_that_go_on(later: float, best: int) -> None:
    """Without the layer of 20 points, which fails, the mean is 60 or 80; with it, it was 45 and without it 70."""
    parts = nn.Linear(1, 1)
    run = Epochs(cast("FineTuner", None), parts, TokenLimit(8), primary="f1", began=0.0)
    for scores in ((20.0, 70.0), (None, later)):
        evaluations = [None if score is None else Evaluation(metrics={"f1": score}) for score in scores]
        run.add([0.0, 0.0], np.zeros((2, 1)), evaluations)
    assert run.best_epoch == best


@pytest.mark.parametrize(
    ("protocol", "scores", "n_epochs"),
    [
        (Protocol(), [60.0] * 5, 5),
        (Protocol(patience=0), [60.0] * 5, 5),
        (Protocol(patience=1), [60.0, 60.3, 60.4], 3),
        (Protocol(patience=2), [60.0, 60.1, 60.1], 3),
        (Protocol(patience=2), [60.0, 60.1, 60.3, 60.1, 60.2], 5),
        (Protocol(patience=2), [60.0, 70.0, 60.0, 60.0, 60.0], 5),
        (Protocol(patience=2), [70.0, 60.0, 59.0, 58.0, 60.0], 5),
        (Protocol(patience=3), [60.0, 60.1, 60.1, 60.3, 60.1, 60.1, 60.2], 7),
        (Protocol(patience=2, warmup=0.45), [60.0] * 5, 5),
    ],
)
def test_a_run_ends_after_epochs_that_moved_nothing(protocol: Protocol, scores: list[float], n_epochs: int) -> None:
    """A layer that failed counts for none of them, and the warm-up is no reason to end."""
    run = Epochs(cast("FineTuner", None), nn.Linear(1, 1), TokenLimit(8), primary="f1", began=0.0, protocol=protocol)
    ends = []
    for epoch, score in enumerate(scores, 1):
        failing = None if epoch == len(scores) else Evaluation(metrics={"f1": 10.0 * epoch})
        run.add([0.0, 0.0], np.zeros((2, 1)), [Evaluation(metrics={"f1": score}), failing])
        ends += [epoch] * run.are_enough
    assert (ends or [len(scores)]) == [n_epochs]


def test_a_run_of_patience_is_the_beginning_of_the_whole_one(dropping: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tmft, "UNMOVED", np.inf)
    encoder, task = load_encoder(str(dropping), device="cpu"), toy_task_of("sts", train=8 * STEPS)
    whole, short = (
        tmft.fine_tune(encoder, 2, task, protocol=dataclasses.replace(PROTOCOL, patience=patience))[0][0]
        for patience in (None, 1)
    )
    assert short.epochs == whole.epochs[:2]
    best = max(short.epochs, key=lambda epoch: epoch.validation["spearman"])
    assert (short.best_epoch, short.validation) == (best.epoch, best.validation)


def test_a_failed_run_leaves_no_epochs(dropping: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fine_tune(*_: Any, unfinished: Path, **__: Any) -> tuple[Runs, RunOutputs]:
        (unfinished / "step-000000001").mkdir()
        raise TrainingError("the loss became nan")

    monkeypatch.setattr(runs, "fine_tune", fine_tune)
    with pytest.raises(TrainingError, match="the loss became nan"):
        run(dropping, tmp_path, "sts", joint=False)
    assert not list(directory_of(dropping, tmp_path, joint=False).glob("step-*"))


def test_short_runs_write_nothing(dropping: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds is not worth writing down."""
    monkeypatch.setattr(tmft, "SAVE_AFTER", 30.0)
    with pytest.raises(KeyboardInterrupt), settings(progress=killed_at(2 * STEPS + 2)):
        run(dropping, tmp_path, "sts", joint=False)
    assert not list(directory_of(dropping, tmp_path, joint=False).glob("step-*"))


def test_the_best_epoch_is_kept_off_the_gpu_and_each_tensor_once() -> None:
    with FakeTensorMode():  # of a GPU that is not there
        parts = nn.ModuleList(nn.Embedding.from_pretrained(torch.empty(2, 3, device="cuda")) for _ in range(2))
        parts[1].weight = parts[0].weight
        run = Epochs(cast("FineTuner", None), parts, TokenLimit(8), primary="f1", began=0.0)
        run.add([0.0], np.zeros((1, 1)), [Evaluation(metrics={"f1": 1.0})])
        assert [(name, weight.device.type) for name, weight in run._state.items()] == [("0.weight", "cpu")]


def test_the_best_epoch_comes_back_with_weights_that_are_shared() -> None:
    parts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2)])
    parts[1].weight = parts[0].weight
    best = {name: weight.clone() for name, weight in parts.state_dict().items()}
    run = Epochs(cast("FineTuner", None), parts, TokenLimit(8), primary="f1", began=0.0)
    for score in (2.0, 1.0):
        run.add([0.0], np.zeros((1, 1)), [Evaluation(metrics={"f1": score})])
        for weight in parts.state_dict().values():
            weight += 1
    run.restore_best()
    assert parts[1].weight is parts[0].weight
    assert all(torch.equal(weight, best[name]) for name, weight in parts.state_dict().items())
