"""Exact sums over the Gram matrices of all layers of all models at once. Knows torch, on a CPU or on CUDA."""

from layerprobe.similarity.engine.passes import NamedLayers, Sums, sums_of
from layerprobe.similarity.engine.rows import Rows
from layerprobe.similarity.engine.sums import LayerSums, PairSums, cka_values, influence, pair_variance

__all__ = [
    "LayerSums",
    "NamedLayers",
    "PairSums",
    "Rows",
    "Sums",
    "cka_values",
    "influence",
    "pair_variance",
    "sums_of",
]
