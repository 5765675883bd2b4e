"""Replaced token detection, ELECTRA's objective, and the same at the masked positions alone.

Source: Clark et al. 2020 (arXiv 2003.10555), sections 2 and 3.5.
"""

from torch import Tensor
from transformers import ElectraModel

from layerprobe.lab.pretraining.models import with_detection_head
from layerprobe.lab.pretraining.objectives.generators import GeneratorObjective
from layerprobe.lab.pretraining.values import PretrainingProtocol
from layerprobe.training.masking import MaskedBatch, Masking
from layerprobe.training.objective import PartOutput, ReplacedLogits


class ReplacedTokenDetection(GeneratorObjective):
    """The encoder tells of every token whether it is not the original.

    loss = generator's cross entropy + 50 x binary cross entropy over all tokens but padding

    A sample that equals the original counts as original.
    """

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(encoder, protocol, masking)
        self.model = with_detection_head(encoder)
        self.weights = {"generator": 1.0, "discriminator": protocol.discriminator_weight}

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the masked positions and those of the discriminator's loss."""
        return {"generator": len(batch.targets), "discriminator": int(self.positions(batch).sum())}

    def positions(self, batch: MaskedBatch) -> Tensor:
        """Return which tokens carry the discriminator's loss, (text, token) bool."""
        return batch.attention_mask.bool()

    def encoder_output(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, PartOutput]:
        """Return the discriminator's output."""
        logits = self.model(input_ids=corrupted, attention_mask=batch.attention_mask).logits.float()
        positions = self.positions(batch)
        return {"discriminator": ReplacedLogits(logits=logits[positions], replaced=(corrupted != batch.ids)[positions])}


class MaskedTokenDetection(ReplacedTokenDetection):
    """The discriminator's loss is the mean over the masked positions alone."""

    def positions(self, batch: MaskedBatch) -> Tensor:
        """Return the masked positions."""
        return batch.selected
