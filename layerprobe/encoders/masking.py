"""Token ids -> what a masked language model is asked. Knows tensors and a generator; knows no model and no loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MASKING_RATE = 0.15
RANDOM_SHARE = 0.1
KEPT_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedBatch:
    """A batch with the positions that the model must fill in."""

    input_ids: Tensor
    """(batch, token): what the model reads."""
    selected: Tensor
    """(batch, token) bool: the positions that carry loss."""
    targets: Tensor
    """(selected,): the original ids at those positions."""


def mask_tokens(
    ids: Tensor,
    special: Tensor,
    *,
    mask_id: int,
    vocab_size: int,
    rng: torch.Generator,
    rate: float = MASKING_RATE,
    random_share: float = RANDOM_SHARE,
    kept_share: float = KEPT_SHARE,
) -> MaskedBatch:
    """Select 15 % of the ordinary tokens; 80 % of them become the mask, 10 % a random word, 10 % stay.

    Args:
        ids: (batch, token) token ids.
        special: (batch, token) bool, true where a token is never selected (padding, CLS, SEP).
        mask_id: The id of the mask token.
        vocab_size: Random words are drawn below this id.
        rng: Random generator.
        rate: Probability of a token to be selected.
        random_share: Share of the selected tokens that become a random word.
        kept_share: Share of them that stay; with both shares 0 all become the mask, as for ELECTRA's generator.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Clark et al. 2020 (arXiv 2003.10555).
    """
    selected = (torch.rand(ids.shape, generator=rng) < rate) & ~special
    masked = ids.masked_fill(selected, mask_id)
    if random_share or kept_share:
        draws = torch.rand(ids.shape, generator=rng)
        words = torch.randint(vocab_size, ids.shape, generator=rng)
        masked = torch.where(selected & (draws < random_share + kept_share), ids, masked)
        masked = torch.where(selected & (draws < random_share), words, masked)
    return MaskedBatch(input_ids=masked, selected=selected, targets=ids[selected])
