"""Comparisons as one long table, a row for every pair of layers. Knows results and Parquet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.errors import DataError
from layerprobe.files.atomic import replace_file
from layerprobe.files.serialisation import to_dict
from layerprobe.similarity.values import SimilarityMap

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, str | int | float | bool | None]

COLUMNS = {
    "model": "string",
    "model_revision": "string",
    "reference": "string",
    "reference_revision": "string",
    "texts": "string",
    "n_samples": "int64",
    "pooling": "string",
    "measure": "string",
    "kernel": "string",
    "estimator": "string",
    "normalize": "string",
    "bandwidth_multiplier": "float64",
    "neighbours": "Int64",
    "layer": "int64",
    "reference_layer": "int64",
    "on_curve": "bool",
    "value": "float64",
    "standard_error": "float64",
    "lower": "float64",
    "upper": "float64",
    "level": "float64",
    "p_value": "float64",
    "calibrated": "float64",
    "sigma_squared": "float64",
    "reference_sigma_squared": "float64",
}
"""Columns in their order, with the dtypes that pandas has for them: the same whatever was measured."""


def similarity_table(measured: Sequence[Comparisons]) -> pd.DataFrame:
    """Return a row for every pair of layers, raw and z-scored, with interval and null distribution where they are.

    Layers that are left out have none.

    The columns are `COLUMNS`: texts is the digest of the texts, on_curve whether the curve takes this pair. Settings
    that the measure does not have are missing.
    """
    import pandas as pd

    rows = [row for each in measured for comparison in each.comparisons for row in _rows(comparison)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def write_parquet(measured: Sequence[Comparisons], path: Path) -> None:
    """Write the table to a file, whole or not at all.

    Raises:
        DataError: If the file cannot be written.
    """
    buffer = io.BytesIO()
    similarity_table(measured).to_parquet(buffer, index=False)
    try:
        replace_file(path, buffer.getvalue())
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}; choose another --parquet") from error


def _rows(comparison: Comparison) -> list[Row]:
    maps = [comparison.map, comparison.other_normalization]
    partners = set(enumerate(comparison.curve.reference_layers))
    return [
        {**_about(comparison, each), **_cell(each, i, j), "on_curve": each is comparison.map and (i, j) in partners}
        for each in maps
        if each is not None
        for i in range(each.first_layers[0], each.shape[0])
        for j in range(each.first_layers[1], each.shape[1])
    ]


def _about(comparison: Comparison, similarities: SimilarityMap) -> Row:
    measure = to_dict(similarities.measure)
    return {
        **{name: value for name, value in measure.items() if name in COLUMNS},
        "model": comparison.model.name,
        "model_revision": comparison.model.revision,
        "reference": comparison.reference.name,
        "reference_revision": comparison.reference.revision,
        "texts": comparison.texts_digest,
        "n_samples": similarities.n_samples,
        "pooling": comparison.pooling,
        "measure": measure["name"],
    }


def _cell(similarities: SimilarityMap, i: int, j: int) -> Row:
    errors, null, sigma = similarities.uncertainty, similarities.null, similarities.sigma_squared
    return {
        "layer": i,
        "reference_layer": j,
        "value": similarities.values[i][j],
        "standard_error": errors.standard_errors[i][j] if errors else None,
        "lower": errors.lower[i][j] if errors else None,
        "upper": errors.upper[i][j] if errors else None,
        "level": errors.level if errors else None,
        "p_value": null.p_values[i][j] if null else None,
        "calibrated": null.calibrated[i][j] if null else None,
        "sigma_squared": sigma[0][i] if sigma else None,
        "reference_sigma_squared": sigma[1][j] if sigma else None,
    }
