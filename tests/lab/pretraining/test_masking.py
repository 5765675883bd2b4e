"""Which tokens are masked, on batches made by hand, against the definition of Devlin et al. 2019."""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from layerprobe.encoders.batching import TokenizedTexts, collate
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.lab.pretraining.loop import Trainer
from layerprobe.lab.pretraining.masking import Masking, logits_at, tokenize_corpus, with_masked_lm_head
from layerprobe.lab.pretraining.run import trainer
from layerprobe.lab.pretraining.values import AdaptationProtocol
from tests.models import tiny_tokenizer

PAD, UNK, CLS, SEP, MASK = range(5)


def rng_of(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run_on(encoder: Encoder, corpus: TokenizedTexts, **changes: Any) -> Trainer:
    checkpoint = resolve(encoder.description.name)
    protocol = AdaptationProtocol(**{"validation_share": 0.5, **changes})
    return trainer(encoder, with_masked_lm_head(checkpoint, encoder, seed=0)[0], corpus, protocol, seed=0)


def corpus_of(texts: list[list[int]], *, side: str = "right", pad_id: int = PAD) -> TokenizedTexts:
    return TokenizedTexts(
        ids=np.concatenate(texts).astype(np.int32),
        types=None,
        ends=np.cumsum([0, *map(len, texts)]),
        pad_id=pad_id,
        pad_type=0,
        padding_side=side,
        n_truncated=0,
    )


def within(hits: Tensor, share: float) -> bool:
    """Whether a count is within five standard errors of a binomial."""
    n = hits.numel()
    return abs(hits.double().sum().item() - n * share) <= 5 * math.sqrt(n * share * (1 - share))


@pytest.mark.parametrize(("rate", "random_share", "kept_share"), [(0.15, 0.1, 0.1), (0.4, 0.3, 0.0), (0.15, 0.0, 0.5)])
def test_shares_are_those_of_the_definition(rate: float, random_share: float, kept_share: float) -> None:
    words = 50_000
    ids = torch.randint(5, words, (400, 300), generator=rng_of(0))
    masking = Masking(
        mask_id=MASK, vocab_size=words, special_ids=(), rate=rate, random_share=random_share, kept_share=kept_share
    )
    masked = masking.mask(ids, torch.ones_like(ids), rng_of(1))
    read, original = masked.input_ids[masked.selected], ids[masked.selected]
    assert within(masked.selected, rate)
    assert within(read == MASK, 1 - random_share - kept_share)
    assert within(read == original, kept_share)
    assert within((read != MASK) & (read != original), random_share)


@pytest.mark.parametrize("side", ["right", "left"])
def test_special_tokens_and_padding_are_never_masked(encoder: Encoder, side: str) -> None:
    texts = [[CLS, 5, 6, 7, 8, 9, 10, SEP], [CLS, 11, UNK, 12, SEP], [CLS, 13, SEP], [CLS, 5, MASK, 6, SEP]]
    run = run_on(encoder, corpus_of(texts, side=side), masking_rate=1.0)
    batch = run.masked_batch(range(4), rng_of(0))
    ids, attention = collate(run.corpus, range(4)).values()
    assert attention.sum(dim=1).tolist() == [8, 5, 3, 5]
    assert (attention[1].tolist()[-3:] == [1, 1, 1]) == (side == "left")
    assert torch.equal(batch.selected, ids >= 5), "every ordinary token and nothing else"
    assert torch.equal(batch.input_ids[ids < 5], ids[ids < 5])
    assert batch.targets.tolist() == [i for text in texts for i in text if i >= 5]
    assert torch.equal(batch.attention_mask, attention)


def test_the_loss_is_that_of_transformers(with_head: Path) -> None:
    """Labels of -100 at all other positions are the second formula."""
    encoder = load_encoder(str(with_head), device="cpu")
    corpus = tokenize_corpus(partial(encoder.tokenize, max_length=64), ["a b c d e f g", "h i j", "k l m n o p"])
    run = run_on(encoder, corpus, masking_rate=0.5)
    batch = run.masked_batch([0, 1, 2], rng_of(4))
    ids, attention = collate(corpus, [0, 1, 2]).values()
    labels = ids.masked_fill(~batch.selected, -100)
    with torch.inference_mode():
        model = run.objective.model
        expected = model(input_ids=batch.input_ids, attention_mask=attention, labels=labels).loss
        masked_loss = run.part_losses(batch)["mlm"] / len(batch.targets)
    torch.testing.assert_close(masked_loss, expected)


def test_a_step_is_the_mean_over_the_masked_tokens_of_all_its_batches(encoder: Encoder) -> None:
    """Batches of unequal length count by their tokens, so one batch of all texts has the same gradient."""
    corpus = tokenize_corpus(
        partial(encoder.tokenize, max_length=64), ["a b c d e f g h i j k", "h i j", "k l m n o p", "a", "b c"]
    )
    run = run_on(encoder, corpus, masking_rate=0.5, batch_size=1, accumulation=2, warmup=1.0, validation_share=0.4)
    for module in run.objective.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batches = []
    original = run.masked_batch

    def masked_batch(rows: Any, rng: torch.Generator) -> Any:
        batches.append(original(rows, rng))
        return batches[-1]

    run.masked_batch = masked_batch  # type: ignore[method-assign]
    run.protocol = dataclasses.replace(run.protocol, max_grad_norm=1e9)
    run.advance()  # the first step of the warm-up has rate 0: no weight moves
    assert len(batches) == 2
    found = {name: p.grad.clone() for name, p in run.parameters.items() if p.grad is not None}
    run.optimizer.zero_grad()
    scores = []
    for batch in batches:
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        scores.append(logits_at(run.objective.model, inputs, batch.selected))
    F.cross_entropy(torch.cat(scores), torch.cat([batch.targets for batch in batches])).backward()
    assert found.keys() == {name for name, p in run.parameters.items() if p.grad is not None}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, run.parameters[name].grad)


def test_the_held_out_texts_are_masked_the_same_every_time(encoder: Encoder) -> None:
    corpus = tokenize_corpus(partial(encoder.tokenize, max_length=64), [f"{a} {b} c" for a in "abcd" for b in "efgh"])
    held_out = [run_on(encoder, corpus).held_out_batches for _ in range(2)]
    for first, second in zip(*held_out, strict=True):
        assert torch.equal(first.input_ids, second.input_ids)
    assert tiny_tokenizer().mask_token_id in held_out[0][0].input_ids
