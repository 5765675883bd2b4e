"""What the pretraining objectives ask, on batches made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import BertConfig, BertForMaskedLM, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from layerprobe.encoders.masking import mask_tokens
from layerprobe.pretraining import objectives
from layerprobe.pretraining.objectives import MaskedLanguageModelling, ReplacedTokenDetection, replace_tokens

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCAB = 60
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def generator_of_chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch() -> dict[str, Tensor]:
    """Eight sentences between CLS and SEP, the last four padded."""
    ids = torch.randint(4, VOCAB, (8, 12), generator=generator_of_chance())
    ids[:, 0] = CLS
    ids[:4, -1] = SEP
    ids[4:, 8] = SEP
    ids[4:, 9:] = PAD
    return {"ids": ids, "attention_mask": (ids != PAD).long(), "special": ids < 4}


@pytest.fixture
def mlm() -> MaskedLanguageModelling:
    torch.manual_seed(0)
    objective = MaskedLanguageModelling(BertForMaskedLM(BertConfig(**SMALL)), mask_id=MASK).eval()
    assert sum(p.numel() for p in objective.parameters()) < 10_000
    return objective


@pytest.fixture
def rtd() -> ReplacedTokenDetection:
    torch.manual_seed(0)
    config = {**SMALL, "embedding_size": 16}
    objective = ReplacedTokenDetection(
        ElectraForMaskedLM(ElectraConfig(**{**config, "hidden_size": 8, "intermediate_size": 16})),
        ElectraForPreTraining(ElectraConfig(**config)),
        mask_id=MASK,
    ).eval()
    assert sum(p.numel() for p in objective.parameters()) < 12_000
    return objective


# ---- masking ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.0])
def test_special_tokens_are_never_selected(batch: dict[str, Tensor], share: float) -> None:
    ids, special = batch["ids"], batch["special"]
    assert special.sum() == 8 * 2 + 4 * 3
    ever = torch.zeros_like(special)
    for seed in range(100):
        rng, shares = generator_of_chance(seed), {"random_share": share, "kept_share": share}
        masked = mask_tokens(ids, special, mask_id=MASK, vocab_size=VOCAB, rng=rng, **shares)
        ever |= masked.selected
    assert_close(ever, ~special)


@pytest.mark.parametrize("share", [0.1, 0.0])
def test_only_selected_tokens_change_and_are_the_targets(batch: dict[str, Tensor], share: float) -> None:
    ids = batch["ids"]
    before = ids.clone()
    rng, shares = generator_of_chance(), {"random_share": share, "kept_share": share}
    masked = mask_tokens(ids, batch["special"], mask_id=MASK, vocab_size=VOCAB, rng=rng, **shares)
    assert_close(ids, before)
    assert 0 < masked.selected.sum() < ids.numel() / 2
    assert_close(masked.input_ids[~masked.selected], ids[~masked.selected])
    assert_close(masked.targets, ids[masked.selected])


def test_selected_tokens_are_masked_replaced_and_kept_80_10_10() -> None:
    ids = torch.randint(4, 5000, (300, 300), generator=generator_of_chance())
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    masked = mask_tokens(ids, nothing, mask_id=MASK, vocab_size=5000, rng=generator_of_chance(1))
    read = masked.input_ids[masked.selected]
    shares = [masked.selected, read == MASK, read == masked.targets, (read != MASK) & (read != masked.targets)]
    # 90 000 tokens: five standard errors are 0.006 of all and 0.017 of the selected ones.
    for share, expected, tolerance in zip(shares, (0.15, 0.8, 0.1, 0.1), (0.006, 0.02, 0.015, 0.015), strict=True):
        assert share.float().mean().item() == pytest.approx(expected, abs=tolerance)


def test_a_generator_reads_only_masks(batch: dict[str, Tensor]) -> None:
    rng, shares = generator_of_chance(), {"random_share": 0.0, "kept_share": 0.0}
    masked = mask_tokens(batch["ids"], batch["special"], mask_id=MASK, vocab_size=VOCAB, rng=rng, **shares)
    assert_close(masked.input_ids == MASK, masked.selected)


def test_masking_is_drawn_from_the_seed(batch: dict[str, Tensor]) -> None:
    def selected(seed: int) -> Tensor:
        rng = generator_of_chance(seed)
        return mask_tokens(batch["ids"], batch["special"], mask_id=MASK, vocab_size=VOCAB, rng=rng).selected

    assert_close(selected(1), selected(1))
    assert not torch.equal(selected(1), selected(2))


# ---- sampling -----------------------------------------------------------------------------------------


def test_a_sample_that_equals_the_original_counts_as_original() -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    selected = torch.tensor([[False, True, True, False]])
    logits = torch.full((2, 10), -1e4)
    logits[0, 6] = logits[1, 9] = 0.0  # the first sample is the original word, the second another
    corrupted, replaced = replace_tokens(ids, selected, logits, rng=generator_of_chance())
    assert corrupted.tolist() == [[5, 6, 9, 8]]
    assert replaced.tolist() == [[False, False, True, False]]
    assert ids.tolist() == [[5, 6, 7, 8]]


def test_samples_follow_the_softmax() -> None:
    ids = torch.full((100, 100), 3)
    logits = torch.tensor([0.5, 0.3, 0.2, 1e-9]).log().expand(ids.numel(), 4)
    corrupted, replaced = replace_tokens(ids, torch.ones_like(ids, dtype=torch.bool), logits, rng=generator_of_chance())
    shares = torch.bincount(corrupted.flatten(), minlength=4) / ids.numel()
    assert_close(shares, torch.tensor([0.5, 0.3, 0.2, 0.0]), rtol=0, atol=0.025)
    assert replaced.all()


# ---- losses: Hugging Face's own, as a second formula ----------------------------------------------------


def test_mlm_loss_is_that_of_the_selected_positions(mlm: MaskedLanguageModelling, batch: dict[str, Tensor]) -> None:
    loss = mlm(**batch, rng=generator_of_chance(7))
    masked = mask_tokens(batch["ids"], batch["special"], mask_id=MASK, vocab_size=VOCAB, rng=generator_of_chance(7))
    labels = batch["ids"].masked_fill(~masked.selected, -100)
    model = mlm.model
    expected = model(input_ids=masked.input_ids, attention_mask=batch["attention_mask"], labels=labels).loss
    assert_close(loss, expected)


def test_rtd_loss_is_the_sum_of_both_models(rtd: ReplacedTokenDetection, batch: dict[str, Tensor]) -> None:
    loss = rtd(**batch, rng=generator_of_chance(7))
    ids, mask, rng = batch["ids"], batch["attention_mask"], generator_of_chance(7)
    masked = mask_tokens(ids, batch["special"], mask_id=MASK, vocab_size=VOCAB, rng=rng, random_share=0, kept_share=0)
    labels = ids.masked_fill(~masked.selected, -100)
    generated = rtd.generator(input_ids=masked.input_ids, attention_mask=mask, labels=labels)
    corrupted, replaced = replace_tokens(ids, masked.selected, generated.logits[masked.selected], rng=rng)
    assert replaced.any()
    detected = rtd.discriminator(input_ids=corrupted, attention_mask=mask, labels=replaced.long())
    assert_close(loss, generated.loss + 50 * detected.loss)


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_a_batch_without_a_selected_token_has_a_finite_loss(name: str, request: pytest.FixtureRequest) -> None:
    """Every token special: the MLM part is 0, detection still looks at all tokens."""
    objective = request.getfixturevalue(name)
    ids = torch.tensor([[CLS, 10, 11, SEP], [CLS, 12, SEP, PAD]])
    mask = (ids != PAD).long()
    loss = objective(ids, mask, torch.ones_like(ids, dtype=torch.bool), generator_of_chance())
    loss.backward()
    if name == "mlm":
        assert loss.item() == 0.0
    else:
        detected = objective.discriminator(input_ids=ids, attention_mask=mask, labels=torch.zeros_like(ids)).loss
        assert_close(loss, 50 * detected)
    gradients = [p.grad for p in objective.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(grad).all() for grad in gradients)


def test_padding_does_not_change_the_rtd_loss(rtd: ReplacedTokenDetection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ordinary token selected, so that padding cannot change what is drawn."""
    monkeypatch.setattr(objectives, "MASKING_RATE", 1.1)
    monkeypatch.setattr(objectives, "replace_tokens", lambda ids, selected, logits, *, rng: (ids + selected, selected))
    ids = torch.tensor([[CLS, 10, 11, 12, SEP], [CLS, 20, 21, 22, SEP]])
    padded = torch.nn.functional.pad(ids, (0, 4), value=PAD)
    losses = [rtd(i, (i != PAD).long(), i < 4, generator_of_chance()) for i in (ids, padded)]
    assert_close(losses[0], losses[1])


# ---- gradients and ties -------------------------------------------------------------------------------


def own_parameters(module: torch.nn.Module, other: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of one model that the other does not share."""
    shared = {id(p) for p in other.parameters()}
    return {name: p for name, p in module.named_parameters() if id(p) not in shared}


def gradients(rtd: ReplacedTokenDetection, batch: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    rtd.zero_grad()
    rtd(**batch, rng=generator_of_chance()).backward()
    return {name: p.grad.clone() for name, p in own.items() if p.grad is not None}


def test_detection_gives_the_generator_no_gradient(
    rtd: ReplacedTokenDetection, batch: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_parameters(rtd.generator, rtd.discriminator)
    assert {"generator_lm_head.bias", "generator_predictions.dense.weight"} <= own.keys()
    with_detection = gradients(rtd, batch, own)
    monkeypatch.setattr(objectives, "DISCRIMINATOR_WEIGHT", 0.0)
    without = gradients(rtd, batch, own)
    assert without["generator_lm_head.bias"].abs().sum() > 0
    assert_close(with_detection, without, rtol=0, atol=0)


def test_the_generator_gives_the_discriminator_no_gradient(
    rtd: ReplacedTokenDetection, batch: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_parameters(rtd.discriminator, rtd.generator)
    assert all(grad.abs().sum() > 0 for name, grad in gradients(rtd, batch, own).items() if "predictions" in name)
    monkeypatch.setattr(objectives, "DISCRIMINATOR_WEIGHT", 0.0)
    assert all((grad == 0).all() for grad in gradients(rtd, batch, own).values())


def test_embeddings_are_tied_and_stay_tied(rtd: ReplacedTokenDetection, batch: dict[str, Tensor]) -> None:
    optimizer = torch.optim.SGD(rtd.parameters(), lr=0.1)
    before = rtd.discriminator.electra.embeddings.word_embeddings.weight.detach().clone()
    rtd(**batch, rng=generator_of_chance()).backward()
    optimizer.step()
    ours, theirs = rtd.generator.electra.embeddings, rtd.discriminator.electra.embeddings
    assert ours.word_embeddings.weight is theirs.word_embeddings.weight
    assert ours.position_embeddings.weight is theirs.position_embeddings.weight
    assert rtd.generator.generator_lm_head.weight is theirs.word_embeddings.weight
    assert not torch.equal(theirs.word_embeddings.weight, before)


def test_the_head_of_the_mlm_is_tied_to_its_embeddings(mlm: MaskedLanguageModelling) -> None:
    assert mlm.model.get_output_embeddings().weight is mlm.model.get_input_embeddings().weight


def test_the_encoder_is_the_model_without_its_head(mlm: MaskedLanguageModelling, rtd: ReplacedTokenDetection) -> None:
    assert mlm.encoder is mlm.model.bert
    assert rtd.encoder is rtd.discriminator.electra
