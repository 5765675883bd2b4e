"""Logistic regression of whether a layer drops, on the falls of a few readings together."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.prediction.rule import (
    Array,
    KnownDrop,
    ModelCurves,
    Parameters,
    Predictor,
    Rule,
    before_final_run,
    check_some,
    layer_values,
)
from layerprobe.prediction.rules.simple import falls_of
from layerprobe.readings.reading import Reading

COMBINED = (
    ("self CKA", "effective rank", "mean cosine"),
    ("CKA, all references", "effective rank", "mean cosine"),
    ("InfoNCE", "effective rank", "mean cosine"),
    ("zero-shot", "effective rank", "mean cosine"),
    ("zero-shot", "probe", "effective rank"),
    ("zero-shot", "probe", "CKA, all references"),
)
"""Readings that are read together, three at a time."""
RIDGE = 1.0
"""Penalty; features have a standard deviation of 1."""
STEPS = 50
"""Newton steps; it needs about 6."""


def rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return one rule for each combination of readings that are there."""
    return [logistic({name: readings[name] for name in names}) for names in COMBINED if set(names) <= readings.keys()]


def logistic(readings: Mapping[str, Reading]) -> Rule:
    """Return logistic regression of whether a layer is one of the drop layers on the falls of a few readings.

    The final run of layers with a probability above a half drops.
    """
    name = f"logistic on {', '.join(readings)}"

    def choose(models: Sequence[KnownDrop]) -> Parameters:
        check_some(models, name)
        falls = np.concatenate([_layer_falls(case.model, readings) for case in models])
        mean, spread = falls.mean(axis=0), falls.std(axis=0)
        spread[spread == 0] = 1.0  # a curve that falls nowhere says nothing
        targets = np.concatenate([_is_drop_layer(case) for case in models])
        features = np.concatenate([_features(case.model, readings, mean, spread) for case in models])
        weights = _logistic_weights(features, targets, np.array([0.0, *[RIDGE] * len(readings)]))
        return {"mean": mean.tolist(), "spread": spread.tolist(), "weights": weights.tolist()}

    def make(mean: Sequence[float], spread: Sequence[float], weights: Sequence[float]) -> Predictor:
        centre, scale, slopes = map(np.array, (mean, spread, weights))

        def predict(model: ModelCurves) -> tuple[int, ...]:
            drops = _features(model, readings, centre, scale) @ slopes > 0
            return (int(before_final_run(np.append(False, drops))),)

        return predict

    return Rule(
        name=name,
        curves=tuple(readings),
        make=make,
        choose=choose,
        parameters=len(readings) + 1,
        labelled=any(reading.labelled for reading in readings.values()),
    )


def _is_drop_layer(case: KnownDrop) -> NDArray[np.bool_]:
    """Return whether each of layers 1 to the last is a drop layer."""
    layers = np.arange(1, case.model.n_blocks + 1)
    onset = case.truth.onset
    return np.zeros(len(layers), dtype=bool) if onset is None else layers >= onset


def _layer_falls(model: ModelCurves, readings: Mapping[str, Reading]) -> Array:
    """Return (layers, readings) falls at layers 1 to the last."""
    columns = [
        falls_of(layer_values(model, name), reading, direction=reading.directions[0])[1:]
        for name, reading in readings.items()
    ]
    return np.stack(columns, axis=1)


def _features(model: ModelCurves, readings: Mapping[str, Reading], mean: Array, spread: Array) -> Array:
    """Return (layers, 1 + readings): a constant, which has no penalty, and falls scaled as those of known models."""
    features: Array = np.c_[np.ones(model.n_blocks), (_layer_falls(model, readings) - mean) / spread]
    return features


def _logistic_weights(features: Array, targets: NDArray[np.bool_], penalties: Array) -> Array:
    """Return the weights of L2-penalised logistic regression, by Newton's method."""
    if targets.all() or not targets.any():
        # one class: the intercept would be infinite
        return np.append(1.0 if targets.all() else -1.0, np.zeros(features.shape[1] - 1))
    weights = np.zeros(features.shape[1])
    for _ in range(STEPS):
        shares = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (shares - targets) + penalties * weights
        curvature = (features * (shares * (1 - shares))[:, None]).T @ features + np.diag(penalties)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            break
    return weights
