"""What a model is trained for: outputs for a masked batch, and their loss. Knows no optimiser, no data and no files."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.heads import MaskedLanguageModel
from layerprobe.training.masking import MaskedBatch, Masking


class PartOutput(Protocol):
    """The model output of one part of an objective."""

    def loss(self) -> Tensor:
        """Return the loss, summed over the positions that carry it."""

    def tallies(self) -> dict[str, Tensor]:
        """Return what rates are made of, `n` among it: the positions that carry loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLogits:
    """Logits of all tokens of the vocabulary at some positions: cross entropy of the original."""

    logits: Tensor
    """(position, vocabulary), float32."""
    targets: Tensor
    """(position,): the original ids."""

    def loss(self) -> Tensor:
        """Return the summed cross entropy."""
        return F.cross_entropy(self.logits, self.targets, reduction="sum")

    def tallies(self) -> dict[str, Tensor]:
        """Return the positions and the hits: those whose most likely token is the original."""
        hits = (self.logits.argmax(dim=1) == self.targets).sum()
        return {"n": torch.tensor(len(self.targets)), "hits": hits}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplacedLogits:
    """One logit a token: binary cross entropy of whether it was replaced."""

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


# a rate of the held-out set -> the tallies that it is the ratio of
RATES = {
    "accuracy": ("hits", "n"),
    "masked_accuracy": ("masked_hits", "masked"),
    "precision": ("caught", "flagged"),
    "recall": ("caught", "replaced"),
    "replaced": ("replaced", "n"),
}


def rates_of(tallies: Mapping[str, float]) -> dict[str, float | None]:
    """Return the rates, 0 .. 1, that the tallies of a part allow; None where nothing can be counted.

    Examples:
        >>> rates_of({"n": 8, "hits": 6})
        {'accuracy': 0.75}
    """
    return {
        name: tallies[part] / tallies[whole] if tallies[whole] else None
        for name, (part, whole) in RATES.items()
        if {part, whole} <= tallies.keys()
    }


class Objective(nn.Module, ABC):
    """Models with what they are trained for: a weighted sum of parts, each the mean over its positions.

    loss = sum over parts of weight x (summed loss of the part / positions that carry it)
    """

    weights: Mapping[str, float]
    """Of every part."""
    model: Any
    """The encoder under its head, as transformers has it; a `generator` beside it is saved, too."""

    def __init__(self, masking: Masking) -> None:
        super().__init__()
        self.masking = masking

    @abstractmethod
    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return how many positions of the batch carry loss, by part."""

    @abstractmethod
    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, PartOutput]:
        """Return the output of every part; batch, and `rng` of a generator's samples, are on the models' device."""


class MaskedLanguageModelling(Objective):
    """Fill in the masked tokens: the loss is the cross entropy of the original tokens at the selected positions.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1.
    """

    weights: Mapping[str, float] = {"mlm": 1.0}

    def __init__(self, head: MaskedLanguageModel, masking: Masking) -> None:
        super().__init__(masking)
        self.head = head
        self.model = head.model

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the number of selected positions."""
        return {"mlm": len(batch.targets)}

    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, PartOutput]:
        """Return the logits of all tokens at the selected positions."""
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        logits = self.head.logits(inputs, batch.selected).float()
        return {"mlm": TokenLogits(logits=logits, targets=batch.targets)}
