"""Exact match, F1 and the threshold of answers, by definition and by other formulas."""

import re
import string
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.kinds.answers import (
    ALWAYS,
    QUESTION_ANSWERING,
    Answer,
    Questions,
    answer_scores,
    answer_threshold,
    answer_words,
    predicted_answers,
    word_f1,
)
from layerprobe.metrics.scores import jackknife_influences

rng = np.random.default_rng(0)


def gold_of(contexts: Sequence[str], answers: Sequence[Sequence[str]]) -> Questions:
    names = tuple(map(str, range(len(contexts))))
    right = tuple(tuple(Answer(text=text, start=0) for text in texts) for texts in answers)
    return Questions(ids=names, questions=names, contexts=tuple(contexts), answers=right)


def by_hand(predicted: str, golds: tuple[str, ...]) -> tuple[float, float]:
    """F1 by precision and recall of multisets, and equality of normalised texts, without what the module uses."""

    def words(text: str) -> list[str]:
        kept = "".join(each for each in text.lower() if each not in string.punctuation)
        return re.sub(r"(?<!\w)(an?|the)(?!\w)", " ", kept).split()

    best = 0.0, 0.0
    for gold in [gold for gold in golds if words(gold)] or [""]:
        left, mine = words(gold), words(predicted)
        exact = float(left == mine)
        if not left or not mine:
            best = max(best[0], exact), max(best[1], exact)
            continue
        n_gold, common = len(left), 0
        for word in mine:
            if word in left:
                left.remove(word)
                common += 1
        precision, recall = common / len(mine), common / n_gold
        score = 2 * precision * recall / (precision + recall) if common else 0.0
        best = max(best[0], score), max(best[1], exact)
    return best


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Denver Broncos!", ("denver", "broncos")),
        ("a  an the", ()),
        ("than athe", ("than", "athe")),
        ("U.S. 1,000–2", ("us", "1000–2")),
        ("der Löwe", ("der", "löwe")),
        ("A-the B", ("athe", "b")),
    ],
)
def test_what_is_compared(text: str, words: tuple[str, ...]) -> None:
    assert answer_words(text) == words


TEXT = st.lists(st.sampled_from(["the", "a", "An", "lion", "Lion,", "cub", "'s", "é"]), max_size=6).map(" ".join)


@given(TEXT, st.lists(TEXT, max_size=3))
def test_scores_are_those_of_multisets_of_words(predicted: str, golds: list[str]) -> None:
    context = predicted or "x"
    gold = gold_of((context,), (tuple(golds),))
    outputs = np.array([[0, len(predicted), 1.0, 0.0]])
    f1, exact = by_hand(predicted, tuple(golds))
    expected = {"f1": pytest.approx(f1), "exact match": pytest.approx(exact)}
    assert answer_scores(outputs, gold, ALWAYS) == expected
    unanswered = by_hand("", tuple(golds))
    assert answer_scores(outputs, gold, -2.0) == {"f1": unanswered[0], "exact match": unanswered[1]}


def test_published_examples() -> None:
    # the three answers of SQuAD 1.1's development set to one question, and what the official script gives a span
    golds = ("Denver Broncos", "Denver Broncos", "the Broncos of Denver")
    assert by_hand("The Broncos", golds) == (pytest.approx(2 / 3), 0.0)
    assert max(word_f1(answer_words("The Broncos"), answer_words(gold)) for gold in golds) == pytest.approx(2 / 3)


def some_questions(n: int) -> tuple[np.ndarray, Questions]:
    """Spans of contexts of four words, a third of them without an answer; some null scores tie."""
    contexts = tuple(" ".join(rng.choice(list("bcdefg"), 4)) for _ in range(n))
    answers = tuple(() if i % 3 == 0 else (context[2:5], context[:1]) for i, context in enumerate(contexts))
    first = 2 * rng.integers(0, 3, n)
    outputs = np.stack([first, first + 3, rng.integers(0, 5, n), rng.integers(0, 5, n)], axis=1).astype(float)
    return outputs, gold_of(contexts, answers)


def test_the_threshold_is_the_best_of_all() -> None:
    for _ in range(20):
        outputs, gold = some_questions(15)
        threshold = answer_threshold(outputs, gold)
        candidates = [-100.0, *np.unique(outputs[:, 3] - outputs[:, 2])]
        scores = [answer_scores(outputs, gold, each)["f1"] for each in candidates]
        assert answer_scores(outputs, gold, threshold)["f1"] == pytest.approx(max(scores))
        if threshold >= min(candidates[1:]):
            assert threshold == candidates[int(np.argmax(scores))]


def test_where_all_have_an_answer_all_are_answered() -> None:
    outputs, gold = some_questions(9)
    right = tuple(each or (Answer(text="b", start=0),) for each in gold.answers)
    answered = replace(gold, answers=right)
    outputs[:, 3] = 1e9
    assert answer_threshold(outputs, answered) == ALWAYS
    assert all(predicted_answers(outputs, gold.contexts, ALWAYS))
    assert not any(predicted_answers(outputs, gold.contexts, 5.0))


def test_influences_are_those_of_leaving_out() -> None:
    outputs, gold = some_questions(12)
    assert QUESTION_ANSWERING.influences is not None
    computed = QUESTION_ANSWERING.influences(outputs, gold, 1.0)
    for metric, influences in computed.items():

        def score(rows: np.ndarray, metric: str = metric) -> float:
            return answer_scores(outputs[rows], gold[rows], 1.0)[metric]

        np.testing.assert_allclose(influences, jackknife_influences(score, 12), atol=1e-12)
