"""Procrustes similarity: how well a rotation maps one layer onto another. Knows arrays; knows no models."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.similarity.checks import Array, centred_layer
from layerprobe.similarity.values import CHANCE, ROTATIONS, Diagnosed, LayerMeasure

QUARTER_CIRCLE = 8 / (3 * math.pi)
"""Ratio of mean to root mean square of the singular values of a large random matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procrustes(LayerMeasure[Array]):
    """How well a rotation maps one layer onto another.

    s = |X^T Y|_* for centred X and Y of Frobenius norm 1, the sum of singular values: the largest tr(Q^T X^T Y)
    over rotations Q. arccos s is the angular shape distance, a metric, and 2 - 2 s the squared Procrustes distance.
    With few samples and many features it is near 1 for independent layers.

    Source: Williams et al. 2021 (arXiv 2110.14739), the angular distance.

    Examples:
        >>> from layerprobe.similarity.maps import layer_similarity
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(layer_similarity(X, 3 * X[:, ::-1] + 1, Procrustes()), 12)
        1.0
    """

    name = "procrustes"
    short_name = "Procrustes"
    source = "Williams et al. 2021 (arXiv 2110.14739)"
    range = (0.0, 1.0)
    invariances = ROTATIONS | {"translation"}

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        return "Procrustes similarity"

    def prepare(self, layer: ArrayLike, *, name: str) -> Array:
        """Return the layer without mean, size and orientation.

        It is (n, min(n, d)) with columns of mean 0 and Frobenius norm 1; rotated into n columns if there are more
        features.
        """
        centred = centred_layer(layer, name=name)
        # Products with another layer have the same singular values for any rotation: X = R^T Q^T, and R^T is enough.
        columns = centred if centred.shape[1] <= len(centred) else np.linalg.qr(centred.T).R.T
        shape: Array = columns / np.linalg.norm(columns)
        return shape

    def compare(self, first: Array, second: Array) -> float:
        """Return the sum of singular values of X^T Y."""
        return float(np.linalg.norm(first.T @ second, ord="nuc"))

    def chance(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean sum of singular values of X^T Y for independent layers.

        Their squares sum to 1 / (n - 1) on average; of r values that fill a quarter circle, the sum is then
        8 / (3 pi) sqrt(r / (n - 1)). With r the effective rank this is 1 to 25 % too low.
        """
        rank = min(max(layer.effective_rank for layer in layers) for _, layers in (model, reference))
        level = QUARTER_CIRCLE * math.sqrt(rank / (n - 1))
        if level <= CHANCE:
            return None
        return (
            f"{model[0]} and {reference[0]} have layers of effective rank {rank:.0f} or more: on {n} "
            f"texts independent ones would show a Procrustes similarity of {level:.2f} or more: use cka, or compare "
            "with the value for shuffled texts"
        )
