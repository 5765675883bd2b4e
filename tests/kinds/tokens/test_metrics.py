"""Entities and tags of words: the scores of seqeval and scikit-learn, and what each sentence adds to them."""

from collections.abc import Sequence

import numpy as np
import pytest
from seqeval import metrics as seqeval
from sklearn.metrics import accuracy_score, f1_score

from layerprobe.errors import DataError
from layerprobe.kinds.tokens import kind as words
from layerprobe.kinds.tokens.kind import (
    TaggedSentences,
    entity_influences,
    entity_scores,
    get_entities,
    tag_influences,
    tag_scores,
)

LABELS = ("O", "B-x", "B-y", "I-x", "I-y")


def tagged(tags: Sequence[np.ndarray]) -> TaggedSentences:
    numbers = tuple(tuple(part.tolist()) for part in tags)
    return TaggedSentences(words=tuple(("word",) * len(part) for part in tags), tags=numbers, labels=LABELS)


def drawn(n: int = 60, seed: int = 0) -> tuple[np.ndarray, TaggedSentences]:
    """Outputs that are right for about two words of three, of sentences of one to eight words."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum([0, *rng.integers(1, 9, n)])
    tags = rng.choice(5, size=ends[-1], p=(0.5, 0.15, 0.1, 0.15, 0.1))
    outputs = rng.normal(size=(ends[-1], 5))
    outputs[np.arange(ends[-1]), tags] += 1.5
    return outputs, tagged(np.split(tags, ends[1:-1]))


def sentences(tags: np.ndarray, gold: TaggedSentences) -> list[list[str]]:
    return [[LABELS[tag] for tag in part] for part in np.split(tags, gold.ends[1:-1])]


@pytest.mark.parametrize("seed", range(4))
def test_entities_are_those_of_seqeval(seed: int) -> None:
    outputs, gold = drawn(seed=seed)
    true, predicted = sentences(gold.word_tags, gold), sentences(outputs.argmax(axis=1), gold)
    assert any(tags[0].startswith("I-") for tags in predicted)  # which seqeval counts too
    assert entity_scores(outputs, gold) == pytest.approx(
        {
            "entity f1": seqeval.f1_score(true, predicted),
            "entity precision": seqeval.precision_score(true, predicted),
            "entity recall": seqeval.recall_score(true, predicted),
            "accuracy": seqeval.accuracy_score(true, predicted),
        }
    )


def test_tags_are_those_of_scikit_learn() -> None:
    outputs, gold = drawn()
    said = outputs.argmax(axis=1)
    true = gold.word_tags
    expected = {"accuracy": accuracy_score(true, said), "macro f1": f1_score(true, said, average="macro")}
    assert tag_scores(outputs, gold) == pytest.approx(expected)


def without(outputs: np.ndarray, gold: TaggedSentences, sentence: int) -> tuple[np.ndarray, TaggedSentences]:
    kept = np.repeat(np.arange(len(gold)), np.diff(gold.ends)) != sentence
    return outputs[kept], gold.take([row for row in range(len(gold)) if row != sentence])


@pytest.mark.parametrize(("score", "influences"), [(entity_scores, entity_influences), (tag_scores, tag_influences)])
def test_influences_are_what_leaving_a_sentence_out_changes(score: object, influences: object) -> None:
    """A ratio A / B moves by -(a - R b) / (B - b): the influence, but for what the sentence has in the sum below."""
    outputs, gold = drawn(n=400)
    scores, found = score(outputs, gold), influences(outputs, gold)  # type: ignore[operator]
    assert found.keys() == scores.keys()
    for name, values in found.items():
        assert values.shape == (400,)
        assert values.sum() == pytest.approx(0, abs=1e-9)
        left = [score(*without(outputs, gold, i))[name] for i in range(40)]  # type: ignore[operator]
        np.testing.assert_allclose(values[:40], 399 * (scores[name] - np.array(left)), rtol=0.04, atol=0.01)


def test_nothing_to_find_scores_0_and_has_no_influence() -> None:
    gold = tagged([np.zeros(2, dtype=int), np.zeros(3, dtype=int)])
    assert entity_scores(np.eye(5)[gold.word_tags], gold)["entity f1"] == 0
    assert entity_influences(np.eye(5)[gold.word_tags], gold)["entity f1"].tolist() == [0, 0]


def test_outputs_of_other_words_are_refused() -> None:
    outputs, gold = drawn()
    with pytest.raises(DataError, match=rf"expected outputs for {len(outputs)} words and 5 tags, got 3 x 5"):
        entity_scores(outputs[:3], gold)


def test_without_seqeval_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    get_entities.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "seqeval", None)
    with pytest.raises(DataError, match=r"seqeval, which is not installed: pip install 'layerprobe\[tokens\]'"):
        words.get_entities()
