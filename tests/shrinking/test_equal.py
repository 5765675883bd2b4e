"""Other blocks than the first, of the same number: which there are, and that fine-tuning compares them."""

from pathlib import Path
from typing import Any

import pytest

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol, TuningResult
from layerprobe.shrinking.teacher import candidates
from tests.models import save_tiny
from tests.toy_task import toy_task_of

PROTOCOL = Protocol(learning_rate=1e-3, epochs=1, batch_size=16)
TASK = toy_task_of("sts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("model"), num_hidden_layers=4))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(autouse=True)
def here(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(store))


@pytest.fixture(scope="module")
def result(folder: str, store: Path) -> TuningResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERPROBE_CACHE", str(store))
        first, *others = candidates(folder, TASK, (1, 3))
        return finetune(folder, TASK, [len(first)], blocks=others, seeds=2, protocol=PROTOCOL)


def scores(model: Any, layer: int) -> tuple[float, ...]:
    return finetune(model, TASK, [layer], seeds=2, protocol=PROTOCOL).outcomes[0].scores


def test_scores_are_those_of_fine_tuning(folder: str, result: TuningResult) -> None:
    first, *others = result.outcomes
    assert (first.layer, first.blocks) == (2, None)
    assert first.scores == scores(folder, 2)
    assert (1, 3) in {other.blocks for other in others}
    for other in others:
        assert other.blocks is not None
        assert other.scores == scores(Model(folder, blocks=other.blocks), 2)
        assert other.error is not None
        assert (other.error.n_seeds, other.error.n_items) == (2, len(TASK.test))
    (compared,) = result.compared
    assert compared is not None
    assert compared.scores == pytest.approx([outcome.mean for outcome in result.outcomes])


def test_runs_of_a_search_are_read(folder: str, result: TuningResult, store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.glob("runs/*/*/result.json")}
    assert len(before) == 2 * len(result.outcomes)
    finetune(folder, TASK, [2], seeds=2, protocol=PROTOCOL)
    others = [outcome.blocks for outcome in result.outcomes[1:] if outcome.blocks]
    assert finetune(folder, TASK, 2, blocks=others, seeds=2, protocol=PROTOCOL).outcomes == result.outcomes
    assert {path: path.stat().st_mtime_ns for path in store.glob("runs/*/*/result.json")} == before


def test_choices_that_are_the_same_are_one(folder: str) -> None:
    found = candidates(folder, TASK, (2, 4))
    assert found[0] == (1, 2)
    assert found.count((2, 4)) == 1, "expected evenly spaced ones and given ones once"
    assert set(candidates(folder, TASK, 3)) >= {(1, 2, 3)}
    assert all(len(blocks) == 3 for blocks in candidates(folder, TASK, 3))


@pytest.mark.parametrize("size", [0, 4, "50%", "2x", (), "found", 2.5, None])
def test_sizes_without_others(folder: str, size: Any) -> None:
    with pytest.raises(DataError, match="expected 1 to 3 blocks to compare, or the blocks themselves, got"):
        candidates(folder, TASK, size)


def test_what_cannot_be(folder: str) -> None:
    with pytest.raises(ModelError, match="ascending, from 1 to 4, got 2, 9"):
        candidates(folder, TASK, (2, 9))
    with pytest.raises(ModelError, match="ascending, from 1 to 4, got 2, 9"):
        finetune(folder, TASK, 2, blocks=[(2, 9)], protocol=PROTOCOL)
    cut = resolve(Model(folder, blocks=(1, 2, 4)))
    with pytest.raises(DataError, match="blocks to compare"):
        candidates(cut, TASK, 2)
