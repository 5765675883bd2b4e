"""The pretraining loop: batches, and a budget small enough for a test."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from layerprobe.errors import TrainingError
from layerprobe.pretraining.objectives import MaskedLanguageModelling, ReplacedTokenDetection
from layerprobe.pretraining.training import PretrainingConfig, batches, pad, pretrain

PAD, CLS, SEP, MASK = range(4)
VOCAB = 24
CONFIG = PretrainingConfig(steps=30, batch_size=16, learning_rate=1e-2, seed=0)
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def sentences() -> list[list[int]]:
    """Words count up from a random one, so that neighbours give a masked word away."""
    rng = random.Random(0)
    starts = [(rng.randrange(VOCAB - 4), rng.randint(4, 10)) for _ in range(200)]
    return [[CLS, *(4 + (start + i) % (VOCAB - 4) for i in range(n)), SEP] for start, n in starts]


def objective_for(name: str, *, dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    config = {**SMALL, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if name == "mlm":
        return MaskedLanguageModelling(BertForMaskedLM(BertConfig(**config)), mask_id=MASK)
    generator = {**config, "hidden_size": 8, "embedding_size": 16}
    return ReplacedTokenDetection(
        ElectraForMaskedLM(ElectraConfig(**generator)),
        ElectraForPreTraining(ElectraConfig(**config, embedding_size=16)),
        mask_id=MASK,
    )


def losses_of(objective: nn.Module, sentences: list[list[int]], config: PretrainingConfig = CONFIG) -> list[float]:
    return pretrain(objective, sentences, config, pad_id=PAD, special_ids=[PAD, CLS, SEP, MASK])


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_training_lowers_the_loss(name: str, sentences: list[list[int]]) -> None:
    objective = objective_for(name)
    assert sum(p.numel() for p in objective.parameters()) < 10_000
    losses = losses_of(objective, sentences)
    assert len(losses) == CONFIG.steps
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert not objective.training


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_the_same_seed_gives_the_same_losses(name: str, sentences: list[list[int]]) -> None:
    config = PretrainingConfig(steps=5, batch_size=16, seed=3)
    first, second = (losses_of(objective_for(name), sentences, config) for _ in range(2))
    assert first == second
    other = losses_of(objective_for(name), sentences, PretrainingConfig(steps=5, batch_size=16, seed=4))
    assert first != other


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_nothing_but_the_seed_decides(name: str, sentences: list[list[int]]) -> None:
    """Dropout among it, which draws from the global generator."""
    config = PretrainingConfig(steps=5, batch_size=16, seed=3)
    losses = []
    for elsewhere in (1, 2):
        objective = objective_for(name)
        torch.manual_seed(elsewhere)
        losses.append(losses_of(objective, sentences, config))
    assert losses[0] == losses[1]
    assert losses_of(objective_for(name, dropout=0.0), sentences, config) != losses[0]


def test_the_state_of_chance_is_left_as_it_was(sentences: list[list[int]]) -> None:
    objective = objective_for("mlm")
    before = torch.get_rng_state()
    losses_of(objective, sentences, PretrainingConfig(steps=2, batch_size=16))
    assert torch.equal(torch.get_rng_state(), before)


def test_steps_without_a_selected_token_are_gone_through() -> None:
    """One sentence of one word a step: most have nothing to fill in, whose loss was NaN."""
    config = PretrainingConfig(steps=20, batch_size=1)
    losses = losses_of(objective_for("mlm"), [[CLS, 4, SEP], [CLS, 5, SEP]], config)
    assert losses.count(0.0) > 10
    assert max(losses) > 0


class Diverging(nn.Module):
    """A loss that is NaN from the third step on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.calls = 0

    def forward(self, ids: Tensor, attention_mask: Tensor, special: Tensor, rng: torch.Generator) -> Tensor:
        self.calls += 1
        return self.weight.sum() * (float("nan") if self.calls > 2 else 1.0)


def test_a_loss_that_is_not_finite_stops_the_run(sentences: list[list[int]]) -> None:
    objective = Diverging()
    with pytest.raises(TrainingError, match="the pretraining loss is nan at step 2"):
        losses_of(objective, sentences)
    assert objective.calls == 3
    assert torch.isfinite(objective.weight).all()


class Recording(nn.Module):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.asked: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(self, ids: Tensor, attention_mask: Tensor, special: Tensor, rng: torch.Generator) -> Tensor:
        self.asked.append((ids, attention_mask, special))
        return self.weight.sum()


def test_the_objective_is_told_what_is_padding_and_what_is_special(sentences: list[list[int]]) -> None:
    objective = Recording()
    losses_of(objective, sentences, PretrainingConfig(steps=4, batch_size=16))
    assert len(objective.asked) == 4
    for ids, attention_mask, special in objective.asked:
        assert ids.shape[0] in (16, len(sentences) % 16)
        assert torch.equal(attention_mask, (ids != PAD).long())
        assert torch.equal(special, ids <= MASK)


def test_every_sentence_comes_once_an_epoch(sentences: list[list[int]]) -> None:
    per_epoch = -(-len(sentences) // 16)
    stream = batches(sentences, batch_size=16, seed=0)
    epochs = [[tuple(ids) for batch in itertools.islice(stream, per_epoch) for ids in batch] for _ in range(2)]
    for epoch in epochs:
        assert Counter(epoch) == Counter(map(tuple, sentences))
    assert epochs[0] != epochs[1]


def test_batches_are_of_similar_length_and_drawn_from_the_seed(sentences: list[list[int]]) -> None:
    def first(seed: int) -> list:
        return list(itertools.islice(batches(sentences, batch_size=16, seed=seed), 12))

    assert first(0) == first(0)
    assert first(0) != first(1)
    spread = [max(map(len, batch)) - min(map(len, batch)) for batch in first(0)]
    assert max(spread) <= 2


def test_padding_fills_up_on_the_right() -> None:
    assert pad([[5, 6, 7], [8]], pad_id=0).tolist() == [[5, 6, 7], [8, 0, 0]]
