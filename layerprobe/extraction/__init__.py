"""Texts -> the pooled embeddings of every layer, in one forward pass."""

from layerprobe.extraction.doctor import Check, Diagnosis, examine
from layerprobe.extraction.embed import embed_layers

__all__ = ["Check", "Diagnosis", "embed_layers", "examine"]
