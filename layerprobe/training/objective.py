"""What a model is asked about a batch, and how its answer is scored. Knows no optimiser, no data and no files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.heads import MaskedLanguageModel
from layerprobe.encoders.masking import KEPT_SHARE, MASKING_RATE, RANDOM_SHARE, MaskedBatch, mask_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A masked batch."""

    ids: Tensor
    """(text, token): the original."""
    masked: MaskedBatch
    attention_mask: Tensor
    """(text, token): 1 for tokens, 0 for padding."""

    @property
    def n_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device) -> Question:
        """Return it on a device."""
        masked = MaskedBatch(
            input_ids=self.masked.input_ids.to(device, non_blocking=True),
            selected=self.masked.selected.to(device, non_blocking=True),
            targets=self.masked.targets.to(device, non_blocking=True),
        )
        return Question(
            ids=self.ids.to(device, non_blocking=True),
            masked=masked,
            attention_mask=self.attention_mask.to(device, non_blocking=True),
        )


class Answer(Protocol):
    """What one part of an objective says about a batch."""

    def loss(self) -> Tensor:
        """Return the loss, summed over the positions that carry it."""

    def tallies(self) -> dict[str, Tensor]:
        """Return what rates are made of, `n` among it: the positions that carry loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """Scores of all words at some positions: cross entropy of the original."""

    logits: Tensor
    """(position, word), float32."""
    targets: Tensor
    """(position,): the original words."""

    def loss(self) -> Tensor:
        """Return the summed cross entropy."""
        return F.cross_entropy(self.logits, self.targets, reduction="sum")

    def tallies(self) -> dict[str, Tensor]:
        """Return the positions and the hits: those whose most likely word is the original."""
        hits = (self.logits.argmax(dim=1) == self.targets).sum()
        return {"n": torch.tensor(len(self.targets)), "hits": hits}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flags:
    """One score a token: binary cross entropy of whether it was replaced."""

    logits: Tensor
    """(position,), float32: above 0 says replaced."""
    replaced: Tensor
    """(position,) bool."""

    def loss(self) -> Tensor:
        """Return the summed binary cross entropy."""
        return F.binary_cross_entropy_with_logits(self.logits, self.replaced.float(), reduction="sum")

    def tallies(self) -> dict[str, Tensor]:
        """Return the positions, the hits, and how many are flagged, replaced, and both."""
        flagged = self.logits > 0
        return {
            "n": torch.tensor(len(self.replaced)),
            "hits": (flagged == self.replaced).sum(),
            "flagged": flagged.sum(),
            "replaced": self.replaced.sum(),
            "caught": (flagged & self.replaced).sum(),
        }


# a rate of the held-out texts -> the tallies that it is the ratio of
RATES = {
    "accuracy": ("hits", "n"),
    "masked_accuracy": ("masked_hits", "masked"),
    "precision": ("caught", "flagged"),
    "recall": ("caught", "replaced"),
    "replaced": ("replaced", "n"),
}


def rates_of(tallies: Mapping[str, float]) -> dict[str, float | None]:
    """Return the rates, 0 .. 1, that the tallies of a part allow; None where nothing can be counted.

    Example:
        >>> rates_of({"n": 8, "hits": 6})
        {'accuracy': 0.75}
    """
    return {
        name: tallies[part] / tallies[whole] if tallies[whole] else None
        for name, (part, whole) in RATES.items()
        if {part, whole} <= tallies.keys()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """Which tokens are selected, and what is shown in their place."""

    mask_id: int
    vocab_size: int
    """Random words are drawn below this id."""
    special_ids: tuple[int, ...]
    """Never selected."""
    rate: float = MASKING_RATE
    """Chance of a token to be selected."""
    random_share: float = RANDOM_SHARE
    """Share of the selected tokens that are shown as a random word."""
    kept_share: float = KEPT_SHARE
    """Share of them that are shown as they are; the rest is shown as the mask."""

    def ask(self, ids: Tensor, attention_mask: Tensor, chance: torch.Generator) -> Question:
        """Return a batch with some tokens masked; padding and special tokens never are."""
        special = torch.isin(ids, torch.tensor(self.special_ids)) | (attention_mask == 0)
        masked = mask_tokens(
            ids,
            special,
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
            rng=chance,
            rate=self.rate,
            random_share=self.random_share,
            kept_share=self.kept_share,
        )
        return Question(ids=ids, masked=masked, attention_mask=attention_mask)


class Objective(nn.Module, ABC):
    """Models with what they are trained for: a weighted sum of parts, each the mean over its positions.

    loss = sum over parts of weight x (summed loss of the part / positions that carry it)
    """

    weights: Mapping[str, float]
    """Of every part."""

    def __init__(self, masking: Masking) -> None:
        super().__init__()
        self.masking = masking

    @abstractmethod
    def counts(self, question: Question) -> dict[str, int]:
        """Return how many positions of the batch carry loss, by part."""

    @abstractmethod
    def forward(self, question: Question, sampling: torch.Generator) -> dict[str, Answer]:
        """Return the answer of every part.

        Args:
            question: On the device of the models.
            sampling: Source of chance of a generator's samples, on that device too.
        """


class MaskedLanguageModelling(Objective):
    """Fill in 15 % of the tokens: the loss is the cross entropy of the original tokens at the selected positions.

    80 % of the selected tokens are shown as the mask, 10 % as a random word, 10 % as they are.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1.
    """

    weights: Mapping[str, float] = {"mlm": 1.0}

    def __init__(self, head: MaskedLanguageModel, masking: Masking) -> None:
        super().__init__(masking)
        self.head = head
        self.model: Any = head.model

    def counts(self, question: Question) -> dict[str, int]:
        """Return the number of selected positions."""
        return {"mlm": len(question.masked.targets)}

    def forward(self, question: Question, sampling: torch.Generator) -> dict[str, Answer]:
        """Return the scores of all words at the selected positions."""
        batch = {"input_ids": question.masked.input_ids, "attention_mask": question.attention_mask}
        logits = self.head.logits(batch, question.masked.selected).float()
        return {"mlm": Words(logits=logits, targets=question.masked.targets)}
