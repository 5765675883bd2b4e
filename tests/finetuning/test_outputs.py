"""Outputs by example: kept beside the result, equal to the bit, and never read when they are damaged."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.errors import StoreError
from layerprobe.finetuning.outcomes import OUTPUTS, RunOutputs, read_outputs, run_items
from layerprobe.finetuning.runs import load_finished, run_directory, save_finished
from layerprobe.finetuning.values import Protocol
from layerprobe.metrics.names import Split
from layerprobe.tasks.evaluation import evaluate_outputs
from tests.finetuning.sweeps import one_run, runs_of
from tests.report.conftest import tuned_run
from tests.toy_task import toy_task_of


def some() -> RunOutputs:
    rng = np.random.default_rng(0)
    return RunOutputs(layers=(2, 5), validation=rng.normal(size=(2, 4, 3)), test=rng.normal(size=(2, 7, 3)))


@pytest.mark.parametrize("kind", ["sts", "paraphrase", "tags"])
def test_a_run_keeps_what_its_scores_come_from(encoder: Encoder, kind: str, tmp_path: Path) -> None:
    task, folder = toy_task_of(kind), tmp_path
    (run,) = one_run(runs_of(lambda: encoder, folder, task, Protocol(epochs=1, learning_rate=1e-3)), 2, 0)
    outputs = read_outputs(run.directory)
    assert outputs is not None
    splits: tuple[Split, Split] = ("validation", "test")
    for split, metrics in zip(splits, (run.validation, run.test), strict=True):
        gold = task.split(split).gold
        assert evaluate_outputs(kind, outputs.of(2, split), gold, threshold=run.threshold).metrics == metrics
    shutil.rmtree(run.directory)
    with pytest.raises(StoreError, match="after its run was read, so intervals would be missing: repeat the command"):
        run_items(task, [run])


@pytest.mark.parametrize("place", [0, 9, 60, 250, -5, -200])
def test_a_flipped_byte_is_seen(tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    run, directory = tuned_run(2, 0, 1000, 70.0), run_directory(tmp_path, 2, 0)
    directory.mkdir()
    save_finished(directory, (run,), some())
    assert load_finished(directory) == (run,)
    data = bytearray((directory / OUTPUTS).read_bytes())
    data[place] ^= 64
    (directory / OUTPUTS).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert load_finished(directory) is None
    assert "the run will be repeated" in caplog.text
