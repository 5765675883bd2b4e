"""What the objectives of the ELECTRA paper share: a small generator that fills in the masked tokens.

All of them draw the same masks: of each batch 15 % of the ordinary tokens are selected, the generator reads [MASK] in
their place and is trained to fill them in, and its samples take their place in what the encoder reads. They differ in
what the encoder is trained to output for that corrupted text.

Knows no optimiser, no data and no files.

Two choices: the paper shows the generator [MASK] at all selected positions, and so do we; the code published with it
does so at 85 % of them. And in it, as here, the discriminator's loss counts all tokens but padding, so also the first
and last token of a sequence, which are never replaced.

Source: Clark et al. 2020 (arXiv 2003.10555), sections 2, 3.2 and 3.5.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import ElectraModel

from layerprobe.lab.pretraining.models import build_generator
from layerprobe.lab.pretraining.values import PretrainingProtocol
from layerprobe.training.masking import MaskedBatch, Masking
from layerprobe.training.objective import Objective, PartOutput, TokenLogits


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
