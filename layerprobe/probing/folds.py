"""Splits of scikit-learn as folds. Knows arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.names import quoted
from layerprobe.process import without_warnings


def folds_of(splits: Any, targets: NDArray[Any], groups: NDArray[np.intp] | None) -> NDArray[np.intp]:
    """Return (foldings, n) the folds of splits: of a splitter of scikit-learn, or of (train, test) indices.

    Raises:
        DataError: If they are none, or do not train on all rows that they do not test, each of which is tested once.
    """
    from sklearn.model_selection import check_cv

    rows = np.arange(len(targets))
    foldings = [np.full(len(rows), -1)]
    try:
        with without_warnings():  # of groups that a splitter does not read
            pairs = check_cv(splits).split(rows[:, None], targets, groups)
            made = [(np.asarray(train), np.asarray(test)) for train, test in pairs]
        fits = True
        for train, test in made:
            if foldings[-1].min() >= 0:
                foldings.append(np.full(len(rows), -1))
            fits &= len(test) > 0 and foldings[-1][test].max() < 0
            fits &= np.array_equal(np.sort(rows[train]), np.setdiff1d(rows, rows[test]))
            foldings[-1][test] = foldings[-1].max() + 1
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(
            "expected cv as a number of folds, a splitter of scikit-learn, or (train, test) indices of the "
            f"{len(rows)} rows: {quoted(str(error), 200)}"
        ) from error
    if not fits or foldings[-1].min() < 0 or len({int(folds.max()) for folds in foldings}) > 1:
        raise DataError(
            "expected splits that test each row once, or equally often, and train on all others, as those of KFold, "
            f"GroupKFold and PredefinedSplit, got {len(made)} splits of {len(rows)} rows that do not"
        )
    return np.stack(foldings)
