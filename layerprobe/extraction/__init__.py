"""Texts -> the pooled embeddings of every layer, in one forward pass."""

from layerprobe.extraction.doctor import Check, Diagnosis, examine
from layerprobe.extraction.embed import TokenMeasures, embed_and_measure, embed_layers

__all__ = ["Check", "Diagnosis", "TokenMeasures", "embed_and_measure", "embed_layers", "examine"]
