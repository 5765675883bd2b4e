"""What truncated models cost to serve: FLOPs, seconds and memory. Knows loaded models; no texts and no files."""

from layerprobe.profiling.flops import count_flops
from layerprobe.profiling.inputs import random_batch
from layerprobe.profiling.measuring import Schedule, profile_layers
from layerprobe.profiling.memory import MemoryGauge, gauge_for

__all__ = ["MemoryGauge", "Schedule", "count_flops", "gauge_for", "profile_layers", "random_batch"]
