"""Folds: every labelled example validates once, and no text is on both sides."""

import dataclasses

import pytest

from layerprobe.tasks.splitting import folds_of
from layerprobe.tasks.values import Examples, Task
from tests.toy_task import toy_task_of


def pairs(examples: Examples) -> list[tuple[str, str, float]]:
    second = examples.first if examples.second is None else examples.second
    return list(zip(examples.first, second, examples.targets, strict=True))


def task_of(train: list[tuple[str, str]], validation: list[tuple[str, str]]) -> Task:
    def split(given: list[tuple[str, str]]) -> Examples:
        return Examples(
            first=tuple(a for a, _ in given),
            second=tuple(b for _, b in given),
            targets=tuple(i / len(given) for i in range(len(given))),
        )

    return dataclasses.replace(toy_task_of("sts"), train=split(train), validation=split(validation))


@pytest.mark.parametrize("kind", ["sts", "classification", "entailment"])
@pytest.mark.parametrize("n_folds", [2, 5])
def test_every_example_validates_once_and_trains_in_the_others(kind: str, n_folds: int) -> None:
    task = toy_task_of(kind)
    folds = folds_of(task, n_folds)
    pool = sorted(pairs(task.train) + pairs(task.validation))
    assert sorted(pair for fold in folds for pair in pairs(fold.validation)) == pool
    for fold in folds:
        assert sorted(pairs(fold.train) + pairs(fold.validation)) == pool
        assert (fold.test, fold.labels, fold.kind) == (task.test, task.labels, task.kind)
    assert len({fold.digest for fold in folds}) == n_folds


def test_no_text_is_trained_on_and_validated_on() -> None:
    chains = [(f"{i} {j}", f"{i} {j + 1}") for i in range(60) for j in range(3)]
    folds = folds_of(task_of(chains[:150], chains[150:]), 5)
    for fold in folds:
        assert not set(fold.train.texts) & set(fold.validation.texts)
        assert 30 <= len(fold.validation) <= 42


def test_copies_stay_together_where_all_texts_are_joined() -> None:
    star = [("a", str(i)) for i in range(40)] * 2 + [(str(i), "a") for i in range(40)]
    for fold in folds_of(task_of(star, [("x", "y"), ("y", "z")]), 4):
        assert 28 <= len(fold.validation) <= 33
        train = {frozenset(pair[:2]) for pair in pairs(fold.train)}
        assert not train & {frozenset(pair[:2]) for pair in pairs(fold.validation)}


def test_the_seed_decides_and_nothing_else() -> None:
    task = toy_task_of("sts")
    assert folds_of(task, 3) == folds_of(task, 3) != folds_of(task, 3, seed=1)
