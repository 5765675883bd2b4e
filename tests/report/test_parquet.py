"""The table of all pairs of layers: one schema whatever was measured."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.encoders.model import ModelDescription
from layerprobe.similarity.cka import estimate_cka
from layerprobe.similarity.maps import measure_layers
from layerprobe.similarity.measures import CKA, MutualKNN, Procrustes
from layerprobe.similarity.values import Measure, SimilarityMap

KNN = MutualKNN(neighbours=3)
MEASURES = (CKA(), CKA(estimator="biased"), CKA(kernel="rbf", bandwidth_multiplier=1.0), KNN, Procrustes())
BERT = ModelDescription(
    name="bert",
    revision="0" * 40,
    architecture="bert",
    n_blocks=2,
    hidden_size=4,
    norm="none",
    dtype="float32",
    parameters=(1, 2, 3),
)


def compared(measure: Measure) -> Comparisons:
    model, reference = np.random.default_rng(0).normal(size=(2, 3, 20, 4))
    if isinstance(measure, CKA):
        (estimate,) = estimate_cka([("a", model), ("b", reference)], measures=[measure])
        found, curve = estimate.map, estimate.curve("same-index")
    else:
        other = measure_layers(model, reference, measure)
        found, curve = other.map, other.curve("same-index")
    comparison = Comparison(
        model=BERT,
        reference=dataclasses.replace(BERT, name="electra"),
        texts_digest="0" * 64,
        pooling="mean",
        map=found,
        curve=curve,
    )
    return Comparisons(comparisons=(comparison,))


COLUMNS = {
    "model": "string",
    "model_revision": "string",
    "reference": "string",
    "reference_revision": "string",
    "texts": "string",
    "pooling": "string",
    "n_samples": "int64",
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
    "sigma_squared": "float64",
    "reference_sigma_squared": "float64",
}


def test_tables_have_one_schema_and_what_a_measure_does_not_have_is_missing() -> None:
    cka, *_, knn, _ = frames = [compared(measure).pairs.to_pandas() for measure in MEASURES]
    assert all(frame.dtypes.astype(str).to_dict() == COLUMNS for frame in frames)
    assert cka.kernel.tolist() == ["linear"] * 9
    assert cka.neighbours.isna().all()
    assert cka.standard_error.notna().all()
    assert knn.neighbours.tolist() == [3] * 9
    assert knn[["kernel", "estimator", "standard_error", "lower", "sigma_squared"]].isna().all(axis=None)


def test_rows_are_the_pairs_of_layers_and_say_which_the_curve_takes(tmp_path: Path) -> None:
    result = compared(CKA(kernel="rbf", bandwidth_multiplier=0.5))
    result.pairs.save(tmp_path / "map.parquet")
    table = pd.read_parquet(tmp_path / "map.parquet")
    values: SimilarityMap = result.comparisons[0].map
    assert list(zip(table.layer, table.reference_layer, strict=True)) == [(i, j) for i in range(3) for j in range(3)]
    np.testing.assert_array_equal(table.value, np.ravel(values.values))
    np.testing.assert_array_equal(table.on_curve, np.eye(3, dtype=bool).ravel())
    assert values.sigma_squared is not None
    np.testing.assert_array_equal(table.sigma_squared, np.repeat(values.sigma_squared[0], 3))
    assert set(table.bandwidth_multiplier) == {0.5}
