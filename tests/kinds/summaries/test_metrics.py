"""ROUGE against the library by itself, the greedy oracle against an exhaustive search."""

import itertools
import random
import sys

import pytest
from rouge_score.rouge_scorer import RougeScorer

from layerprobe.errors import DataError
from layerprobe.kinds import summaries as module
from layerprobe.kinds.summaries import greedy_oracle, readable, rouge

WORDS = ["cats", "sat", "running", "under", "the", "tables", "and", "chairs", "while", "dogs", "slept"]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 7)))


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_the_library(seed: int) -> None:
    rng = random.Random(seed)
    chosen, summary = (tuple(text(rng) for _ in range(rng.randint(1, 3))) for _ in range(2))
    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    expected = scorer.score("\n".join(summary), "\n".join(chosen))
    found = rouge(chosen, summary)
    assert list(found) == ["rouge-1", "rouge-2", "rouge-l"]
    assert list(found.values()) == [expected[name].fmeasure for name in ("rouge1", "rouge2", "rougeLsum")]


@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_of_one_sentence_is_the_best_and_of_more_no_worse(seed: int) -> None:
    rng = random.Random(seed)
    sentences, summary = [text(rng) for _ in range(5)], (text(rng), text(rng))

    def score(numbers: tuple[int, ...]) -> float:
        scores = rouge(tuple(sentences[i] for i in numbers), summary)
        return scores["rouge-1"] + scores["rouge-2"]

    one = greedy_oracle(sentences, summary, keep=1)
    assert score(one) == max(score((i,)) for i in range(5))
    previous = one
    for keep in (2, 3, 9):
        more = greedy_oracle(sentences, summary, keep=keep)
        assert set(previous) <= set(more)
        assert len(more) <= keep
        assert (
            score(previous)
            <= score(more)
            <= max(score(each) for n in range(1, 6) for each in itertools.combinations(range(5), n))
        )
        previous = more


def test_nothing_in_common_has_no_oracle() -> None:
    assert greedy_oracle(["cats sat", "dogs slept"], ("chairs",), keep=2) == ()
    assert not readable("猫が座った。")
    assert readable("猫が2匹")


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    module._scorer.cache_clear()
    with pytest.raises(DataError, match=r"rouge_score, which is not installed: pip install 'layerprobe\[summaries\]'"):
        rouge(("not scored before",), ("by any other test",))
    module._scorer.cache_clear()
