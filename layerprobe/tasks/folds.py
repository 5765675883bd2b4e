"""A task in several folds: each a different part of its labelled examples to choose by, the rest to train on.

Knows texts and numbers; knows no models.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from layerprobe.errors import DataError
from layerprobe.stats.links import joined
from layerprobe.tasks.links import links_of
from layerprobe.tasks.values import Items, Task

LARGEST = 0.5
"""Share of a fold that examples joined by shared texts may take; where more are, only equal pairs stay together."""


def folds_of(task: Task, n_folds: int, *, seed: int = 0) -> tuple[Task, ...]:
    """Return the task once for each fold of its training and validation examples: one to validate, the rest to train.

    The test split is the same in all. Examples that share a text are in one fold, so that no text is trained on and
    validated on; where that would put too many into one, only copies of an example are kept together. The folds are of
    like size, and every pooled example validates once.
    """
    pool = task.train.join(task.validation)
    if n_folds < 2:
        raise DataError(f"expected at least two folds, got {n_folds}")
    if len(pool) < 2 * n_folds:
        raise DataError(f"expected at least two examples for each of {n_folds} folds, got {len(pool)}")
    fold_of = _assigned(pool, n_folds, seed)
    return tuple(
        replace(
            task,
            name=f"{task.name}, fold {fold + 1} of {n_folds}",
            train=pool.take(np.flatnonzero(fold_of != fold).tolist()),
            validation=pool.take(np.flatnonzero(fold_of == fold).tolist()),
        )
        for fold in range(n_folds)
    )


def _assigned(pool: Items, n_folds: int, seed: int) -> np.ndarray:
    """Return the fold of every example: groups in a random order, each to the fold with the fewest examples."""
    links = links_of(pool)
    groups = _grouped(range(len(pool)) if links is None else joined(*links.sides).tolist())
    if max(map(len, groups)) > LARGEST * len(pool) / n_folds:
        groups = _grouped(pool.alike)
    random.Random(seed).shuffle(groups)
    groups.sort(key=len, reverse=True)  # stable: the order among groups of a size is random
    sizes, fold_of = [0] * n_folds, np.zeros(len(pool), dtype=np.intp)
    for group in groups:
        fold = min(range(n_folds), key=sizes.__getitem__)
        fold_of[group] = fold
        sizes[fold] += len(group)
    return fold_of


def _grouped(keys: Iterable[object]) -> list[list[int]]:
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    return list(groups.values())
