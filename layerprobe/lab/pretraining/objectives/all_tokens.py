"""Masked language modelling of all tokens of a corrupted text, with a copy mechanism.

Source: Clark et al. 2020 (arXiv 2003.10555), section 3.5.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ElectraModel

from layerprobe.lab.pretraining.models import with_token_head
from layerprobe.lab.pretraining.objectives.generators import GeneratorObjective
from layerprobe.lab.pretraining.values import PretrainingProtocol
from layerprobe.training.masking import MaskedBatch, Masking
from layerprobe.training.objective import PartOutput


class AllTokensMLM(GeneratorObjective):
    """Every token but padding is predicted, with a copy mechanism.

    p(x | t) = D(t) x 1[x is the token that is read at t] + (1 - D(t)) x softmax(t)[x]
    loss     = generator's cross entropy + mean over all tokens of -log p(original | t)

    D(t) is a sigmoid of the last layer's state. The paper gives the second term no weight, so it has 1 here.
    """

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(encoder, protocol, masking)
        self.model = with_token_head(encoder).model
        self.copy = nn.Linear(protocol.size.hidden_size, 1)

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the masked positions and those of all tokens."""
        return {"generator": len(batch.targets), "mlm": batch.n_tokens}

    def encoder_output(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, PartOutput]:
        """Return the copy logit and the logits of all tokens of the vocabulary at every token."""
        real = batch.attention_mask.bool()
        inputs = {"input_ids": corrupted, "attention_mask": batch.attention_mask}
        states = self.model.base_model(**inputs).last_hidden_state[real]
        logits = self.model.generator_lm_head(self.model.generator_predictions(states))
        return {
            "mlm": CopyLogits(
                copy=self.copy(states).squeeze(1).float(),
                logits=logits.float(),
                read=corrupted[real],
                targets=batch.ids[real],
                masked=batch.selected[real],
            )
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopyLogits:
    """Logits of all tokens of the vocabulary at every token, mixed with a copy of the token that is read."""

    copy: Tensor
    """(position,): its sigmoid is the weight of the copy."""
    logits: Tensor
    """(position, vocabulary)."""
    read: Tensor
    """(position,): the tokens of the corrupted text."""
    targets: Tensor
    """(position,): the original ones."""
    masked: Tensor
    """(position,) bool: where a sample of the generator is read."""

    def log_likelihood(self) -> Tensor:
        """Return log p(original) at every position."""
        predicted = F.logsigmoid(-self.copy) - F.cross_entropy(self.logits, self.targets, reduction="none")
        same = self.read == self.targets
        return torch.where(same, torch.logaddexp(F.logsigmoid(self.copy), predicted), predicted)

    def loss(self) -> Tensor:
        """Return the summed negative log likelihood."""
        return -self.log_likelihood().sum()

    def tallies(self) -> dict[str, Tensor]:
        """Return the positions and the hits, of all tokens and of the masked ones."""
        shares = self.copy.sigmoid().unsqueeze(1)
        mixed = (1 - shares) * self.logits.softmax(dim=1)
        mixed.scatter_add_(1, self.read.unsqueeze(1), shares)
        hits = mixed.argmax(dim=1) == self.targets
        return {
            "n": torch.tensor(len(self.targets)),
            "hits": hits.sum(),
            "masked": self.masked.sum(),
            "masked_hits": (hits & self.masked).sum(),
        }
