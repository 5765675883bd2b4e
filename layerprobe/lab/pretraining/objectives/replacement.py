"""Masked language modelling that never reads [MASK], but the samples of a generator.

Source: Clark et al. 2020 (arXiv 2003.10555), section 3.5.
"""

from torch import Tensor
from transformers import ElectraModel

from layerprobe.lab.pretraining.models import with_token_head
from layerprobe.lab.pretraining.objectives.generators import GeneratorObjective
from layerprobe.lab.pretraining.values import PretrainingProtocol
from layerprobe.training.masking import MaskedBatch, Masking
from layerprobe.training.objective import PartOutput, TokenLogits


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
