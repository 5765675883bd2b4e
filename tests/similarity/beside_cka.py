"""The measures beside CKA, as tests run through them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from layerprobe.similarity.maps import layer_similarity, measure_layers
from layerprobe.similarity.measures import SVCCA, MutualKNN, Procrustes
from layerprobe.similarity.values import MEASURES, LayerMeasure, Matrix, Normalize, measure_class

BESIDE_CKA = [name for name in MEASURES if name != "cka"]
NEIGHBOURS = 5


def _has_neighbours(name: str) -> bool:
    return "neighbours" in {field.name for field in dataclasses.fields(measure_class(name))}


NEIGHBOUR_MEASURES = [name for name in BESIDE_CKA if _has_neighbours(name)]


def measured(name: str, normalize: Normalize = "raw", neighbours: int = NEIGHBOURS) -> LayerMeasure[Any]:
    """The measure of a name."""
    settings = {"neighbours": neighbours} if name in NEIGHBOUR_MEASURES else {}
    return measure_class(name)(normalize=normalize, **settings)


def measure_map(model: Iterable[Any], reference: Iterable[Any], measure: LayerMeasure[Any], **names: str) -> Matrix:
    return measure_layers(list(model), list(reference), measure, level=None, **names).map.values


def mutual_knn(X: Any, Y: Any, *, neighbours: int = 10) -> float:
    return layer_similarity(X, Y, MutualKNN(neighbours=neighbours))


def svcca(X: Any, Y: Any, *, variance: float = 0.99) -> float:
    return layer_similarity(X, Y, SVCCA(variance=variance))


def procrustes(X: Any, Y: Any) -> float:
    return layer_similarity(X, Y, Procrustes())
