"""The first blocks against others of the same number: the scores of fine-tuning, paired, and what follows of them."""

import dataclasses
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.results.shown import make_page
from layerprobe.shrinking.equal import Candidate, EqualSize, candidates, equal_size
from tests.models import save_tiny
from tests.shown import assert_one_table, assert_shows_itself
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
def result(folder: str, store: Path) -> EqualSize:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERPROBE_CACHE", str(store))
        return equal_size(folder, TASK, (1, 3), seeds=2, protocol=PROTOCOL)


def scores(model: Any, layer: int) -> tuple[float, ...]:
    runs = finetune(model, TASK, [layer], seeds=2, protocol=PROTOCOL)
    return tuple(run.test["spearman"] for run in runs)


def test_scores_are_those_of_fine_tuning(folder: str, result: EqualSize) -> None:
    first, *others = result.candidates
    assert (first.blocks, first.difference) == ((1, 2), None)
    assert first.scores == scores(folder, 2)
    assert {"given"} <= {how for each in others for how in each.chosen_by}
    for each in others:
        assert each.scores == scores(Model(folder, blocks=each.blocks), 2)
        assert each.difference is not None
        assert each.difference.value == pytest.approx(fmean(each.scores) - fmean(first.scores))
        assert each.difference.interval[0] < each.difference.value < each.difference.interval[1]
        assert each.difference.n_seeds == 2
        assert each.difference.n_items == len(TASK.test)


def test_intervals_hold_at_once(result: EqualSize) -> None:
    n = len(result.candidates) - 1
    assert n > 1
    assert result.level == 0.95
    for each in result.candidates[1:]:
        assert each.difference is not None
        assert each.difference.level == pytest.approx(1 - 0.05 / n)


def test_runs_of_a_search_are_read(folder: str, result: EqualSize, store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.glob("runs/*/*/result.json")}
    assert len(before) == 2 * len(result.candidates)
    finetune(folder, TASK, [2], seeds=2, protocol=PROTOCOL)
    assert equal_size(folder, TASK, "1,3", seeds=2, protocol=PROTOCOL) == result
    assert {path: path.stat().st_mtime_ns for path in store.glob("runs/*/*/result.json")} == before


def test_choices_that_are_the_same_are_one(folder: str) -> None:
    found = candidates(folder, TASK, (2, 4))
    assert next(iter(found)) == (1, 2)
    assert {"evenly spaced", "given"} <= set(found[2, 4])
    assert sum(map(len, found.values())) == 4
    assert set(candidates(folder, TASK, 3)) >= {(1, 2, 3)}
    assert all(len(blocks) == 3 for blocks in candidates(folder, TASK, 3))


def of(result: EqualSize, *ends: tuple[float, float]) -> EqualSize:
    """Return a result of two blocks whose differences have these intervals."""
    known = result.candidates[1].difference
    assert known is not None
    made = [Candidate(blocks=(1, 2), chosen_by=("first",), scores=(60.0, 62.0), difference=None)]
    for number, (low, high) in enumerate(ends, 3):
        middle = (low + high) / 2
        error = dataclasses.replace(known, interval=(low, high), value=middle)
        made.append(Candidate(blocks=(1, number), chosen_by=("given",), scores=(61.0 + middle,), difference=error))
    return dataclasses.replace(result, candidates=tuple(made))


def test_what_is_said(result: EqualSize) -> None:
    tied = of(result, (-0.5, 1.1))
    assert tied.summary == (
        "Blocks 1, 3 are not significantly different from the first 2: +0.3 points of Spearman (-0.5 to +1.1). "
        "Of 2 blocks, keep 1, 2."
    )
    some = of(result, (-3.0, -1.0), (0.5, 1.5), (2.0, 4.0))
    assert "Blocks 1, 3 are worse than the first 2: -2.0 points" in some.summary
    assert "Blocks 1, 4 are better than the first 2: +1.0 points of Spearman (+0.5 to +1.5)." in some.summary
    assert some.summary.endswith("Of 2 blocks, keep 1, 5.")
    assert "better than the first 2: +1.0 points of Spearman (+0.02 to +2.0)" in of(result, (0.02, 2.0)).summary
    assert some.table.marks == (None, None, None, "chosen")


def test_nothing_is_claimed_of_spoilt_scores(result: EqualSize) -> None:
    said = dataclasses.replace(result, spoilt=3)
    assert said.summary.startswith("Scores are spoilt by 3 examples that stand in two splits, so nothing is claimed")
    assert from_json(EqualSize, to_json(said)) == said


def test_it_is_a_table_and_is_read_back(result: EqualSize, tmp_path: Path) -> None:
    assert_one_table(result.table, tmp_path)
    assert from_json(EqualSize, to_json(result)) == result


def test_its_page_draws_every_choice(result: EqualSize) -> None:
    worse = of(result, (-3.0, -1.0), (0.5, 1.5))
    drawn = worse.plot()
    seeds, means, ring = drawn.data
    assert list(means.y) == [61.0, 59.0, 62.0]
    assert list(drawn.layout.xaxis.ticktext) == ["1 2", "1 3", "1 4"]
    assert list(seeds.y)[:2] == [60.0, 62.0], "the seeds of the first blocks"
    assert list(ring.y) == [62.0]
    page = make_page(worse)
    assert worse.summary == f"{page.lead[0]} {page.heading}."
    differences = page.figures[1].plot.data[0]
    ends = zip(differences.error_y.arrayminus, differences.error_y.array, strict=True)
    assert list(ends) == [(1.0, 1.0), (0.5, 0.5)]
    assert "61.00" in page.figures[0].finding or "62.00" in page.figures[0].finding


def test_it_shows_itself(result: EqualSize, tmp_path: Path) -> None:
    assert_shows_itself(result, tmp_path)


@pytest.mark.parametrize("size", [0, 4, "50%", "2x", (), "found", 2.5, None])
def test_sizes_without_others(folder: str, size: Any) -> None:
    with pytest.raises(DataError, match="expected 1 to 3 blocks of a whole model to compare, or which, got"):
        equal_size(folder, TASK, size, protocol=PROTOCOL)


def test_what_cannot_be(folder: str) -> None:
    with pytest.raises(ModelError, match="ascending, from 1 to 4, got 2, 9"):
        equal_size(folder, TASK, (2, 9), protocol=PROTOCOL)
    with pytest.raises(DataError, match=r"expected settings as Protocol\(...\), got \{'epochs': 1\}"):
        equal_size(folder, TASK, 2, protocol={"epochs": 1})  # type: ignore[arg-type]
    cut = resolve(Model(folder, blocks=(1, 2, 4)))
    with pytest.raises(DataError, match="blocks of a whole model to compare"):
        equal_size(cut, TASK, 2, protocol=PROTOCOL)
