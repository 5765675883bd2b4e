"""The HSIC engine and the measures: arrays in, frozen results out. Knows no files and no models.

`hsic`, `linear_gram` and `rbf_gram` are the definitions, one whole Gram matrix in float64 at a time; `estimate_cka`
and what is built on it get the same numbers from tiles, for all layers at once.
"""

from layerprobe.similarity.cautions import cautions
from layerprobe.similarity.cca import pwcca, svcca
from layerprobe.similarity.cka import CKAEstimate, cka_interval, cka_map, estimate_cka, linear_cka, rbf_cka
from layerprobe.similarity.correlation import cosine_scores, pearson, spearman
from layerprobe.similarity.curve import similarity_curve
from layerprobe.similarity.diagnostics import diagnose
from layerprobe.similarity.dissimilarity import rsa
from layerprobe.similarity.estimates import Estimate, MeasureEstimate, measure_layers
from layerprobe.similarity.grams import linear_gram, rbf_gram, rbf_sigma_squared
from layerprobe.similarity.hsic import hsic
from layerprobe.similarity.measures import MEASURES, LayerMeasure, measure_map
from layerprobe.similarity.neighbours import cknna, mutual_knn
from layerprobe.similarity.permutation import permutation_null
from layerprobe.similarity.shape import procrustes

__all__ = [
    "MEASURES",
    "CKAEstimate",
    "Estimate",
    "LayerMeasure",
    "MeasureEstimate",
    "cautions",
    "cka_interval",
    "cka_map",
    "cknna",
    "cosine_scores",
    "diagnose",
    "estimate_cka",
    "hsic",
    "linear_cka",
    "linear_gram",
    "measure_layers",
    "measure_map",
    "mutual_knn",
    "pearson",
    "permutation_null",
    "procrustes",
    "pwcca",
    "rbf_cka",
    "rbf_gram",
    "rbf_sigma_squared",
    "rsa",
    "similarity_curve",
    "spearman",
    "svcca",
]
