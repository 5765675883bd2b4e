"""What the pretraining objectives ask, on batches made by hand."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from layerprobe.encoders.masking import mask_tokens
from layerprobe.pretraining import objectives
from layerprobe.pretraining.models import build_encoder, build_objective, masking_of
from layerprobe.pretraining.objectives import CopiedWords, sample
from layerprobe.pretraining.tokenizers import train_tokenizer
from layerprobe.pretraining.values import WITH_GENERATOR, EncoderSize, PretrainingObjective, PretrainingProtocol
from layerprobe.training.objective import Masking, Objective, Question

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCAB = 60
SIZE = EncoderSize(n_blocks=2, hidden_size=16, heads=2, intermediate_size=32)
TRAINED = tuple(name for name in get_args(PretrainingObjective) if name != "random")


def generator_of_chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def objective_for(name: Any, *, seed: int = 0, **changes: Any) -> Objective:
    protocol = PretrainingProtocol(
        **{"objective": name, "size": SIZE, "max_length": 16, "generator_size": 0.5, **changes}
    )
    encoder = build_encoder(protocol, vocab_size=VOCAB, pad_id=PAD, seed=seed)
    masking = Masking(mask_id=MASK, vocab_size=VOCAB, special_ids=(PAD, CLS, SEP, MASK))
    found = build_objective(encoder, protocol, masking, seed=seed).eval()
    assert sum(p.numel() for p in found.parameters()) < 12_000
    return found


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
def question(batch: dict[str, Tensor]) -> Question:
    """The batch with some tokens masked, as every objective masks it."""
    masking = Masking(mask_id=MASK, vocab_size=VOCAB, special_ids=(PAD, CLS, SEP, MASK))
    found = masking.ask(batch["ids"], batch["attention_mask"], generator_of_chance(3))
    assert 3 <= len(found.masked.targets) <= 30
    return found


def fixed_samples(monkeypatch: pytest.MonkeyPatch, samples: Tensor) -> None:
    """Let generators sample these words, and see that none gets a gradient."""

    def fixed(logits: Tensor, rng: torch.Generator) -> Tensor:
        assert not logits.requires_grad
        return samples

    monkeypatch.setattr(objectives, "sample", fixed)


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


def test_an_unknown_word_is_selected_like_any_other() -> None:
    tokenizer = train_tokenizer(["one two three"] * 5, vocab_size=60, max_length=32)
    found = tokenizer(["one 한 two"], return_tensors="pt")
    ids, mask = found["input_ids"], found["attention_mask"]
    assert (ids == tokenizer.unk_token_id).sum() == 1
    question = masking_of(PretrainingProtocol(masking_rate=0.999), tokenizer).ask(ids, mask, generator_of_chance())
    words = (ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id)
    assert_close(question.masked.selected, words)


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


def test_samples_follow_the_softmax() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2, 1e-9])
    found = sample(shares.log().expand(10_000, 4), generator_of_chance())
    assert_close(torch.bincount(found, minlength=4) / 10_000, shares, rtol=0, atol=0.025)


def test_samples_are_drawn_from_the_seed_and_carry_no_gradient() -> None:
    logits = torch.zeros(50, 20, requires_grad=True)
    first, again, other = (sample(logits, generator_of_chance(seed)) for seed in (1, 1, 2))
    assert_close(first, again)
    assert not torch.equal(first, other)
    assert not first.requires_grad


# ---- what all objectives share ------------------------------------------------------------------------


def test_all_objectives_begin_with_the_same_encoder() -> None:
    first, *others = (objective_for(name).model.base_model.state_dict() for name in TRAINED)
    other_seed = objective_for("mlm", seed=1).model.base_model.state_dict()
    for name, weight in first.items():
        assert all(torch.equal(weight, other[name]) for other in others), name
    assert not torch.equal(first["embeddings.word_embeddings.weight"], other_seed["embeddings.word_embeddings.weight"])


def test_all_generators_begin_the_same_and_not_as_the_encoder() -> None:
    first, *others = (objective_for(name, generator_size=1.0).generator for name in WITH_GENERATOR)
    for name, weight in first.state_dict().items():
        assert all(torch.equal(weight, other.state_dict()[name]) for other in others), name
    block = "encoder.layer.0.attention.self.query.weight"
    encoder = objective_for("rtd", generator_size=1.0).model.base_model
    assert not torch.equal(first.base_model.get_parameter(block), encoder.get_parameter(block))


def test_all_objectives_mask_the_same_tokens(batch: dict[str, Tensor]) -> None:
    asked = [
        objective_for(name).masking.ask(batch["ids"], batch["attention_mask"], generator_of_chance(5))
        for name in TRAINED
    ]
    for question in asked[1:]:
        assert_close(question.masked.selected, asked[0].masked.selected)


@pytest.mark.parametrize(("fraction", "hidden", "heads"), [(0.125, 16, 1), (0.25, 32, 1), (0.5, 64, 2), (1.0, 128, 4)])
def test_a_generator_is_narrower_and_as_deep(fraction: float, hidden: int, heads: int) -> None:
    size = PretrainingProtocol(objective="rtd", generator_size=fraction).generator
    assert size == EncoderSize(n_blocks=8, hidden_size=hidden, heads=heads, intermediate_size=4 * hidden)


def test_heads_of_a_generator_divide_its_width() -> None:
    size = EncoderSize(n_blocks=1, hidden_size=24, heads=6, intermediate_size=10).scaled(0.7)
    assert (size.hidden_size, size.heads) == (17, 1)


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_the_generator_reads_masks_only_and_fills_them_in(
    name: str, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss is that of transformers with labels of -100 elsewhere."""
    objective: Any = objective_for(name)
    read = []
    forward = objective.generator.forward
    monkeypatch.setattr(objective.generator, "forward", lambda **batch: read.append(batch) or forward(**batch))
    found = objective(question, generator_of_chance())["generator"].loss()
    selected = question.masked.selected
    assert_close(read[0]["input_ids"], question.ids.masked_fill(selected, MASK))
    labels = question.ids.masked_fill(~selected, -100)
    expected = forward(**read[0], labels=labels).loss
    assert_close(found / selected.sum(), expected)


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_the_encoder_reads_samples_at_masked_positions_only(
    name: str, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective: Any = objective_for(name)
    samples = torch.arange(4, 4 + len(question.masked.targets))
    fixed_samples(monkeypatch, samples)
    read = []
    objective.model.base_model.embeddings.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"]), with_kwargs=True
    )
    objective(question, generator_of_chance())
    assert_close(read[-1], question.ids.masked_scatter(question.masked.selected, samples))


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_no_gradient_flows_through_the_sampling(name: str, question: Question) -> None:
    """The generator's own weights learn from its own loss alone, the encoder's blocks from theirs."""
    objective: Any = objective_for(name)
    generator, encoder = dict(objective.generator.named_parameters()), dict(objective.model.named_parameters())
    shared = {id(p) for p in objective.generator.base_model.embeddings.parameters()}
    for part, answer in objective(question, generator_of_chance()).items():
        objective.zero_grad()
        answer.loss().backward()
        own, others = (generator, encoder) if part == "generator" else (encoder, generator)
        trained = {key for key, p in own.items() if p.grad is not None and p.grad.abs().sum() > 0}
        assert any("encoder.layer.0" in key for key in trained), part
        assert all(p.grad is None for p in others.values() if id(p) not in shared), part


@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_embeddings_are_tied_and_stay_tied(name: str, question: Question) -> None:
    objective: Any = objective_for(name)
    ours, theirs = objective.generator.base_model.embeddings, objective.model.base_model.embeddings
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    objective(question, generator_of_chance())["generator"].loss().backward()
    optimizer.step()
    for table in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        assert ours.get_submodule(table).weight is theirs.get_submodule(table).weight, table
    assert objective.generator.generator_lm_head.weight is theirs.word_embeddings.weight


@pytest.mark.parametrize("name", ["mlm", "replace-mlm", "all-tokens-mlm"])
def test_the_words_that_are_scored_are_those_that_are_read(name: str) -> None:
    model = objective_for(name).model
    assert model.generator_lm_head.weight is model.base_model.embeddings.word_embeddings.weight


# ---- replaced token detection -------------------------------------------------------------------------


def one_question() -> Question:
    """CLS 5 6 7 8 SEP PAD with 6 and 8 masked."""
    ids = torch.tensor([[CLS, 5, 6, 7, 8, SEP, PAD]])
    selected = torch.tensor([[False, False, True, False, True, False, False]])
    masking = Masking(mask_id=MASK, vocab_size=VOCAB, special_ids=(PAD, CLS, SEP, MASK), rate=1.0)
    asked = masking.ask(ids, (ids != PAD).long(), generator_of_chance())
    masked = type(asked.masked)(input_ids=ids.masked_fill(selected, MASK), selected=selected, targets=ids[selected])
    return Question(ids=ids, masked=masked, attention_mask=asked.attention_mask)


def test_rtd_asks_of_every_token_and_a_right_guess_counts_as_original(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, question = objective_for("rtd"), one_question()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))  # the first is the original word
    flags: Any = objective(question, generator_of_chance())["discriminator"]
    assert flags.replaced.tolist() == [False, False, False, False, True, False]
    assert objective.counts(question) == {"generator": 2, "discriminator": 6}
    assert dict(objective.weights) == {"generator": 1.0, "discriminator": 50.0}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    labels = (corrupted != question.ids).long()
    expected = objective.model(input_ids=corrupted, attention_mask=question.attention_mask, labels=labels).loss
    assert_close(flags.loss() / 6, expected)


def test_electra_15_asks_of_masked_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, question = objective_for("electra-15", discriminator_weight=20.0), one_question()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    flags: Any = objective(question, generator_of_chance())["discriminator"]
    assert flags.replaced.tolist() == [False, True]
    assert objective.counts(question) == {"generator": 2, "discriminator": 2}
    assert dict(objective.weights) == {"generator": 1.0, "discriminator": 20.0}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    logits = objective.model(input_ids=corrupted, attention_mask=question.attention_mask).logits[0, [2, 4]]
    assert_close(flags.loss(), -(F.logsigmoid(-logits[0]) + F.logsigmoid(logits[1])))


def test_what_is_counted_of_flags() -> None:
    logits = torch.tensor([2.0, -1.0, 3.0, -2.0, 1.0])
    replaced = torch.tensor([True, True, False, False, True])
    flags = objectives.Flags(logits=logits, replaced=replaced)
    tallies = {name: int(value) for name, value in flags.tallies().items()}
    assert tallies == {"n": 5, "hits": 3, "flagged": 3, "replaced": 3, "caught": 2}


def test_padding_does_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, question = objective_for("rtd"), one_question()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    wider = Question(
        ids=F.pad(question.ids, (0, 4), value=PAD),
        masked=type(question.masked)(
            input_ids=F.pad(question.masked.input_ids, (0, 4), value=PAD),
            selected=F.pad(question.masked.selected, (0, 4)),
            targets=question.masked.targets,
        ),
        attention_mask=F.pad(question.attention_mask, (0, 4)),
    )
    for part, answer in objective(question, generator_of_chance()).items():
        assert_close(objective(wider, generator_of_chance())[part].loss(), answer.loss())


# ---- masked language modelling and what replaces it ---------------------------------------------------


def test_mlm_fills_in_the_selected_positions(question: Question) -> None:
    objective = objective_for("mlm")
    found = objective(question, generator_of_chance())["mlm"].loss()
    assert objective.counts(question) == {"mlm": int(question.masked.selected.sum())}
    labels = question.ids.masked_fill(~question.masked.selected, -100)
    masked, mask = question.masked.input_ids, question.attention_mask
    expected = objective.model(input_ids=masked, attention_mask=mask, labels=labels).loss
    assert_close(found / len(question.masked.targets), expected)


def test_replace_mlm_asks_for_the_original_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, question = objective_for("replace-mlm"), one_question()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    words: Any = objective(question, generator_of_chance())["mlm"]
    assert words.targets.tolist() == [6, 8]
    assert objective.counts(question) == {"generator": 2, "mlm": 2}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    labels = torch.tensor([[-100, -100, 6, -100, 8, -100, -100]])
    expected = objective.model(input_ids=corrupted, attention_mask=question.attention_mask, labels=labels).loss
    assert_close(words.loss() / 2, expected)


def test_all_tokens_mlm_asks_of_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, question = objective_for("all-tokens-mlm"), one_question()
    fixed_samples(monkeypatch, torch.tensor([6, 9]))
    words: Any = objective(question, generator_of_chance())["mlm"]
    assert words.targets.tolist() == [CLS, 5, 6, 7, 8, SEP]
    assert words.read.tolist() == [CLS, 5, 6, 7, 9, SEP]
    assert words.masked.tolist() == [False, False, True, False, True, False]
    assert objective.counts(question) == {"generator": 2, "mlm": 6}
    corrupted = torch.tensor([[CLS, 5, 6, 7, 9, SEP, PAD]])
    whole: Any = objective.model(input_ids=corrupted, attention_mask=question.attention_mask)
    assert_close(words.logits, whole.logits[0, :6])


def test_the_copy_mechanism_mixes_the_token_that_is_read_with_the_softmax() -> None:
    """D = sigmoid(copy): p = D [x is read] + (1 - D) softmax, computed here with all words at once."""
    rng = generator_of_chance()
    read, targets = torch.tensor([4, 1, 2, 3]), torch.tensor([4, 0, 2, 1])
    logits, copy = torch.randn(4, 5, generator=rng), torch.tensor([0.3, -1.0, 4.0, 2.0])
    words = CopiedWords(copy=copy, logits=logits, read=read, targets=targets, masked=read != targets)
    weight = copy.sigmoid().unsqueeze(1)
    mixed = weight * F.one_hot(read, 5) + (1 - weight) * logits.softmax(dim=1)
    assert_close(mixed.sum(dim=1), torch.ones(4))
    assert_close(words.log_likelihood().exp(), mixed[torch.arange(4), targets])
    assert_close(words.loss(), -mixed[torch.arange(4), targets].log().sum())
    hits = mixed.argmax(dim=1) == targets
    tallies = {name: int(value) for name, value in words.tallies().items()}
    assert tallies == {"n": 4, "hits": int(hits.sum()), "masked": 2, "masked_hits": int(hits[[1, 3]].sum())}


def test_a_sure_copy_costs_nothing_where_the_token_is_the_original() -> None:
    read, targets = torch.tensor([4, 1]), torch.tensor([4, 0])
    words = CopiedWords(
        copy=torch.full((2,), 60.0), logits=torch.zeros(2, 5), read=read, targets=targets, masked=read != targets
    )
    assert_close(words.log_likelihood(), torch.tensor([0.0, -60.0 - torch.tensor(5.0).log().item()]))


@pytest.mark.parametrize("name", TRAINED)
def test_a_batch_without_a_masked_token_has_finite_losses(name: str) -> None:
    ids = torch.tensor([[CLS, SEP], [CLS, SEP]])
    objective = objective_for(name)
    question = objective.masking.ask(ids, torch.ones_like(ids), generator_of_chance())
    assert len(question.masked.targets) == 0
    answers = objective(question, generator_of_chance())
    total = torch.stack([answer.loss() for answer in answers.values()]).sum()
    total.backward()
    assert torch.isfinite(total)
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters() if p.grad is not None)
