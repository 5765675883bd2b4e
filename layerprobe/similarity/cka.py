"""Centred kernel alignment of layers. Knows arrays and names of layers; knows no files and no models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from layerprobe.errors import DataError
from layerprobe.results import CKAMap, Estimator, Kernel
from layerprobe.similarity.checks import Array, centred_layer, check_choice, check_same_samples
from layerprobe.similarity.grams import check_bandwidth_multiplier, gaussian, sigma_squared, squared_distances
from layerprobe.similarity.hsic import unit_gram


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A kernel and an estimator."""

    kernel: Kernel
    """linear or rbf."""
    estimator: Estimator
    """debiased or biased."""
    bandwidth_multiplier: float = 1.0
    """rbf: sigma in units of the root of the median squared distance."""

    def __post_init__(self) -> None:
        check_choice(self.kernel, Kernel, name="kernel")
        check_choice(self.estimator, Estimator, name="estimator")
        check_bandwidth_multiplier(self.bandwidth_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitGram:
    """A layer, ready to be compared: CKA is the inner product of two."""

    values: Array
    """(n, n), centred, of norm 1."""
    sigma_squared: float | None
    """rbf: the squared bandwidth."""

    def cka(self, other: UnitGram) -> float:
        """Return the inner product with another."""
        return float(np.vdot(self.values, other.values))


def linear_cka(X: ArrayLike, Y: ArrayLike, *, estimator: Estimator = "debiased") -> float:
    """Return the linear centred kernel alignment of two layers.

    CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with K = X X^T, L = Y Y^T. It is the same for X + c, aX and XQ
    with orthogonal Q, but not for other invertible maps.

    Args:
        X: (n, d) embeddings, n >= 4.
        Y: (n, e) embeddings of the same samples in the same order.
        estimator: debiased or biased. The biased value of independent layers is far from 0 unless n is much larger
            than the number of features.

    Returns:
        biased: [0, 1]. debiased: [-1, 1], can be negative. Bounds hold up to rounding: nothing is clamped.

    Raises:
        DataError: If an argument is no matrix of real numbers, or the estimator is unknown.
        DegenerateLayerError: If a layer is constant, not finite, or has fewer than 4 rows.
        MisalignedSamplesError: If the numbers of rows differ.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), equation 4; debiased: with HSIC_1 of Song et al. 2012
    (JMLR 13), as Nguyen et al. 2021 (arXiv 2010.15327).

    Example:
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(linear_cka(X, 3 * X + 1), 12)
        1.0
        >>> linear_cka(X, X**2) < 0.1 < linear_cka(X, X**2, estimator="biased")
        True
    """
    return _cka(X, Y, Measure(kernel="linear", estimator=estimator))


def rbf_cka(
    X: ArrayLike, Y: ArrayLike, *, bandwidth_multiplier: float = 1.0, estimator: Estimator = "debiased"
) -> float:
    """Return the centred kernel alignment of two layers under Gaussian kernels.

    CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with K_ij = exp(-d_ij^2 / (2 sigma^2)) and
    sigma^2 = multiplier^2 x median of d^2 over i < j, each layer with its own sigma. It is the same for X + c, aX
    and XQ with orthogonal Q.

    Args:
        X: (n, d) embeddings, n >= 4.
        Y: (n, e) embeddings of the same samples in the same order.
        bandwidth_multiplier: sigma in units of the root of the median squared distance.
        estimator: debiased or biased.

    Returns:
        biased: [0, 1]. debiased: [-1, 1], can be negative. Bounds hold up to rounding: nothing is clamped.

    Raises:
        DataError: If an argument is no matrix of real numbers, the multiplier is not positive and finite, or the
            estimator is unknown.
        DegenerateLayerError: If a layer is constant, not finite, has fewer than 4 rows, or most rows are equal.
        MisalignedSamplesError: If the numbers of rows differ.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), equation 4 and section 3.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(50, 8))
        >>> round(rbf_cka(X, 3 * X + 1), 12)
        1.0
    """
    return _cka(X, Y, Measure(kernel="rbf", estimator=estimator, bandwidth_multiplier=bandwidth_multiplier))


def cka_map(
    model_layers: Iterable[ArrayLike],
    reference_layers: Iterable[ArrayLike],
    *,
    kernel: Kernel = "linear",
    estimator: Estimator = "debiased",
    bandwidth_multiplier: float = 1.0,
    model_name: str = "the model",
    reference_name: str = "the reference",
) -> CKAMap:
    """Compare every layer of one model with every layer of another.

    Each layer is read once and its Gram matrix made once. The Gram matrices of the reference stay in memory,
    those of the model are made one at a time: 8 n^2 bytes for every layer of the reference and three times that
    on top. Generators may load layers lazily.

    Args:
        model_layers: (n, d) embeddings of layers 0, 1, ... of the model, n >= 4; d may differ by layer.
        reference_layers: The same of the reference, for the same samples in the same order.
        kernel: linear or rbf.
        estimator: debiased or biased.
        bandwidth_multiplier: rbf: sigma in units of the root of the median squared distance.
        model_name: What messages call the model.
        reference_name: What messages call the reference.

    Returns:
        values[i][j] is `linear_cka` or `rbf_cka` of layer i of the model and layer j of the reference. biased:
        [0, 1]; debiased: [-1, 1], can be negative; up to rounding.

    Raises:
        DataError: If a model has no layers, a layer is no matrix of real numbers, or an option is unknown.
        DegenerateLayerError: If a layer is constant, not finite, has fewer than 4 rows, or, for rbf, most rows
            are equal; the message names the layer.
        MisalignedSamplesError: If layers have different numbers of rows.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), equation 4.

    Example:
        >>> layers = np.random.default_rng(0).normal(size=(3, 50, 8))
        >>> result = cka_map(layers, layers[:2])
        >>> len(result.values), len(result.values[0]), round(result.values[1][1], 12), result.n_samples
        (3, 2, 1.0, 50)
    """
    measure = Measure(kernel=kernel, estimator=estimator, bandwidth_multiplier=bandwidth_multiplier)
    reference = list(_unit_grams(reference_layers, measure, model=reference_name))
    if not reference:
        raise DataError(f"{reference_name} has no layers, expected at least one")
    n_samples = len(reference[0].values)
    expected = n_samples, f"layer 0 of {reference_name}"
    values, bandwidths = [], []
    for layer in _unit_grams(model_layers, measure, model=model_name, expected=expected):
        values.append(tuple(layer.cka(other) for other in reference))
        bandwidths.append(layer.sigma_squared)
    if not values:
        raise DataError(f"{model_name} has no layers, expected at least one")
    return CKAMap(
        values=tuple(values),
        kernel=kernel,
        estimator=estimator,
        n_samples=n_samples,
        bandwidth_multiplier=bandwidth_multiplier if kernel == "rbf" else None,
        sigma_squared=_bandwidths(bandwidths, [other.sigma_squared for other in reference]),
    )


def _cka(X: ArrayLike, Y: ArrayLike, measure: Measure) -> float:
    first, second = centred_layer(X, name="X"), centred_layer(Y, name="Y")
    check_same_samples(len(second), len(first), name="Y", other="X")
    return _unit_gram(first, measure, name="X").cka(_unit_gram(second, measure, name="Y"))


def _unit_grams(
    layers: Iterable[ArrayLike], measure: Measure, *, model: str, expected: tuple[int, str] | None = None
) -> Iterator[UnitGram]:
    """Yield one a layer; `expected` is how many samples it must have, and which layer says so."""
    for i, layer in enumerate(layers):
        name = f"layer {i} of {model}"
        centred = centred_layer(layer, name=name)
        expected = expected or (len(centred), name)
        check_same_samples(len(centred), expected[0], name=name, other=expected[1])
        yield _unit_gram(centred, measure, name=name)


def _unit_gram(centred: Array, measure: Measure, *, name: str) -> UnitGram:
    if measure.kernel == "linear":
        values = unit_gram(centred @ centred.T, estimator=measure.estimator, name=name)
        return UnitGram(values=values, sigma_squared=None)
    distances = squared_distances(centred)
    bandwidth = sigma_squared(distances, bandwidth_multiplier=measure.bandwidth_multiplier, name=name)
    values = unit_gram(gaussian(distances, bandwidth), estimator=measure.estimator, name=name)
    return UnitGram(values=values, sigma_squared=bandwidth)


def _bandwidths(
    model: list[float | None], reference: list[float | None]
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    first, second = (tuple(value for value in values if value is not None) for values in (model, reference))
    return (first, second) if first else None
