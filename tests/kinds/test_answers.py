"""Question answering: exact match and F1, windows of contexts, the loss and the linear probe, by other formulas."""

import dataclasses
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import BertForQuestionAnswering

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.finetuning.tmft import read_layers
from layerprobe.kinds import answers_loss as untrained
from layerprobe.kinds.answers import (
    ALWAYS,
    Answer,
    Questions,
    answer_scores,
    answer_threshold,
    answer_words,
    predicted_answers,
    word_f1,
)
from layerprobe.kinds.answers_loss import (
    ANSWER_TOKENS,
    NO_SPAN,
    AnswerSpan,
    Windows,
    answer_probe,
    best_span,
    newton_step,
    window_sums,
    windowed,
)
from layerprobe.scoring.probes import LOGIT_VARIANCE
from layerprobe.scoring.score import score_split, zero_shot
from layerprobe.store.store import Store
from tests.models import given
from tests.mps import on_mps
from tests.toy_questions import toy_question_task, toy_questions

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


TEXT = st.lists(st.sampled_from(["the", "a", "An", "lion", "Lion,", "cub", "'s", "é"]), max_size=6).map(" ".join)


@hypothesis.given(TEXT, st.lists(TEXT, max_size=3))
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
    right = tuple(accepted or (Answer(text="b", start=0),) for accepted in gold.answers)
    answered = replace(gold, answers=right)
    outputs[:, 3] = 1e9
    assert answer_threshold(outputs, answered) == ALWAYS
    assert all(predicted_answers(outputs, gold.contexts, ALWAYS))
    assert not any(predicted_answers(outputs, gold.contexts, 5.0))


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


ITEMS = toy_questions(6, 0, impossible=0.4, length=20)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_loss_is_that_of_transformers(loaded: Callable[[str], Encoder], name: str) -> None:
    encoder = loaded(name)
    torch.manual_seed(0)
    criterion = AnswerSpan(width=encoder.description.hidden_size, n_labels=0)
    items = criterion.prepare(encoder, ITEMS, max_length=20)
    assert len(items) > len(ITEMS)  # windows
    model = TruncatedEncoder(encoder, encoder.n_layers - 1)
    losses = []
    for row in range(len(items)):
        (kept,) = read_layers(encoder, model, items.texts, [row], [criterion.read], "mean")
        loss = criterion.example_loss(kept, items, np.array([row]))
        logits = kept[0].T.log_softmax(dim=1)
        by_hand = -(logits[0, items.targets[1][row, 0]] + logits[1, items.targets[1][row, 1]]) / 2
        assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)
        losses.append(loss.item())
    rows = np.arange(len(items))
    (kept,) = read_layers(encoder, model, items.texts, rows.tolist(), [criterion.read], "mean")
    assert criterion.example_loss(kept, items, rows).item() == pytest.approx(np.mean(losses), rel=1e-4)
    if name == "bert":
        peer = BertForQuestionAnswering(encoder.model.config).eval()
        peer.bert.load_state_dict(encoder.model.state_dict(), strict=False)
        peer.qa_outputs.load_state_dict(criterion.head.state_dict())
        ids = torch.from_numpy(items.texts.ids[: items.texts.ends[1]].astype(np.int64))[None]
        assert items.texts.types is not None
        types = torch.from_numpy(items.texts.types[: items.texts.ends[1]].astype(np.int64))[None]
        first, last = torch.from_numpy(items.targets[1][:1]).T
        theirs = peer(input_ids=ids, token_type_ids=types, start_positions=first, end_positions=last).loss
        assert losses[0] == pytest.approx(theirs.item(), rel=1e-4)


def test_what_windows_lose_is_said_once_and_with_their_length(loaded: Callable[[str], Encoder]) -> None:
    encoder = loaded("bert")
    long = ("a " * 60).strip()
    items = Questions(
        ids=("a", "b", "c"),
        questions=("a b", long, "c"),
        contexts=(long, "a b", "a b c"),
        answers=((Answer(text=long[:99], start=0),), (Answer(text="a", start=0),), ()),
    )
    limit = encoder.limit(20)
    message = f"1 of 2 answers do not fit into a window of {limit} tokens, and 1 of 3 questions are cut"
    assert AnswerSpan.cut(encoder, [items], max_length=20) == message
    assert AnswerSpan.cut(encoder, [items, items], max_length=20).startswith("2 of 4 answers")
    assert AnswerSpan.cut(encoder, [ITEMS], max_length=64) == ""


def test_it_is_a_newton_step_on_the_loss(loaded: Callable[[str], Encoder]) -> None:
    encoder = loaded("bert")
    windows = windowed(encoder, ITEMS.questions, ITEMS.contexts, max_length=24)
    targets = windows.targets(ITEMS.spans)
    rows = list(range(len(windows.pairs)))[::-1]
    torch.manual_seed(0)
    states = torch.randn(sum(windows.texts.length(row) for row in rows), 3)
    covariance, pull = window_sums(windows, targets, rows, states)

    begins = np.cumsum([0, *(windows.texts.length(row) for row in rows)])

    def loss(weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row, begin, end in zip(rows, begins, begins[1:], strict=False):
            logits = states[begin:end].double() @ weights
            options = torch.from_numpy(windows.characters(row)[:, 0] >= 0)
            options[windows.null[row]] = True
            own = logits.masked_fill(~options, -torch.inf)
            total = total + cross_entropy(own[None], torch.tensor([targets[row, 0]]))
        return total

    zero = torch.zeros(3, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(loss, zero).numpy()
    gradient = torch.autograd.functional.jacobian(loss, zero).numpy()
    np.testing.assert_allclose(covariance, hessian, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pull[:, 0], -gradient, rtol=1e-4, atol=1e-4)
    scale = np.sqrt(np.diag(hessian) / len(rows))
    expected = np.linalg.solve(hessian + np.diag(scale**2) * 3 / LOGIT_VARIANCE, -gradient)
    np.testing.assert_allclose(newton_step(covariance, pull, n=len(rows))[:, 0], expected, rtol=1e-3)


def test_it_is_fitted_on_a_device_without_float64(
    loaded: Callable[[str], Encoder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, options = loaded("bert"), Model()
    windows = windowed(encoder, ITEMS.questions, ITEMS.contexts, max_length=24)

    def spans(encoder: Encoder) -> list[np.ndarray]:
        weights = untrained._fitted(encoder, windows, ITEMS, options)
        return untrained._spans(encoder, windows, weights, options)

    def to(values: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if args[:1] != (mps,):
            return real(values, *args, **options)
        return on_mps(values) if values.is_floating_point() else values

    expected, real, mps = spans(encoder), torch.Tensor.to, torch.device("mps")
    monkeypatch.setattr(torch.Tensor, "to", to)
    np.testing.assert_array_equal(spans(dataclasses.replace(encoder, device=mps)), expected)


@pytest.mark.parametrize("impossible", [0.0, 0.4])
def test_it_finds_what_is_in_the_tokens(checkpoint: Callable[[str], Path], tmp_path: Path, impossible: float) -> None:
    task, options = toy_question_task(n=120, impossible=impossible), Model(device="cpu", cache_dir=tmp_path)
    scores, _ = score_split(given(str(checkpoint("bert")), options), task)
    assert (scores.method, scores.primary) == ("probe", "f1")
    assert scores.scores[0] == pytest.approx(100) if not impossible else scores.scores[0] > 60
    (file,) = (path for path in Store(tmp_path).root.rglob("*.json") if path.parent.name == "answer-probes")
    before = file.stat().st_mtime_ns
    again = answer_probe(given(resolve(str(checkpoint("bert"))), options), task, split="test")
    assert (again.metrics, again.influences, file.stat().st_mtime_ns) == (scores.metrics, scores.influences, before)


def test_each_precision_has_a_result_of_its_own(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One store may be shared by machines of which `auto` takes bfloat16 on one alone."""
    task, options = toy_question_task(), Model(device="cpu", cache_dir=tmp_path)
    for found in (None, torch.bfloat16):
        monkeypatch.setattr("layerprobe.encoders.device.autocast_dtype", lambda *_, found=found: found)
        answer_probe(given(resolve(str(checkpoint("bert"))), options), task, split="test")
    assert len([path for path in Store(tmp_path).root.rglob("*.json") if path.parent.name == "answer-probes"]) == 2


def test_a_model_in_16_bits_is_fitted_in_more(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    options = Model(device="cpu", cache_dir=tmp_path, dtype="bfloat16")
    scores, _ = score_split(given(str(checkpoint("bert")), options), toy_question_task(n=120))
    assert scores.scores[0] == pytest.approx(100)


def test_a_split_without_answers_and_embeddings_alone(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    task, options = toy_question_task(impossible=1.0), Model(device="cpu", cache_dir=tmp_path)
    with pytest.raises(DataError, match="no answer of the train split is in a window, so no probe can be fitted"):
        answer_probe(given(resolve(str(checkpoint("bert"))), options), task, split="test")
    with pytest.raises(DataError, match="cannot be scored on embeddings alone"):
        zero_shot(None, task)  # type: ignore[arg-type]
