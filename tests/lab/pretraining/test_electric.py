"""Electric: its odds, its noise, and that the optimum of its loss is the true conditional probability."""

import math
from typing import Any

import layerprobe_electric as electric
import pytest
import torch
from layerprobe_electric import EnergyBasedCloze, noise_log_odds
from torch import Tensor
from torch.testing import assert_close

from layerprobe.errors import DataError
from layerprobe.lab.pretraining.masking import MaskedBatch, Masking, replaced_sums
from layerprobe.lab.pretraining.models import build_encoder, build_objective
from layerprobe.lab.pretraining.values import EncoderSize, PretrainingProtocol
from tests.lab.pretraining.test_masking import rng_of
from tests.plugins import register_electric

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCAB = 12
RATE = 0.3
MASKING = Masking(mask_id=MASK, vocab_size=VOCAB, special_ids=(PAD, CLS, SEP, MASK), rate=RATE)
P = torch.tensor([0.5, 0.25, 0.2, 0.05])
Q = torch.tensor([0.1, 0.3, 0.25, 0.35])
"""What is true of four words, and noise."""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    register_electric(monkeypatch)


def objective_of(*, seed: int = 0, **changes: Any) -> EnergyBasedCloze:
    size = EncoderSize(n_blocks=2, hidden_size=16, heads=2, intermediate_size=32)
    settings = {"objective": "electric", "size": size, "max_length": 16, "generator_size": 0.5, **changes}
    protocol = PretrainingProtocol(**settings)
    encoder = build_encoder(protocol, vocab_size=VOCAB, pad_id=PAD, seed=seed)
    objective: Any = build_objective(encoder, protocol, MASKING, seed=seed).eval()
    return objective


@pytest.fixture
def batch() -> MaskedBatch:
    """Three sentences between CLS and SEP, one of them padded, and one without SEP."""
    ids = torch.randint(4, VOCAB, (4, 9), generator=rng_of())
    ids[:, 0], ids[:3, -1] = CLS, SEP
    ids[1, 5], ids[1, 6:] = SEP, PAD
    masked = MASKING.mask(ids, (ids != PAD).long(), rng_of(1))
    assert 3 <= len(masked.targets) <= 12
    return masked


def test_the_odds_are_those_of_the_paper() -> None:
    """The second formula: k q / ((n - k) p^ + k q), with n = 20 and k = 6."""
    n, k = 20, 6
    energies, log_noise = -torch.tensor([0.3, 0.01, 2.0]).log(), torch.tensor([0.2, 0.5, 0.01]).log()
    p, q = (-energies).exp(), log_noise.exp()
    found = noise_log_odds(energies, log_noise, rate=k / n).sigmoid()
    assert_close(found, k * q / ((n - k) * p + k * q))


def test_where_every_token_is_noise_there_is_nothing_to_tell_it_from() -> None:
    with pytest.raises(DataError, match="expected a masking rate below 1 for electric"):
        objective_of(masking_rate=1.0)


def expected_loss(energies: Tensor, noise: Tensor) -> Tensor:
    """Return what the loss of a token is on average: data with the true probabilities, noise with its own."""
    logits = noise_log_odds(energies, noise.log(), rate=RATE)
    losses = [
        torch.stack([replaced_sums(x[None], torch.tensor([replaced]))["loss"] for x in logits])
        for replaced in (False, True)
    ]
    return (1 - RATE) * P @ losses[0] + RATE * noise @ losses[1]


@pytest.mark.parametrize("noise", [Q, P, torch.full((4,), 0.25)])
def test_the_optimum_is_the_true_log_probability(noise: Tensor) -> None:
    """With whatever noise, and p^ adds up to 1 although nothing makes it."""
    energies = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.LBFGS([energies], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = expected_loss(energies, noise)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert_close(-energies.detach(), P.log(), rtol=0, atol=2e-3)
    assert (-energies).exp().sum().item() == pytest.approx(1, abs=1e-3)


def test_the_noise_at_a_token_depends_on_all_others_and_not_on_it(batch: MaskedBatch) -> None:
    objective = objective_of()
    positions = batch.attention_mask.bool()
    rows = torch.cat([torch.zeros(1, dtype=torch.long), positions.sum(dim=1).cumsum(0)])
    for text, length in enumerate(positions.sum(dim=1).tolist()):
        before = objective.noise(batch.ids, batch.attention_mask, positions)[rows[text] : rows[text + 1]]
        for token in range(length):
            ids = batch.ids.clone()
            ids[text, token] = 4 + (ids[text, token] - 3) % 8
            after = objective.noise(ids, batch.attention_mask, positions)[rows[text] : rows[text + 1]]
            moved = (after - before).abs().amax(dim=1) > 1e-6
            assert moved.tolist() == [other != token for other in range(length)]


def test_it_is_the_loss_of_the_paper(batch: MaskedBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, as written down: also a sample that equals the original is noise."""
    objective = objective_of()
    positions = batch.attention_mask.bool() & (batch.ids > MASK)
    samples = torch.arange(len(batch.targets)) % 8 + 4
    samples[0] = batch.targets[0]
    monkeypatch.setattr(electric, "sample", lambda logits, rng: samples)
    with torch.no_grad():
        sums = objective(batch, rng_of())
    corrupted = batch.ids.masked_scatter(batch.selected, samples)
    energies = objective.model(input_ids=corrupted, attention_mask=batch.attention_mask).logits
    q = objective.noise(batch.ids, batch.attention_mask, torch.ones_like(positions)).softmax(dim=1)
    q = q.view(*batch.ids.shape, VOCAB)
    expected, likelihood = 0.0, 0.0
    for text, token in positions.nonzero().tolist():
        word = int(corrupted[text, token])
        data = (1 - RATE) * math.exp(-energies[text, token].item())
        noise = RATE * q[text, token, word].item()
        expected -= math.log((noise if batch.selected[text, token] else data) / (data + noise))
        likelihood -= math.log(q[text, token, batch.ids[text, token]].item())
    n = int(positions.sum())
    assert objective.counts(batch) == {"generator": n, "discriminator": n}
    assert sums["discriminator"]["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert sums["generator"]["loss"].item() == pytest.approx(likelihood, rel=1e-5)
    assert sums["discriminator"]["replaced"] == batch.selected.sum()


def test_each_part_trains_its_own(batch: MaskedBatch) -> None:
    objective = objective_of(discriminator_weight=20.0)
    assert dict(objective.weights) == {"generator": 1.0, "discriminator": 20.0}
    shared = {id(p) for p in objective.noise.embeddings.parameters()}
    own = {
        "generator": [p for p in objective.noise.parameters() if id(p) not in shared],
        "discriminator": [p for p in objective.model.parameters() if id(p) not in shared],
    }
    for part, sums in objective(batch, rng_of()).items():
        objective.zero_grad()
        sums["loss"].backward()
        for name, parameters in own.items():
            trained = [p for p in parameters if p.grad is not None and p.grad.abs().sum() > 0]
            assert (len(trained) > len(parameters) / 2) == (name == part), (part, name)
            assert trained == [] or name == part
