"""Masked language modelling, BERT's objective.

Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1.
"""

from transformers import ElectraModel

from layerprobe.lab.pretraining.models import with_token_head
from layerprobe.lab.pretraining.values import PretrainingProtocol
from layerprobe.training.masking import Masking
from layerprobe.training.objective import MaskedLanguageModelling


def build(encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> MaskedLanguageModelling:
    """Return the objective with `encoder` as its model."""
    return MaskedLanguageModelling(with_token_head(encoder), masking)
