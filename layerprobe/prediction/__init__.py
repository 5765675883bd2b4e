"""CKA curves -> which layers will drop, which layer to keep, and how surely; and how good such predictions are.

Knows numbers, no models, and no files but that of the zoo.
"""

from layerprobe.prediction.baselines import compared_layers, fixed_fraction, last_layer
from layerprobe.prediction.bench import bench_predictors
from layerprobe.prediction.redraws import DRAWS, drop_probability, redraw
from layerprobe.prediction.rules import MINIMUM_DECLINE, WOBBLES, plateau_onsets, plateau_rule
from layerprobe.prediction.truth import cost_share, regrets, truth
from layerprobe.prediction.tuned import rule_names, tuned_rules
from layerprobe.prediction.zoo import read_kept_out, read_zoo, write_zoo

__all__ = [
    "DRAWS",
    "MINIMUM_DECLINE",
    "WOBBLES",
    "bench_predictors",
    "compared_layers",
    "cost_share",
    "drop_probability",
    "fixed_fraction",
    "last_layer",
    "plateau_onsets",
    "plateau_rule",
    "read_kept_out",
    "read_zoo",
    "redraw",
    "regrets",
    "rule_names",
    "truth",
    "tuned_rules",
    "write_zoo",
]
