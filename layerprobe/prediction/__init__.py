"""CKA curves -> which layers will drop and which layer to keep. Knows numbers, no models and no files."""

from layerprobe.prediction.baselines import fixed_fraction, last_layer
from layerprobe.prediction.rules import MINIMUM_DECLINE, WOBBLES, plateau_rule

__all__ = ["MINIMUM_DECLINE", "WOBBLES", "fixed_fraction", "last_layer", "plateau_rule"]
