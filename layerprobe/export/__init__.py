"""A truncated encoder as a folder that transformers and sentence-transformers load."""

from layerprobe.export.card import Training, card
from layerprobe.export.checkpoint import Exported, check_target, write_checkpoint
from layerprobe.export.layout import Layout, read_layout, write_layout

__all__ = [
    "Exported",
    "Layout",
    "Training",
    "card",
    "check_target",
    "read_layout",
    "write_checkpoint",
    "write_layout",
]
