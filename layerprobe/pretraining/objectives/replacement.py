"""Masked language modelling that never reads [MASK], but the samples of a generator.

Source: Clark et al. 2020 (arXiv 2003.10555), section 3.5.
"""

from __future__ import annotations

from torch import Tensor
from transformers import ElectraModel

from layerprobe.encoders.heads import MaskedLanguageModel
from layerprobe.pretraining.models import build_generator, with_token_head
from layerprobe.pretraining.objectives.generators import GeneratorObjective
from layerprobe.pretraining.values import PretrainingProtocol
from layerprobe.training.masking import MaskedBatch, Masking
from layerprobe.training.objective import PartOutput, TokenLogits


class ReplaceMLM(GeneratorObjective):
    """The encoder fills in the masked tokens of the corrupted text.

    loss = generator's cross entropy + cross entropy of the original tokens at the masked positions
    """

    def __init__(self, generator: MaskedLanguageModel, head: MaskedLanguageModel, masking: Masking) -> None:
        super().__init__(generator, head.model, masking)
        self._head = head

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the masked positions, twice."""
        return dict.fromkeys(("generator", "mlm"), len(batch.targets))

    def encoder_output(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, PartOutput]:
        """Return the logits of all tokens at the masked positions."""
        inputs = {"input_ids": corrupted, "attention_mask": batch.attention_mask}
        logits = self._head.logits(inputs, batch.selected).float()
        return {"mlm": TokenLogits(logits=logits, targets=batch.targets)}


def build(encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> ReplaceMLM:
    """Return the objective with `encoder` as its model."""
    return ReplaceMLM(build_generator(encoder, protocol), with_token_head(encoder), masking)
