"""Pretraining objectives: masked language modelling and replaced token detection.

Knows what a batch is asked and how the answer is scored; knows no optimiser, no data and no files.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.masking import MASKING_RATE, mask_tokens

DISCRIMINATOR_WEIGHT = 50.0


class MaskedLanguageModelling(nn.Module):
    """Cross entropy of the original tokens at the selected positions."""

    def __init__(self, model: Any, *, mask_id: int) -> None:
        super().__init__()
        self.model = model
        self.mask_id = mask_id

    @property
    def encoder(self) -> nn.Module:
        """The encoder without its head."""
        return cast(nn.Module, self.model.base_model)

    def forward(self, ids: Tensor, attention_mask: Tensor, special: Tensor, rng: torch.Generator) -> Tensor:
        """Return the mean loss over the selected positions."""
        vocab_size = self.model.config.vocab_size
        batch = mask_tokens(ids, special, mask_id=self.mask_id, vocab_size=vocab_size, rng=rng, rate=MASKING_RATE)
        hidden = self.encoder(input_ids=batch.input_ids, attention_mask=attention_mask).last_hidden_state
        return cross_entropy(self.model.cls(hidden[batch.selected]), batch.targets)


class ReplacedTokenDetection(nn.Module):
    """ELECTRA: a small generator fills masked positions, the discriminator tells which tokens are not original.

    loss = generator cross entropy + 50 x discriminator binary cross entropy over all ordinary and special
    tokens but padding. No gradient flows through the sampling. A generator sample that equals the original
    counts as original. Token and position embeddings of the two models are tied.

    Source: Clark et al. 2020 (arXiv 2003.10555), sections 2 and 3.
    """

    def __init__(self, generator: Any, discriminator: Any, *, mask_id: int) -> None:
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.mask_id = mask_id
        ours, theirs = generator.electra.embeddings, discriminator.electra.embeddings
        ours.word_embeddings = theirs.word_embeddings
        ours.position_embeddings = theirs.position_embeddings
        generator.generator_lm_head.weight = theirs.word_embeddings.weight

    @property
    def encoder(self) -> nn.Module:
        """The discriminator without its head."""
        return cast(nn.Module, self.discriminator.electra)

    def forward(self, ids: Tensor, attention_mask: Tensor, special: Tensor, rng: torch.Generator) -> Tensor:
        """Return the weighted sum of both losses."""
        vocab_size = self.generator.config.vocab_size
        # the generator reads masks only: nothing random, nothing kept
        only_masks = {"rate": MASKING_RATE, "random_share": 0.0, "kept_share": 0.0}
        batch = mask_tokens(ids, special, mask_id=self.mask_id, vocab_size=vocab_size, rng=rng, **only_masks)
        hidden = self.generator.electra(input_ids=batch.input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.generator.generator_lm_head(self.generator.generator_predictions(hidden[batch.selected]))
        corrupted, replaced = replace_tokens(ids, batch.selected, logits.detach(), rng=rng)
        guess = self.discriminator(input_ids=corrupted, attention_mask=attention_mask).logits
        real = attention_mask.bool()
        detection = F.binary_cross_entropy_with_logits(guess[real], replaced[real].float())
        return cross_entropy(logits, batch.targets) + DISCRIMINATOR_WEIGHT * detection


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over the selected positions; 0 where a small batch has none."""
    return F.cross_entropy(logits, targets) if len(targets) else logits.sum()  # the mean of nothing is NaN


def replace_tokens(ids: Tensor, selected: Tensor, logits: Tensor, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Put samples from `logits` at the selected positions.

    Returns:
        The corrupted ids and the labels, both (batch, token); a label is true where the token changed.
    """
    samples = torch.multinomial(logits.softmax(dim=-1), 1, generator=rng).squeeze(1)
    corrupted = ids.clone()
    corrupted[selected] = samples
    return corrupted, corrupted != ids
