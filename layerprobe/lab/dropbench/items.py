"""Errors of scores over test items, from the outputs of runs. Knows arrays and kinds of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.finetuning.values import Weighting
from layerprobe.lab.dropbench.values import ItemErrors, RunName
from layerprobe.similarity.values import Matrix
from layerprobe.stats.crossed import item_covariance, item_units
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.links import links_of
from layerprobe.tasks.values import Items

Array = NDArray[np.float64]

DECIMALS = 4
"""Of scores x 100 and squared points; a zoo is a file that is passed on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemOutputs:
    """The outputs of one model for the items of a split."""

    run: RunName
    outputs: Array
    """(items,) or (items, classes)."""
    threshold: float | None = None
    """From which on an example counts as of class 1, where the kind has one; chosen on validation."""


def half_scores(outputs: ItemOutputs, kind: str, examples: Items, *, seed: int = 0) -> tuple[float, float]:
    """Return the primary metric x 100 on each of two random halves of the items, which depend on their number alone."""
    order = np.random.default_rng(seed).permutation(len(examples))
    targets = examples.gold
    first, second = (
        evaluate_outputs(kind, outputs.outputs[half], targets[half], threshold=outputs.threshold)
        for half in np.array_split(order, 2)
    )
    return next(iter(first.metrics.values())), next(iter(second.metrics.values()))


def item_errors(
    runs: Sequence[ItemOutputs], kind: str, examples: Items, *, weighting: Weighting | None = None
) -> ItemErrors:
    """Return how the primary metrics of runs at every layer, with as many seeds each, go together over items.

    common = mean covariance of runs of two arms with different seeds; own = that of a run with itself, less common.
    Where arms have one seed, and no other, common is that of their only runs. What is left of rounding and of few
    seeds is made positive.
    """
    targets, links = examples.gold, links_of(examples)
    influences = [item_influences(kind, run.outputs, targets, threshold=run.threshold) for run in runs]
    whole = item_covariance(influences, links)
    n_layers = 1 + max(layer for layer, _, _ in (run.run for run in runs))
    arms = np.array([layer + scan * n_layers for layer, _, scan in (run.run for run in runs)])
    seeds = np.array([run.run[1] for run in runs])
    of_arm = (np.arange(arms.max() + 1)[:, None] == arms).astype(np.float64)
    apart, together = (seeds[:, None] != seeds).astype(np.float64), (seeds[:, None] == seeds).astype(np.float64)
    same_seed = _mean_of_pairs(whole, together, of_arm, otherwise=_mean_of_pairs(whole, apart, of_arm))
    common = _positive(_mean_of_pairs(whole, apart, of_arm, otherwise=same_seed))
    seed_variances = np.maximum(np.diag(same_seed)[:n_layers] - np.diag(common)[:n_layers], 0.0)
    scans = slice(n_layers, None)
    return ItemErrors(
        n_items=len(examples),
        units=round(float(item_units(len(examples), links)), DECIMALS),
        common=_lower(common),
        own=tuple(np.round(seed_variances, DECIMALS).tolist()),
        own_of_scan=_lower(_positive(same_seed[scans, scans] - common[scans, scans])),
        weighting=weighting,
    )


def _mean_of_pairs(whole: Array, counted: Array, of_arm: Array, *, otherwise: Array | None = None) -> Array:
    """Return (arms, arms): the mean of the counted pairs of runs of two arms; where there are none, something else."""
    counts, sums = of_arm @ counted @ of_arm.T, of_arm @ (whole * counted) @ of_arm.T
    fallback = np.zeros_like(sums) if otherwise is None else otherwise
    means: Array = np.where(counts > 0, sums / np.maximum(counts, 1), fallback)
    return means


def _positive(matrix: Array) -> Array:
    """Return the nearest positive semidefinite matrix."""
    if not len(matrix):
        return matrix
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    nearest: Array = (vectors * np.maximum(values, 0)) @ vectors.T
    return nearest


def _lower(matrix: Array) -> Matrix:
    return tuple(tuple(np.round(row[: i + 1], DECIMALS).tolist()) for i, row in enumerate(matrix))
