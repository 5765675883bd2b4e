"""The HSIC engine and the measures: arrays in, frozen results out. Knows no files and no models.

Everything here is exact and in float64, one Gram matrix a layer.
"""

from layerprobe.similarity.cka import cka_map, linear_cka, rbf_cka
from layerprobe.similarity.correlation import cosine_scores, pearson, spearman
from layerprobe.similarity.curve import cka_curve
from layerprobe.similarity.grams import linear_gram, rbf_gram, rbf_sigma_squared
from layerprobe.similarity.hsic import hsic

__all__ = [
    "cka_curve",
    "cka_map",
    "cosine_scores",
    "hsic",
    "linear_cka",
    "linear_gram",
    "pearson",
    "rbf_cka",
    "rbf_gram",
    "rbf_sigma_squared",
    "spearman",
]
