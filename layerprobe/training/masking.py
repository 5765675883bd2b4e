"""Token ids -> a batch with some tokens masked. Knows tensors; knows no model and no loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from layerprobe.encoders.batching import on_device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedBatch:
    """A batch with the positions that the model must fill in."""

    ids: Tensor
    """(text, token): the original."""
    attention_mask: Tensor
    """(text, token): 1 for tokens, 0 for padding."""
    input_ids: Tensor
    """(text, token): with the selected tokens masked, replaced or kept."""
    selected: Tensor
    """(text, token) bool: the masked positions."""
    targets: Tensor
    """(selected,): the original ids there."""

    @property
    def n_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device) -> MaskedBatch:
        """Return it on a device."""
        return MaskedBatch(**{f.name: on_device(getattr(self, f.name), device) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """Which tokens are selected, and what is shown in their place: by default the shares of BERT.

    With both shares 0 every selected token becomes the mask, as for ELECTRA's generator.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Clark et al. 2020 (arXiv 2003.10555).
    """

    mask_id: int
    vocab_size: int
    """Random tokens are drawn below this id."""
    special_ids: tuple[int, ...]
    """Never selected."""
    rate: float = 0.15
    """Probability of a token to be selected."""
    random_share: float = 0.1
    """Share of the selected tokens that are shown as a random token."""
    kept_share: float = 0.1
    """Share of them that are shown as they are; the rest is shown as the mask."""

    @classmethod
    def of(cls, protocol: Any, tokenizer: Any, *, vocab_size: int, special_ids: Iterable[int]) -> Masking:
        """Return that of a protocol of adaptation or pretraining, whose fields have the same names."""
        return cls(
            mask_id=tokenizer.mask_token_id,
            vocab_size=vocab_size,
            special_ids=tuple(special_ids),
            rate=protocol.masking_rate,
            random_share=protocol.random_share,
            kept_share=protocol.kept_share,
        )

    def mask(self, ids: Tensor, attention_mask: Tensor, rng: torch.Generator) -> MaskedBatch:
        """Return (text, token) ids with some of them masked, on the CPU; padding and special tokens never are."""
        special = torch.isin(ids, torch.tensor(self.special_ids, dtype=ids.dtype)) | (attention_mask == 0)
        selected = (torch.rand(ids.shape, generator=rng) < self.rate) & ~special
        masked = ids.masked_fill(selected, self.mask_id)
        if self.random_share or self.kept_share:
            draw = torch.rand(ids.shape, generator=rng)
            random = torch.randint(self.vocab_size, ids.shape, generator=rng)
            masked = torch.where(selected & (draw < self.random_share + self.kept_share), ids, masked)
            masked = torch.where(selected & (draw < self.random_share), random, masked)
        return MaskedBatch(
            ids=ids, attention_mask=attention_mask, input_ids=masked, selected=selected, targets=ids[selected]
        )
