"""Random labels with a validation split that is the test split: through `load_task` and `find`."""

import dataclasses
import random
from typing import Any

import pytest

from layerprobe.encoders.model import Model
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.values import Protocol
from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from layerprobe.study import find as find_module
from layerprobe.study.find import find
from layerprobe.study.values import Finding
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task
from tests.models import given, save_tiny
from tests.toy_task import toy_pairs

QUICK = Protocol(learning_rate=1e-3, epochs=1, batch_size=16)


def rows(n: int, seed: int) -> list[tuple[str, str, float]]:
    rng, some = random.Random(seed), toy_pairs(n, seed)
    assert some.second is not None
    return [(a, b, rng.randint(0, 20) / 4) for a, b in zip(some.first, some.second, strict=True)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    path = save_tiny("bert", folder / "bert", num_hidden_layers=3)
    return given(str(path), Model(device="cpu", cache_dir=folder / "cache"))


def loaded(**settings: Any) -> Task:
    test = rows(40, 1)
    return load_task({"train": rows(60, 2), "validation": test, "test": test}, **settings)


def folds_seen(monkeypatch: pytest.MonkeyPatch) -> list[set[tuple[str, ...]]]:
    """What the folds of searches from here on train on, or choose by, of their test splits."""
    seen: list[set[tuple[str, ...]]] = []

    def search_folds(*arguments: Any) -> Any:
        folds = real(*arguments)
        seen.extend(set(each.alike) & set(fold.test.alike) for fold in folds for each in (fold.train, fold.validation))
        return folds

    real = find_module.search_folds
    monkeypatch.setattr(find_module, "search_folds", search_folds)
    return seen


def test_a_search_learns_from_no_test_pair_although_validation_is_the_test_split(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = find(model, loaded(keep_overlaps=True), protocol=QUICK, seeds=2, budget=0.4, against_last=2)
    task = loaded()
    assert any("left out 40 of 40 pairs of the validation split" in said for said in task.warnings)
    seen = folds_seen(monkeypatch)
    apart = find(model, task, protocol=QUICK, seeds=2, budget=0.4)
    assert apart.answer.spoilt == 0
    assert seen == [set()] * 4, "a fold of the search holds test pairs"
    by_hand = dataclasses.replace(loaded(keep_overlaps=True), keep_overlaps=False)
    again = find(model, by_hand, protocol=QUICK, seeds=2, budget=0.4)  # other pairs validate, none of them test pairs
    assert (again.answer.spoilt, seen) == (0, [set()] * 8)

    for conclusion in (spoilt.conclusion, spoilt.answer.conclusion):
        assert (conclusion.case, conclusion.verdict) == ("spoilt", Verdict.FAILED)
        assert words.certainty(conclusion) == "40 examples in two splits"
        assert (conclusion.checks, conclusion.choice, conclusion.facts["score"].interval) == ((), None, None)
        assert not {"chance", "near", "behind", "gain"} & {*conclusion.facts}
    assert (spoilt.drop_layers, spoilt.against_last, spoilt.answer.smallest_sufficient) == ((), None, None)
    columns = {column.name: column.values for column in spoilt.table.columns}
    for name in ("expected_interval", "chance_best", "chance_within", "candidate", "flag"):
        assert set(columns[name]) == {None}
    assert from_json(Finding, to_json(spoilt)) == spoilt
