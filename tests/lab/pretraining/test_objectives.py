"""What the pretraining objectives compute, on batches made by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from layerprobe.lab.pretraining import models
from layerprobe.lab.pretraining.masking import MaskedBatch, Masking, Objective, Sums, replaced_sums
from layerprobe.lab.pretraining.models import (
    build_encoder,
    build_objective,
    copy_sums,
    make_masking,
    sample,
    train_tokenizer,
)
from layerprobe.lab.pretraining.values import OBJECTIVES, EncoderSize, PretrainingProtocol
from tests.lab.pretraining.test_masking import rng_of

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCAB = 60
SIZE = EncoderSize(n_blocks=2, hidden_size=16, heads=2, intermediate_size=32)
TRAINED = tuple(name for name, objective in OBJECTIVES.items() if objective.builder is not None)
WITH_GENERATOR = tuple(name for name, row in OBJECTIVES.items() if row.has_generator)
MASKING = Masking(mask_id=MASK, vocab_size=VOCAB, special_ids=(PAD, CLS, SEP, MASK))


def objective_for(name: Any, *, seed: int = 0, **changes: Any) -> Objective:
    protocol = PretrainingProtocol(
        **{"objective": name, "size": SIZE, "max_length": 16, "generator_size": 0.5, **changes}
    )
    encoder = build_encoder(protocol, vocab_size=VOCAB, pad_id=PAD, seed=seed)
    objective = build_objective(encoder, protocol, MASKING, seed=seed).eval()
    assert sum(p.numel() for p in objective.parameters()) < 12_000
    return objective


@pytest.fixture
def ids() -> Tensor:
    """Eight sentences between CLS and SEP, the last four padded."""
    ids = torch.randint(4, VOCAB, (8, 12), generator=rng_of())
    ids[:, 0] = CLS
    ids[:4, -1] = SEP
    ids[4:, 8] = SEP
    ids[4:, 9:] = PAD
    return ids


@pytest.fixture
def batch(ids: Tensor) -> MaskedBatch:
    """The sentences with some tokens masked, as every objective masks them."""
    masked = MASKING.mask(ids, (ids != PAD).long(), rng_of(3))
    assert 3 <= len(masked.targets) <= 30
    return masked


def fixed_samples(monkeypatch: pytest.MonkeyPatch, samples: Tensor) -> None:
    """Let generators sample these words, and see that none gets a gradient."""

    def fixed(logits: Tensor, rng: torch.Generator) -> Tensor:
        assert not logits.requires_grad
        return samples

    monkeypatch.setattr(models, "sample", fixed)


def test_an_unknown_word_is_selected_like_any_other() -> None:
    tokenizer = train_tokenizer(["one two three"] * 5, vocab_size=60, max_length=32)
    tokens = tokenizer(["one 한 two"], return_tensors="pt")
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    assert (ids == tokenizer.unk_token_id).sum() == 1
    batch = make_masking(PretrainingProtocol(masking_rate=0.999), tokenizer).mask(ids, mask, rng_of())
    words = (ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id)
    assert_close(batch.selected, words)


def test_samples_follow_the_softmax() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2, 1e-9])
    found = sample(shares.log().expand(10_000, 4), rng_of())
    assert_close(torch.bincount(found, minlength=4) / 10_000, shares, rtol=0, atol=0.025)


def test_all_objectives_begin_with_the_same_encoder() -> None:
    first, *others = (objective_for(name).model.base_model.state_dict() for name in TRAINED)
    other_seed = objective_for("mlm", seed=1).model.base_model.state_dict()
    for name, weight in first.items():
        assert all(torch.equal(weight, other[name]) for other in others), name
    assert not torch.equal(first["embeddings.word_embeddings.weight"], other_seed["embeddings.word_embeddings.weight"])


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_the_generator_reads_masks_only_and_fills_them_in(
    name: str, batch: MaskedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss is that of transformers with labels of -100 elsewhere."""
    objective: Any = objective_for(name)
    read = []
    forward = objective.generator.forward
    monkeypatch.setattr(objective.generator, "forward", lambda **inputs: read.append(inputs) or forward(**inputs))
    loss = objective(batch, rng_of())["generator"]["loss"]
    selected = batch.selected
    assert_close(read[0]["input_ids"], batch.ids.masked_fill(selected, MASK))
    labels = batch.ids.masked_fill(~selected, -100)
    expected = forward(**read[0], labels=labels).loss
    assert_close(loss / selected.sum(), expected)


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_no_gradient_flows_through_the_sampling(name: str, batch: MaskedBatch) -> None:
    """The generator's own weights learn from its own loss alone, the encoder's blocks from theirs."""
    objective: Any = objective_for(name)
    generator, encoder = dict(objective.generator.named_parameters()), dict(objective.model.named_parameters())
    shared = {id(p) for p in objective.generator.base_model.embeddings.parameters()}
    for part, sums in objective(batch, rng_of()).items():
        objective.zero_grad()
        sums["loss"].backward()
        own, others = (generator, encoder) if part == "generator" else (encoder, generator)
        trained = {key for key, p in own.items() if p.grad is not None and p.grad.abs().sum() > 0}
        assert any("encoder.layer.0" in key for key in trained), part
        assert all(p.grad is None for p in others.values() if id(p) not in shared), part


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_embeddings_are_tied_and_stay_tied(name: str, batch: MaskedBatch) -> None:
    objective: Any = objective_for(name)
    ours, theirs = objective.generator.base_model.embeddings, objective.model.base_model.embeddings
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    objective(batch, rng_of())["generator"]["loss"].backward()
    optimizer.step()
    for table in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        assert ours.get_submodule(table).weight is theirs.get_submodule(table).weight, table
    assert objective.generator.generator_lm_head.weight is theirs.word_embeddings.weight


def evaluated(objective: Objective, batch: MaskedBatch) -> dict[str, Sums]:
    with torch.no_grad():
        sums: dict[str, Sums] = objective(batch, rng_of())
    return sums


def one_batch() -> MaskedBatch:
    """CLS 5 6 7 8 SEP PAD with 6 and 8 masked."""
    ids = torch.tensor([[CLS, 5, 6, 7, 8, SEP, PAD]])
    selected = torch.tensor([[False, False, True, False, True, False, False]])
    return MaskedBatch(
        ids=ids,
        attention_mask=(ids != PAD).long(),
        input_ids=ids.masked_fill(selected, MASK),
        selected=selected,
        targets=ids[selected],
    )


def test_rtd_scores_every_token_and_a_right_guess_counts_as_original(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = objective_for("rtd"), one_batch()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))  # the first is the original word
    sums = evaluated(objective, batch)["discriminator"]
    assert (sums["replaced"], sums["n"]) == (1, 6)
    assert objective.counts(batch) == {"generator": 2, "discriminator": 6}
    assert dict(objective.weights) == {"generator": 1.0, "discriminator": 50.0}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    labels = (corrupted != batch.ids).long()
    expected = objective.model(input_ids=corrupted, attention_mask=batch.attention_mask, labels=labels).loss
    assert_close(sums["loss"] / 6, expected.detach())


def test_electra_15_scores_masked_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = objective_for("electra-15", discriminator_weight=20.0), one_batch()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    sums = evaluated(objective, batch)["discriminator"]
    assert (sums["replaced"], sums["n"]) == (1, 2)
    assert objective.counts(batch) == {"generator": 2, "discriminator": 2}
    assert dict(objective.weights) == {"generator": 1.0, "discriminator": 20.0}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    logits = objective.model(input_ids=corrupted, attention_mask=batch.attention_mask).logits[0, [2, 4]]
    assert_close(sums["loss"], -(F.logsigmoid(-logits[0]) + F.logsigmoid(logits[1])).detach())


def test_what_is_counted_of_replaced_tokens() -> None:
    logits = torch.tensor([2.0, -1.0, 3.0, -2.0, 1.0])
    replaced = torch.tensor([True, True, False, False, True])
    with torch.no_grad():
        sums = {name: int(value) for name, value in replaced_sums(logits, replaced).items() if name != "loss"}
    assert sums == {"n": 5, "hits": 3, "flagged": 3, "replaced": 3, "caught": 2}


def test_padding_does_not_change_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = objective_for("rtd"), one_batch()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    wider = MaskedBatch(
        ids=F.pad(batch.ids, (0, 4), value=PAD),
        input_ids=F.pad(batch.input_ids, (0, 4), value=PAD),
        selected=F.pad(batch.selected, (0, 4)),
        targets=batch.targets,
        attention_mask=F.pad(batch.attention_mask, (0, 4)),
    )
    for part, sums in objective(batch, rng_of()).items():
        assert_close(objective(wider, rng_of())[part]["loss"], sums["loss"])


def test_mlm_fills_in_the_selected_positions(batch: MaskedBatch) -> None:
    objective = objective_for("mlm")
    loss = objective(batch, rng_of())["mlm"]["loss"]
    assert objective.counts(batch) == {"mlm": int(batch.selected.sum())}
    labels = batch.ids.masked_fill(~batch.selected, -100)
    masked, mask = batch.input_ids, batch.attention_mask
    expected = objective.model(input_ids=masked, attention_mask=mask, labels=labels).loss
    assert_close(loss / len(batch.targets), expected)


def test_replace_mlm_predicts_the_original_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = objective_for("replace-mlm"), one_batch()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    loss = objective(batch, rng_of())["mlm"]["loss"]
    assert objective.counts(batch) == {"generator": 2, "mlm": 2}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    labels = torch.tensor([[-100, -100, 6, -100, 8, -100, -100]])
    expected = objective.model(input_ids=corrupted, attention_mask=batch.attention_mask, labels=labels).loss
    assert_close(loss / 2, expected)


def test_all_tokens_mlm_predicts_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = objective_for("all-tokens-mlm"), one_batch()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    read: dict[str, Any] = {}
    monkeypatch.setattr(models, "copy_sums", lambda copy, logits, **more: read.update(more, logits=logits) or {})
    objective(batch, rng_of())
    assert read["targets"].tolist() == [CLS, 5, 6, 7, 8, SEP]
    assert read["read"].tolist() == [CLS, 5, 6, 7, 9, SEP]
    assert read["masked"].tolist() == [False, False, True, False, True, False]
    assert objective.counts(batch) == {"generator": 2, "mlm": 6}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    whole: Any = objective.model(input_ids=corrupted, attention_mask=batch.attention_mask)
    assert_close(read["logits"], whole.logits[0, :6])


def test_the_copy_mechanism_mixes_the_token_that_is_read_with_the_softmax() -> None:
    """D = sigmoid(copy): p = D [x is read] + (1 - D) softmax, computed here with all words at once."""
    rng = rng_of()
    read, targets = torch.tensor([4, 1, 2, 3]), torch.tensor([4, 0, 2, 1])
    logits, copy = torch.randn(4, 5, generator=rng), torch.tensor([0.3, -1.0, 4.0, 2.0])
    with torch.no_grad():
        sums = copy_sums(copy, logits, read=read, targets=targets, masked=read != targets)
    weight = copy.sigmoid().unsqueeze(1)
    mixed = weight * F.one_hot(read, 5) + (1 - weight) * logits.softmax(dim=1)
    assert_close(mixed.sum(dim=1), torch.ones(4))
    assert_close(sums.pop("loss"), -mixed[torch.arange(4), targets].log().sum())
    hits = mixed.argmax(dim=1) == targets
    assert {name: int(value) for name, value in sums.items()} == {
        "n": 4,
        "hits": int(hits.sum()),
        "masked": 2,
        "masked_hits": int(hits[[1, 3]].sum()),
    }


@pytest.mark.parametrize("name", TRAINED)
def test_a_batch_without_a_masked_token_has_finite_losses(name: str) -> None:
    ids = torch.tensor([[CLS, SEP], [CLS, SEP]])
    objective = objective_for(name)
    batch = objective.masking.mask(ids, torch.ones_like(ids), rng_of())
    assert len(batch.targets) == 0
    outputs = objective(batch, rng_of())
    total = torch.stack([sums["loss"] for sums in outputs.values()]).sum()
    total.backward()
    assert torch.isfinite(total)
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters() if p.grad is not None)
