"""What is known of data before anything is spent, against counts by hand."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from layerprobe.tasks.loading import load_task
from layerprobe.tasks.quality import DataQuality, TokenQuality, task_quality, text_quality, visible_difference
from tests.tasks.test_load_task import rows
from tests.toy_questions import toy_question_task

TOKENS = TokenQuality(
    model="m",
    n_texts=4,
    unknown_tokens=0.0,
    unknown_characters=0.0,
    byte_tokens=0.0,
    tokens_per_character=0.3,
    median_length=5,
    long_length=9,
    longest=10,
    limit=512,
    truncated=0.0,
)


def counted(quality):
    return {row["what"]: row["value"] for row in quality.table.records()}


def test_a_task_is_counted():
    train = [("a", "b", 0), ("b", "a", 5), ("c", "d", 2.5), ("e", "f", 1.25), ("e", "f", 1.2)]
    test = [("a", "z", 0), ("x", "b", 5), ("y", "u", 1), ("w", "v", 1)]
    quality = task_quality(load_task(train, validation=rows(4), test=test))
    assert quality.n_texts == 6 + 8 + 6
    assert [(split.split, split.n, split.copies, split.in_train) for split in quality.splits] == [
        ("train", 5, 2, 0),
        ("validation", 4, 0, 0),
        ("test", 4, 0, 2),
    ]
    bins = dict(quality.splits[0].targets)
    assert {name: n for name, n in bins.items() if n} == {"0.1": 1, "0.3": 2, "0.6": 1, "1": 1}
    assert any("a difference between two layers of less than about" in said for said in quality.warnings)
    assert "2 of 5 examples of the train split are copies" in quality.warnings


def test_labels_are_counted():
    task = load_task([(f"t {i}", "no" if i % 3 else "yes") for i in range(60)], columns="0,1")
    quality = task_quality(task)
    counts = [dict(split.targets) for split in quality.splits]
    assert sum(count["no"] for count in counts) == 40
    assert sum(count["yes"] for count in counts) == 20
    assert counted(quality)["test: targets"] == ", ".join(f"{k}: {v}" for k, v in counts[2].items())


def test_where_all_of_the_data_is_scored_all_of_it_is_counted():
    task = load_task([(f"Frage {i}", f"Réponse {i}", i % 5) for i in range(60)])
    assert task_quality(task).warnings[-1].startswith("the test split has 6 examples: a difference")
    (only,) = task_quality(task, scored=task.scored).splits
    assert (only.n, only.in_train) == (60, 0)
    assert task_quality(task, scored="all").warnings[-1].startswith("the data has 60 examples: a difference")


def test_copies_of_texts_are_counted():
    assert text_quality(["a", "b", "a"]) == DataQuality(n_texts=2, copies=1)


@pytest.mark.parametrize("labelled", [True, False])
def test_the_visible_difference_is_seen_in_four_of_five_studies(labelled):
    n, rng = 400, np.random.default_rng(0)
    difference = visible_difference(n, labelled=labelled) / 100
    error = difference / (stats.norm.ppf(0.975) + stats.norm.ppf(0.8))
    single = error / np.sqrt(2 * (1 - 0.95))
    if labelled:
        scores = rng.binomial(n, 0.8, 4000) / n
    else:
        normal = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], (1000, n))
        scores = np.array([stats.spearmanr(sample[:, 0], sample[:, 1]).statistic for sample in normal])
    assert single == pytest.approx(scores.std(), rel=0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, None),
        (
            {"unknown_characters": 0.66},
            "m cannot read these texts: 66% of their characters are unknown to its tokenizer",
        ),
        ({"unknown_characters": 0.022}, "m reads these texts in part: 2.2% of their characters"),
        ({"byte_tokens": 0.5}, "m spells these texts: 50% of their tokens are single bytes"),
        ({"truncated": 0.12}, "12% of the texts are cut at 512 tokens"),
    ],
)
def test_what_is_worth_a_warning(values, message):
    tokens = dataclasses.replace(TOKENS, **values)
    assert (message is None and not tokens.warnings) or tokens.warnings[0].startswith(message)
    assert tokens.readable == ("unknown_characters" not in values or values["unknown_characters"] < 0.25)


def test_kinds_without_labels_have_no_row_for_them():
    quality = task_quality(toy_question_task())
    assert not any("targets" in name for name in counted(quality))
    assert counted(quality)["train: examples"] == "60"
