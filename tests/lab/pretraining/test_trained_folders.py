"""What pretraining and adaptation promise alike: the same weights after an interruption, and nothing else replaced."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from layerprobe.context import settings
from layerprobe.errors import DataError, StoreError, TrainingError
from layerprobe.lab.pretraining.loop import Trainer
from layerprobe.lab.pretraining.masking import MaskedBatch
from layerprobe.versions import __version__, versions
from tests.few import few
from tests.lab.pretraining.jobs import CHECKPOINT_EVERY, STEPS, adapted, assert_same_weights, job, numbers, stop_after


@dataclasses.dataclass(frozen=True)
class Training:
    """One of the two, with what a run without an interruption gives, and its folder."""

    argument: str
    """Objective or model."""
    make: Callable[..., Any]
    doing: str
    """What the directory of an unfinished run, and its progress, are called."""
    what: str
    result: Any
    out: Path

    def __call__(self, out: Path, **changes: Any) -> Any:
        return self.make(self.argument, out, **changes)


@pytest.fixture(scope="module", params=["adapt", "pretrain"])
def training(
    request: pytest.FixtureRequest, folder: Path, uninterrupted: Any, tmp_path_factory: pytest.TempPathFactory
) -> Training:
    if request.param == "adapt":
        about = "adapting", "adapted model"
        return Training(str(folder), lambda model, *a, **k: adapted(Path(model), *a, **k), *about, *uninterrupted)
    out = tmp_path_factory.mktemp("pretrained") / "whole"
    about = "pretraining", "pretrained model"
    return Training("rtd", job, *about, job("rtd", out), out)


def stopped(training: Training, out: Path, step: int) -> Path:
    """Interrupt a run when it begins the step after; return the directory that is left of it."""
    with pytest.MonkeyPatch.context() as patched:
        stop_after(step, patched)
        with pytest.raises(KeyboardInterrupt):
            training(out)
    assert not out.exists()
    return out.with_name(f"{out.name}.{training.doing}")


def test_seeds_differ_and_are_repeated_and_the_global_generator_is_left_alone(
    training: Training, tmp_path: Path
) -> None:
    state = torch.get_rng_state()
    assert numbers(training(tmp_path / "same")) == numbers(training.result)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_weights(tmp_path / "same", training.out)
    assert training(tmp_path / "other", seed=1).metrics != training.result.metrics
    assert training.result.versions == {"layerprobe": __version__, **versions()}


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(training: Training, tmp_path: Path) -> None:
    out, doing = tmp_path / "out", training.doing
    with subprocess.Popen(
        [sys.executable, "-m", "tests.lab.pretraining.jobs", training.argument, str(out), "0.1"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"{doing} 8 of"):
                break
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    assert not out.exists()
    left = tmp_path / f"out.{doing}"
    assert [path.name for path in left.glob("step-*")] == ["step-000000006"]
    files = sorted(path.name for path in (left / "step-000000006").iterdir())
    assert files == ["SHA256SUMS", "state.json", "tensors.safetensors"]
    steps: list[float] = []
    told = lambda task, done, total: steps.append(done) if task.startswith(doing) else None  # noqa: E731
    with settings(progress=told):
        found = training(out)
    assert steps == [6, 7, 8, 9, 10, 11, 12]
    assert numbers(found) == numbers(training.result)
    assert_same_weights(out, training.out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("step", few([1, CHECKPOINT_EVERY, 7, STEPS - 1], lambda step: step != 7))
def test_it_can_be_interrupted_anywhere(step: int, training: Training, tmp_path: Path) -> None:
    assert stopped(training, tmp_path / "out", step).exists() == (step >= CHECKPOINT_EVERY)
    assert numbers(training(tmp_path / "out")) == numbers(training.result)
    assert_same_weights(tmp_path / "out", training.out)


def test_a_damaged_step_begins_anew(training: Training, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped(training, tmp_path / "out", 5)
    (file,) = tmp_path.rglob("tensors.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    assert numbers(training(tmp_path / "out")) == numbers(training.result)
    assert "the run starts again" in caplog.text


def test_an_unfinished_run_is_not_mixed_with_another(training: Training, tmp_path: Path) -> None:
    left = stopped(training, tmp_path / "out", 5)
    with pytest.raises(DataError, match="contains an unfinished run with another model, other texts or settings"):
        training(tmp_path / "out", seed=1)
    assert left.is_dir()
    other = training(tmp_path / "out", seed=1, overwrite=True)
    assert (other.seed, other.metrics[0].step) == (1, 0)
    assert not left.exists()


def test_a_second_process_is_refused(training: Training, tmp_path: Path) -> None:
    left = tmp_path / f"out.{training.doing}"
    left.mkdir()
    busy = rf"another process {training.doing[:-3]}s a model for .*out: wait until it is done"
    with FileLock(left / "lock"), pytest.raises(StoreError, match=busy):
        training(tmp_path / "out")


def test_another_run_replaces_a_finished_one_only_when_asked(training: Training, tmp_path: Path) -> None:
    first = training(tmp_path / "out")
    assert training(tmp_path / "out") == first, "expected it to be read, with its time"
    with pytest.raises(DataError, match=rf"has another {training.what}: its model, texts or .*--overwrite"):
        training(tmp_path / "out", seed=1)
    assert training(tmp_path / "out", seed=1, overwrite=True).fingerprint != first.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_else_is_ever_replaced(training: Training, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(DataError, match=f"has no {training.what}, so it is not replaced"):
            training(tmp_path, overwrite=overwrite)
    with pytest.raises(DataError, match=r"got the file .*thesis.tex"):
        training(tmp_path / "thesis.tex")


def test_a_loss_that_is_not_finite_stops_with_its_step(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses_of = Trainer.part_losses

    def broken(self: Trainer, batch: MaskedBatch) -> dict[str, torch.Tensor]:
        factor = float("nan") if self.step == 4 else 1
        return {part: factor * loss for part, loss in losses_of(self, batch).items()}

    monkeypatch.setattr(Trainer, "part_losses", broken)
    with pytest.raises(TrainingError, match=r"the loss became nan at step 5 of 12: .* lower the learning rate \(now"):
        training(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, r"expected seeds from 0 to 2\^63 - 1, at least one, got \[-1\]"),
        ({"seed": 2**63}, r"expected seeds from 0 to 2\^63 - 1, at least one, got"),
        ({"texts": ("a", "a")}, "expected at least two distinct texts"),
    ],
)
def test_what_cannot_be_trained(training: Training, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        training(tmp_path / "out", **changes)
    assert list(tmp_path.iterdir()) == []
