"""Training where answers begin and end: the loss beside transformers, grouping, and a toy that is learnt."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import BertForQuestionAnswering

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.finetuning.outcomes import run_items
from layerprobe.finetuning.tmft import fine_tune, read_layers
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.answers import Answer, Questions, predicted_answers
from layerprobe.kinds.answers_loss import AnswerSpan
from tests.encoders.conftest import checkpoint, loaded  # noqa: F401
from tests.toy_questions import toy_question_task, toy_questions

ITEMS = toy_questions(6, 0, impossible=0.4, length=20)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_loss_is_that_of_transformers(loaded: Callable[[str], Encoder], name: str) -> None:  # noqa: F811
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


@pytest.mark.parametrize("impossible", [0.0, 0.4])
def test_a_toy_is_learnt(loaded: Callable[[str], Encoder], impossible: float) -> None:  # noqa: F811
    task = toy_question_task(n=80, impossible=impossible)
    protocol = Protocol(learning_rate=1e-2, epochs=4, batch_size=8, max_length=32)
    run, outputs = fine_tune(loaded("bert"), 1, task, protocol=protocol)
    assert run.primary == "f1"
    assert run.test["f1"] > 90
    assert outputs.test.shape == (1, len(task.test), 4)
    assert isinstance(task.test, Questions)
    assert run.threshold is not None
    predicted = predicted_answers(outputs.of(1), task.test.contexts, run.threshold)
    exact = np.mean(
        [answer == (gold[0].text if gold else "") for answer, gold in zip(predicted, task.test.answers, strict=True)]
    )
    assert 100 * exact == pytest.approx(run.test["exact match"])
    assert run_items(task, []).unit == "question"


def test_what_windows_lose_is_said_once_and_with_their_length(loaded: Callable[[str], Encoder]) -> None:  # noqa: F811
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
