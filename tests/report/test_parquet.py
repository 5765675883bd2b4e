"""The table of all pairs of layers: one schema whatever was measured."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.similarity.measures import MutualKNN
from layerprobe.study.values import Prediction

from .similarities import rbf

COLUMNS = {
    **dict.fromkeys(("model", "model_revision", "reference", "reference_revision", "texts", "pooling"), "string"),
    "n_samples": "int64",
    **dict.fromkeys(("measure", "kernel", "estimator", "normalize"), "string"),
    "bandwidth_multiplier": "float64",
    "neighbours": "Int64",
    "layer": "int64",
    "reference_layer": "int64",
    "on_curve": "bool",
    **dict.fromkeys(("value", "standard_error", "lower", "upper", "level"), "float64"),
    **dict.fromkeys(("sigma_squared", "reference_sigma_squared"), "float64"),
}


def table_of(comparison: Comparison, path: Path) -> pd.DataFrame:
    return pd.read_parquet(Comparisons(comparisons=(comparison,)).pairs.save(path / "map.parquet"))


def test_tables_have_one_schema_and_what_a_measure_does_not_have_is_missing(
    plain: Prediction, measured: Prediction, tmp_path: Path
) -> None:
    of_neighbours = dataclasses.replace(plain.comparison.map, measure=MutualKNN(neighbours=3))
    knn = table_of(dataclasses.replace(plain.comparison, map=of_neighbours), tmp_path)
    cka = table_of(measured.comparison, tmp_path)
    assert cka.dtypes.astype(str).to_dict() == knn.dtypes.astype(str).to_dict() == COLUMNS
    assert set(cka.kernel) == {"linear"}
    assert cka.neighbours.isna().all()
    assert cka.standard_error.notna().all()
    assert set(knn.neighbours) == {3}
    assert knn[["kernel", "estimator", "standard_error", "lower", "sigma_squared"]].isna().all(axis=None)


def test_rows_are_the_pairs_of_layers_and_say_which_the_curve_takes(plain: Prediction, tmp_path: Path) -> None:
    values = rbf(plain.comparison.map, 0.5)
    table = table_of(dataclasses.replace(plain.comparison, map=values), tmp_path)
    assert list(zip(table.layer, table.reference_layer, strict=True)) == [(i, j) for i in range(13) for j in range(13)]
    np.testing.assert_array_equal(table.value, np.ravel(values.values))
    np.testing.assert_array_equal(table.on_curve, np.eye(13, dtype=bool).ravel())
    assert set(table.sigma_squared) == {1.5}
    assert set(table.reference_sigma_squared) == {2.5}
    assert set(table.bandwidth_multiplier) == {0.5}
