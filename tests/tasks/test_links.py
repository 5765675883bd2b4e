"""Items that share a text: links between them, folds that keep them together, and their influences on a metric."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.kinds.triplets import Triplets
from layerprobe.stats.crossed import Links, crossed
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import folds_of
from layerprobe.tasks.values import Examples, Task
from tests.toy_kind import toy_kind
from tests.toy_task import OF_EXAMPLES, toy_task_of

TEXTS = st.sampled_from("abcdefgh")


def examples_of(first: str, second: str | None) -> Examples:
    return Examples(
        first=tuple(first), second=None if second is None else tuple(second), targets=tuple(0.0 for _ in first)
    )


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=20), st.integers(1, 3))
def test_sums_are_those_over_all_pairs_of_items_that_share_a_text(
    items: list[tuple[str, str, str]], n_sides: int
) -> None:
    first, second, third = (tuple(side) for side in zip(*items, strict=True))
    triplets = Triplets(anchors=first, positives=second, negatives=third)
    examples = triplets if n_sides == 3 else examples_of("".join(first), "".join(second) if n_sides == 2 else None)
    named = [set(item[:n_sides]) for item in items]
    linked = np.array([[float(bool(one & other)) for other in named] for one in named])
    links = links_of(examples)
    psi = np.random.default_rng(len(items)).normal(size=(3, len(items)))
    found = psi @ psi.T if links is None else links.products(psi)
    np.testing.assert_allclose(found, psi @ linked @ psi.T, atol=1e-12)
    assert (links is None) == (linked.sum() == len(items))


def test_units_are_texts_of_equal_weight() -> None:
    assert Links(sides=(np.arange(10) // 2,)).units == pytest.approx(5)
    assert Links(sides=(np.arange(10), np.arange(10, 20))).units == 10
    # two contexts of 40 questions are two, however many questions differ; a negative of all triplets is one
    assert Links(sides=(np.arange(2, 42), np.arange(40) // 20)).units == pytest.approx(2)
    assert Links(sides=(np.arange(9), np.arange(9, 18), np.full(9, 18))).units == pytest.approx(1)
    # all pairs of m texts are worth m texts or somewhat fewer
    every = np.array(list(itertools.combinations(range(20), 2))).T
    assert 13 < Links(sides=tuple(every)).units <= 20


def test_errors_of_questions_about_few_contexts_cover_their_mean() -> None:
    rng, n_contexts, n_each = np.random.default_rng(0), 4, 10
    contexts = np.repeat(np.arange(n_contexts), n_each)
    links = Links(sides=(np.arange(n_contexts, n_contexts + len(contexts)), contexts))
    covered = 0
    for _ in range(400):
        scores = 50 + 20 * (rng.normal(size=n_contexts)[contexts] + rng.normal(size=len(contexts)))
        found = crossed([scores.mean()], [scores - scores.mean()], links=links)
        assert found is not None
        covered += found.interval[0] <= 50 <= found.interval[1]
    assert covered / 400 > 0.92  # 0.85 where questions count as contexts, too


def pairs(examples: Examples) -> list[tuple[str, str, float]]:
    second = examples.first if examples.second is None else examples.second
    return list(zip(examples.first, second, examples.targets, strict=True))


def task_of(train: list[tuple[str, str]], validation: list[tuple[str, str]]) -> Task:
    def split(rows: list[tuple[str, str]]) -> Examples:
        return Examples(
            first=tuple(a for a, _ in rows),
            second=tuple(b for _, b in rows),
            targets=tuple(i / len(rows) for i in range(len(rows))),
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


@pytest.mark.parametrize("kind", OF_EXAMPLES)
def test_every_metric_of_every_kind_has_influences_on_the_scale_of_its_scores(kind: str) -> None:
    rng, n, rules = np.random.default_rng(0), 60, KINDS[kind]
    binary = rules.threshold is not None
    targets = rng.integers(0, 2 if binary else 3, n).astype(float)
    alone = targets + rng.normal(size=n)
    outputs = alone if binary or not rules.labelled else np.eye(3)[targets.astype(int)] + rng.normal(size=(n, 3))
    threshold = 0.5 if binary else None
    scores = evaluate_outputs(kind, outputs, targets, threshold=threshold).metrics
    others = np.arange(n) != 7
    without = evaluate_outputs(kind, outputs[others], targets[others], threshold=threshold).metrics
    for metric in rules.metrics:
        influences = item_influences(kind, outputs, targets, metric=metric, threshold=threshold)
        assert influences.sum() == pytest.approx(0, abs=1e-9)
        assert influences[7] == pytest.approx((n - 1) * (scores[metric] - without[metric]), abs=4, rel=0.05)
    primary = item_influences(kind, outputs, targets, threshold=threshold)
    expected = item_influences(kind, outputs, targets, metric=rules.metrics[0], threshold=threshold)
    np.testing.assert_array_equal(primary, expected)


def test_a_metric_from_outside_is_computed_by_leaving_items_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The correlation of the toy kind has no formula of its own, and the same influences as that of sts."""
    rng = np.random.default_rng(0)
    targets = rng.normal(size=150)
    outputs = targets + rng.normal(size=150)
    with toy_kind(monkeypatch, tmp_path):
        influences = item_influences("grading", outputs, targets)
        fit = item_influences("grading", outputs, targets, metric="fit")
    expected = item_influences("sts", outputs, targets, metric="pearson")
    assert np.corrcoef(influences, expected)[0, 1] > 0.99
    assert influences.std() == pytest.approx(expected.std(), rel=0.1)
    assert fit.sum() == pytest.approx(0, abs=1e-9)
