"""The objectives of the ELECTRA paper, masked language modelling among them, with the small generator that most share.

All of them draw the same masks: of each batch 15 % of the ordinary tokens are selected, the generator reads [MASK] in
their place and is trained to fill them in, and its samples take their place in what the encoder reads. They differ in
what the encoder is trained to output for that corrupted text; masked language modelling has no generator.

Knows no optimiser, no data and no files.

Two choices: the paper shows the generator [MASK] at all selected positions, and so do we; the code published with it
does so at 85 % of them. And in it, as here, the discriminator's loss counts all tokens but padding, so also the first
and last token of a sequence, which are never replaced.

Source: Clark et al. 2020 (arXiv 2003.10555), sections 2, 3.2 and 3.5; masked language modelling: Devlin et al. 2019
(arXiv 1810.04805), section 3.1.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ElectraModel

from layerprobe.lab.pretraining.models import build_generator, with_detection_head, with_token_head
from layerprobe.lab.pretraining.values import PretrainingProtocol
from layerprobe.training.masking import (
    MaskedBatch,
    MaskedLanguageModelling,
    Masking,
    Objective,
    PartOutput,
    ReplacedLogits,
    TokenLogits,
)


def masked_language_modelling(
    encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking
) -> MaskedLanguageModelling:
    """Return masked language modelling, BERT's objective, with `encoder` as its model."""
    return MaskedLanguageModelling(with_token_head(encoder), masking)


class GeneratorObjective(Objective):
    """A small generator fills masked positions; the encoder's head, `model`, and its output are left to the children.

    No gradient flows through the sampling. The generator's embeddings (token, position, token type and their norm, as
    in the code published with the paper) are those of the encoder.
    """

    weights: Mapping[str, float] = {"generator": 1.0, "mlm": 1.0}

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(masking)
        self._generator = build_generator(encoder, protocol)
        self.generator: Any = self._generator.model
        self.generator.base_model.embeddings = encoder.embeddings
        self.generator.tie_weights()

    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, PartOutput]:
        """Return the generator's output and that of the encoder for the corrupted batch."""
        only_masks = {
            "input_ids": batch.ids.masked_fill(batch.selected, self.masking.mask_id),
            "attention_mask": batch.attention_mask,
        }
        logits = self._generator.logits(only_masks, batch.selected).float()
        corrupted = batch.ids.clone()
        corrupted[batch.selected] = sample(logits.detach(), rng)
        generated = TokenLogits(logits=logits, targets=batch.targets)
        return {"generator": generated, **self.encoder_output(corrupted, batch)}

    @abstractmethod
    def encoder_output(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, PartOutput]:
        """Return the encoder's output for a corrupted batch, (text, token) ids."""


@torch.no_grad()
def sample(logits: Tensor, rng: torch.Generator) -> Tensor:
    """Return one token a row of (position, vocabulary), drawn from the softmax: the largest with Gumbel noise."""
    return (logits - torch.empty_like(logits).exponential_(generator=rng).log()).argmax(dim=-1)


class ReplacedTokenDetection(GeneratorObjective):
    """The encoder tells of every token whether it is not the original.

    loss = generator's cross entropy + 50 x binary cross entropy over all tokens but padding

    A sample that equals the original counts as original. With `masked_alone` the discriminator's loss is the mean over
    the masked positions alone.
    """

    def __init__(
        self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking, *, masked_alone: bool = False
    ) -> None:
        super().__init__(encoder, protocol, masking)
        self.masked_alone = masked_alone
        self.model = with_detection_head(encoder)
        self.weights = {"generator": 1.0, "discriminator": protocol.discriminator_weight}

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the masked positions and those of the discriminator's loss."""
        return {"generator": len(batch.targets), "discriminator": int(self.positions(batch).sum())}

    def positions(self, batch: MaskedBatch) -> Tensor:
        """Return which tokens carry the discriminator's loss, (text, token) bool."""
        return batch.selected if self.masked_alone else batch.attention_mask.bool()

    def encoder_output(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, PartOutput]:
        """Return the discriminator's output."""
        logits = self.model(input_ids=corrupted, attention_mask=batch.attention_mask).logits.float()
        positions = self.positions(batch)
        return {"discriminator": ReplacedLogits(logits=logits[positions], replaced=(corrupted != batch.ids)[positions])}


masked_token_detection = partial(ReplacedTokenDetection, masked_alone=True)
"""ELECTRA 15 %."""


class ReplaceMLM(GeneratorObjective):
    """The encoder fills in the masked tokens of the corrupted text.

    loss = generator's cross entropy + cross entropy of the original tokens at the masked positions
    """

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(encoder, protocol, masking)
        self._head = with_token_head(encoder)
        self.model = self._head.model

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the masked positions, twice."""
        return dict.fromkeys(("generator", "mlm"), len(batch.targets))

    def encoder_output(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, PartOutput]:
        """Return the logits of all tokens at the masked positions."""
        inputs = {"input_ids": corrupted, "attention_mask": batch.attention_mask}
        logits = self._head.logits(inputs, batch.selected).float()
        return {"mlm": TokenLogits(logits=logits, targets=batch.targets)}


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
