"""CKA curves -> which layers will drop, which layer to keep, and how surely. Knows numbers, no models and no files."""

from layerprobe.prediction.baselines import fixed_fraction, last_layer
from layerprobe.prediction.redraws import DRAWS, drop_probability, redraw
from layerprobe.prediction.rules import MINIMUM_DECLINE, WOBBLES, plateau_onsets, plateau_rule

__all__ = [
    "DRAWS",
    "MINIMUM_DECLINE",
    "WOBBLES",
    "drop_probability",
    "fixed_fraction",
    "last_layer",
    "plateau_onsets",
    "plateau_rule",
    "redraw",
]
