"""What is known of data before anything is spent, against counts by hand."""

import dataclasses

import pytest

from layerprobe.tasks.loading import load_task
from layerprobe.tasks.quality import DataQuality, task_quality
from tests.tasks.test_load_task import rows

TOKENS = DataQuality(
    n_texts=9,
    n=9,
    copies=0,
    model="m",
    unknown_characters=0.0,
    limit=512,
    truncated=0.0,
)


def test_a_task_is_counted():
    train = [("a", "b", 0), ("b", "a", 5), ("c", "d", 2.5), ("e", "f", 1.25), ("e", "f", 1.2)]
    test = [("a", "z", 0), ("x", "b", 5), ("y", "u", 1), ("w", "v", 1)]
    quality = task_quality(load_task(train, validation=rows(4), test=test))
    assert (quality.n_texts, quality.n, quality.copies, quality.in_train) == (6 + 8 + 6, 13, 2, 2)
    assert quality.warnings == ("2 of 13 are copies of earlier ones",)
    assert [row["value"] for row in quality.table.records()] == ["20", "2", "2"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, None),
        (
            {"unknown_characters": 0.66},
            "m cannot read these texts: 66 % of their characters are unknown to its tokenizer",
        ),
        ({"unknown_characters": 0.022}, "m reads these texts only partly: 2.2 % of their characters"),
        (
            {"tokens_per_letter": 2.5, "example": ("ab", "a", "b")},
            "m spells these texts: 2.50 tokens per letter, such as 'ab' as a b; its tokenizer",
        ),
        ({"truncated": 0.12}, None),
    ],
)
def test_what_is_worth_a_warning(values, message):
    tokens = dataclasses.replace(TOKENS, **values)
    assert (message is None and not tokens.warnings) or tokens.warnings[0].startswith(message)
    assert tokens.readable == ("unknown_characters" not in values or values["unknown_characters"] < 0.25)
