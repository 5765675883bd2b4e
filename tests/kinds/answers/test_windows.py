"""Windows of questions and contexts: what the tokenizer writes, where answers are, and the best span by brute force."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.errors import DataError
from layerprobe.kinds.answers_loss import ANSWER_TOKENS, NO_SPAN, Windows, best_span, windowed

QUESTIONS = ("a b", "what is c", "d")
CONTEXTS = ("it is a short one", " ".join("abcdefgh" * 6), "a b. c, d")


@pytest.fixture(scope="module")
def bert(loaded: Callable[[str], Encoder]) -> Encoder:
    return loaded("bert")


@pytest.fixture(scope="module")
def windows(bert: Encoder) -> Windows:
    return windowed(bert, QUESTIONS, CONTEXTS, max_length=30)


def ids_of(windows: Windows, window: int) -> list[int]:
    return list(windows.texts.ids[windows.texts.ends[window] : windows.texts.ends[window + 1]])


def test_a_whole_pair_is_what_the_tokenizer_writes(bert: Encoder, windows: Windows) -> None:
    assert windows.pairs.tolist() == [0, *[1] * (len(windows.pairs) - 2), 2]
    assert len(windows.pairs) > 4
    assert windows.texts.types is not None
    for window, pair in ((0, 0), (len(windows.pairs) - 1, 2)):
        pairs = bert.tokenizer(QUESTIONS[pair], CONTEXTS[pair])
        start, end = windows.texts.ends[window : window + 2]
        assert ids_of(windows, window) == pairs["input_ids"]
        assert windows.texts.types[start:end].tolist() == pairs["token_type_ids"]
    assert (windows.null == 0).all()


def test_windows_have_the_whole_question_and_cover_the_context(bert: Encoder, windows: Windows) -> None:
    question, (_, context, _) = bert.tokenizer(QUESTIONS[1])["input_ids"], CONTEXTS
    seen = np.zeros(len(context), dtype=int)
    for window in np.flatnonzero(windows.pairs == 1):
        assert len(ids_of(windows, window)) <= 30
        assert ids_of(windows, window)[: len(question)] == question
        own = windows.characters(window)
        for first, end in own[own[:, 0] >= 0]:
            assert context[first:end].strip() == context[first:end] != ""
            seen[first:end] += 1
    assert (seen[np.array([letter != " " for letter in context])] >= 1).all()
    assert seen.max() == 2  # they overlap


def test_targets_are_where_the_answer_is(windows: Windows) -> None:
    context = CONTEXTS[1]
    answers = [(6, 13), (60, 65), None]
    targets = windows.targets(answers)
    assert CONTEXTS[0][6:13] == "a short"
    own = windows.characters(0)
    assert (own[targets[0, 0], 0], own[targets[0, 1], 1]) == (6, 13)
    assert targets[-1].tolist() == [0, 0]
    for window in np.flatnonzero(windows.pairs == 1):
        own = windows.characters(window)
        inside = own[own[:, 0] >= 0]
        if inside[0, 0] <= 60 and inside[-1, 1] >= 65:
            first, last = targets[window]
            assert context[own[first, 0] : own[last, 1]] == context[60:65]
        else:
            assert targets[window].tolist() == [0, 0]
    assert windows.lost(answers, targets) == 0
    everything = [(0, 3), (0, len(context)), None]
    assert windows.lost(everything, windows.targets(everything)) == 1


def test_the_best_span_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, ANSWER_TOKENS, 50):
        starts, ends = rng.normal(size=(2, n))
        allowed = [(i, j) for i in range(n) for j in range(i, min(n, i + ANSWER_TOKENS))]
        best = max(allowed, key=lambda span: starts[span[0]] + ends[span[1]])
        assert best_span(starts, ends) == (*best, pytest.approx(starts[best[0]] + ends[best[1]]))


def test_spans_are_the_best_of_all_windows(windows: Windows) -> None:
    rng = np.random.default_rng(1)
    logits = [rng.normal(size=(len(windows.characters(i)), 2)).astype(np.float32) for i in range(len(windows.pairs))]
    spans = windows.spans(logits)
    for pair, (begin, end, score, null) in enumerate(spans):
        found, nulls = [], []
        for window in np.flatnonzero(windows.pairs == pair):
            own, values = windows.characters(window), logits[window].astype(float)
            nulls.append(values[0].sum())
            places = np.flatnonzero(own[:, 0] >= 0)
            found += [
                (values[i, 0] + values[j, 1], own[i, 0], own[j, 1])
                for i in places
                for j in places
                if i <= j < i + ANSWER_TOKENS
            ]
        assert (score, begin, end) == pytest.approx(max(found))
        assert null == pytest.approx(min(nulls))
    logits[0][1] = np.nan
    with pytest.raises(DataError, match="expected finite outputs"):
        windows.spans(logits)


def test_long_questions_are_cut_and_short_limits_refused(bert: Encoder) -> None:
    long = windowed(bert, ["a b c d e f g h " * 5], ["b"], max_length=23)
    assert long.n_cut == 1
    assert len(ids_of(long, 0)) == 10 + 3 + 1
    with pytest.raises(DataError, match="expected room for a question and a context, got a maximum length of 6"):
        windowed(bert, ["a"], ["b"], max_length=6)


def test_a_model_without_token_types_and_marks(
    loaded: Callable[[str], Encoder], checkpoint: Callable[[str], Path]
) -> None:
    windows = windowed(loaded("distilbert"), ["a"], ["b c"], max_length=20)
    assert windows.texts.types is None
    assert windows.spans([np.zeros((len(windows.characters(0)), 2))])[0].tolist() == [0, 1, 0, 0]
    assert windows.spans([np.zeros((len(windows.characters(0)), 2))])[0, 2] > NO_SPAN
