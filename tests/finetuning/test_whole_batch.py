"""Losses of a whole step: the gradients of all groups together, one at a time, and of one plain pass, are the same."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from layerprobe.encoders.batching import collate, pool
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.errors import DataError
from layerprobe.finetuning import step
from layerprobe.finetuning.losses import PreparedItems
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.tmft import layer_weights
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.retrieval import RetrievalItems
from layerprobe.kinds.retrieval_loss import MultipleNegatives
from tests.finetuning.test_tmft import without_dropout
from tests.finetuning.test_tmft_groups import gradients
from tests.models import N_BLOCKS

DOCUMENTS = ("a b c", "d e f g h i", "k", "l m n o p q r s", "t u", "v w x", "y z a b", "c d e f g")


def items(*, negatives: bool = False, documents: tuple[str, ...] = DOCUMENTS) -> RetrievalItems:
    """Nine queries; the fourth has two positives, which are then in one step."""
    positives = [(i % 8,) for i in range(9)]
    trained = [((p, (p + 3) % 8) if negatives else (p,),) for (p,) in positives]
    trained[3] = (*trained[3], (7, 2) if negatives else (7,))
    return RetrievalItems(
        queries=tuple(f"{'abcdefghi'[i]} {'m n o' if i % 2 else 'p'}" for i in range(9)),
        documents=documents,
        relevance=tuple(tuple((example[0], 1.0) for example in each) for each in trained),
        trained=tuple(trained),
        own=(-1,) * 9,
    )


def trainer_of(encoder: Encoder, *, joint: bool = False, batch_tokens: int | None = None) -> FineTuner:
    model = TruncatedEncoder(encoder, N_BLOCKS if joint else 2, every=joint)
    criteria = [MultipleNegatives(width=16, n_labels=0) for _ in model.layers]
    weights = layer_weights("falling", encoder.n_layers, seed=0) if joint else None
    return FineTuner(
        encoder,
        model.train(),
        Protocol(max_grad_norm=1e9),
        steps_per_epoch=2,
        criteria=criteria,
        weights=weights,
        batch_tokens=batch_tokens,
    )


def prepared(encoder: Encoder, **how: Any) -> PreparedItems:
    return MultipleNegatives.prepare(encoder, items(**how), max_length=64)


def one_pass(trainer: FineTuner, examples: PreparedItems, rows: np.ndarray) -> Tensor:
    """The loss by its formula, of all texts of the step padded to the longest, copies included; leaves gradients."""
    trainer.optimizer.zero_grad()
    batch = collate(examples.texts, np.concatenate([side[rows] for side in examples.sides]).tolist())
    weights = trainer.weights(0)
    losses = []
    for state in trainer.model.layer_states(batch):
        units = F.normalize(pool(state, batch["attention_mask"], "mean"), dim=1)
        logits = 20 * units[: len(rows)] @ units[len(rows) :].T
        losses.append(-logits.log_softmax(dim=1).diagonal().mean())
    sum(loss * float(weight) for loss, weight in zip(losses, weights, strict=True)).backward()  # type: ignore[union-attr]
    return torch.stack(losses).detach()


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("batch_tokens", [None, 12, 1])
def test_groups_together_have_the_gradient_of_one_pass(
    encoder: Encoder, batch_tokens: int | None, negatives: bool, joint: bool
) -> None:
    encoder = without_dropout(encoder)
    trainer, rows = trainer_of(encoder, joint=joint, batch_tokens=batch_tokens), np.arange(10)[::-1].copy()
    examples = prepared(encoder, negatives=negatives)
    expected_losses = one_pass(trainer, examples, rows)
    expected = gradients(trainer)
    losses = trainer.update(examples, rows)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(trainer), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("joint", [False, True])
def test_one_group_at_a_time_drops_out_the_same(encoder: Encoder, joint: bool) -> None:
    found = []
    for cached in (False, True):
        torch.manual_seed(5)
        trainer = trainer_of(encoder, joint=joint, batch_tokens=12)
        assert trainer.drops
        trainer.cached = cached
        loss = trainer.update(prepared(encoder), np.arange(10))
        found.append((loss, gradients(trainer), torch.get_rng_state()))
    (plain, expected, state), (loss, got, after) = found
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-7)
    assert torch.equal(state, after)


def test_where_memory_runs_out_one_group_is_kept(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(5)
    reference = trainer_of(encoder)
    reference.limit.tokens = 40
    reference.update(prepared(encoder), np.arange(10))
    expected = gradients(reference)
    kept = [0]

    def short(*arguments: Any) -> dict[str, Tensor]:
        """Memory for the graphs of two groups."""
        batch = collate(*arguments)
        if torch.is_grad_enabled():
            kept[0] += 1
            if kept[0] == 3 and not trainer.cached:
                raise torch.OutOfMemoryError
        return batch

    torch.manual_seed(5)
    trainer = trainer_of(encoder)
    trainer.limit.tokens = 40
    monkeypatch.setattr(step, "collate", short)
    with caplog.at_level(logging.WARNING):
        trainer.update(prepared(encoder), np.arange(10))
    assert trainer.cached
    assert trainer.limit.tokens == 40
    assert "out of memory at step 1 of 20: continuing with every text embedded twice" in caplog.text
    torch.testing.assert_close(gradients(trainer), expected, rtol=1e-4, atol=1e-7)


def test_a_step_of_one_document_is_refused(encoder: Encoder) -> None:
    with pytest.raises(DataError, match=r"expected at least two examples per step, .* got a batch size of 1"):
        MultipleNegatives.check_batch(prepared(encoder), 1)
    MultipleNegatives.check_batch(prepared(encoder, negatives=True), 1)
    MultipleNegatives.check_batch(prepared(encoder), 2)
