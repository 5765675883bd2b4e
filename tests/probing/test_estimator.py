"""The fitted probe comes back: scikit-learn's pipeline, equal to what scores were computed with, pickled and saved."""

import functools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import layerprobe as lp
from layerprobe.comparison.arrays import as_layers
from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.probing.linear import scaled
from layerprobe.probing.run import probe, summed_layer
from layerprobe.probing.targets import as_targets
from layerprobe.probing.values import ProbeSettings, Probing
from layerprobe.scoring.probes import logistic_features
from tests.probing.data import layered, scores_of

N = 120
EMBEDDINGS, SIGNAL = layered(N, width=8, strengths=(0.2, 1.0, 0.6))
NEW, _ = layered(30, width=8, strengths=(0.2, 1.0, 0.6), seed=1)
SCORES = scores_of(SIGNAL)
TARGETS: dict[str, Any] = {
    "scores": 5 + 3 * SCORES,
    "two": np.where(SCORES > 0, "high", "low"),
    "three": np.array(["a", "b", "c"])[np.digitize(SCORES, (-1, 1))],
    "whole": np.digitize(SCORES, (-1, 1)) + 7,
    "labels": (SIGNAL[:, :2] > 0).astype(int),
}


@pytest.fixture(scope="module", autouse=True)
def no_refits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.probing.probes.REFITTED_NUMBERS", 0)
        yield


def probed(embeddings: Any, targets: Any, **how: Any) -> Probing:
    return probe(embeddings, targets, foldings=1, cv=3, **how)


@functools.cache
def result_of(kind: str) -> Probing:
    return probed(EMBEDDINGS, TARGETS[kind])


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def outputs_of(pipeline: Any, rows: Any) -> np.ndarray:
    """Return predictions, or probabilities of the classes."""
    if not hasattr(pipeline, "predict_proba"):
        return np.asarray(pipeline.predict(rows))
    of = pipeline.predict_proba(rows)
    return np.stack([label[:, 1] for label in of], axis=1) if isinstance(of, list) else np.asarray(of)


@pytest.mark.parametrize("kind", ["scores", "two", "three"])
def test_it_is_what_scikit_learn_fits_on_all_rows(kind: str) -> None:
    pipeline, rows = result_of(kind).estimator(1), EMBEDDINGS[:, 1]
    expected = clone(pipeline).fit(rows, TARGETS[kind])
    np.testing.assert_allclose(outputs_of(pipeline, NEW[:, 1]), outputs_of(expected, NEW[:, 1]), rtol=2e-3, atol=2e-3)
    assert (pipeline.predict(NEW[:, 1]) == expected.predict(NEW[:, 1])).mean() > 0.95 or kind == "scores"
    np.testing.assert_allclose(pipeline[0].mean_, rows.mean(axis=0))
    np.testing.assert_allclose(pipeline[0].scale_, rows.std(axis=0))


@pytest.mark.parametrize("kind", TARGETS)
def test_its_predictions_are_those_that_were_scored(kind: str) -> None:
    """Fitted on the rows of all folds but one, with the penalty chosen there, it predicts the fold as probe does."""
    problem = as_targets(TARGETS[kind], N).folded(None, ProbeSettings(foldings=1, folds=3))
    layer, scale = scaled(as_layers(EMBEDDINGS)[1], shifted=True)
    fitted, inside = problem.outputs(layer), problem.foldings[0] == 0
    train = np.flatnonzero(~inside)
    raw = TARGETS[kind][train]
    alone = as_targets(raw, len(train)).folded(None, ProbeSettings(foldings=1, folds=3))
    fit = alone.fit(as_layers([layer.rows(train)])[0], fitted.penalties[0, 0])
    rows = scale(EMBEDDINGS[:, 1][inside])
    outputs = fitted.outputs[0][inside]
    expected = outputs if problem.unit is None else problem.unit.undone(outputs, outputs)[0]
    np.testing.assert_allclose(outputs_of(fit.pipeline(problem.kind), rows), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["scores", "three", "labels"])
def test_the_weighted_sum_is_a_pipeline_of_all_layers_side_by_side(kind: str) -> None:
    result = result_of(kind)
    problem = as_targets(TARGETS[kind], N).folded(None, ProbeSettings(foldings=1, folds=3))
    layers, scales = zip(*(scaled(layer, shifted=True) for layer in as_layers(EMBEDDINGS)), strict=True)
    summed = summed_layer(problem, layers, np.arange(N), seed=[0, 0])[0]
    fit = problem.fit(summed, result.fits["weighted sum"].penalties)
    expected = outputs_of(fit.pipeline(problem.kind), summed.rows(slice(0, N)))
    predicted = outputs_of(result.estimator("weighted sum"), EMBEDDINGS.reshape(N, -1))
    np.testing.assert_allclose(predicted, expected, rtol=1e-6, atol=1e-6)
    assert len(scales) == 3


@pytest.mark.parametrize(("factor", "shift"), [(1e-300, 0.0), (1.0, 1e6), (1e200, 0.0)])
def test_it_predicts_from_embeddings_as_they_come(factor: float, shift: float) -> None:
    for kind in ("scores", "two"):
        moved = probed(factor * (EMBEDDINGS + shift), TARGETS[kind])
        for name, rows in ((1, EMBEDDINGS[:, 1]), ("weighted sum", EMBEDDINGS.reshape(N, -1))):
            predicted = outputs_of(moved.estimator(name), factor * (rows + shift))
            np.testing.assert_allclose(
                predicted, outputs_of(result_of(kind).estimator(name), rows), rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("kind", TARGETS)
def test_it_can_be_pickled_and_saved_with_its_provenance(tmp_path: Path, kind: str) -> None:
    result = result_of(kind)
    read = lp.load(lp.save(result, tmp_path / "probes.safetensors"))
    assert read == result
    for name in ("weighted sum", 0, 1, 2):
        pipeline = result.estimator(name)
        rows = EMBEDDINGS[:, name] if isinstance(name, int) else EMBEDDINGS.reshape(N, -1)
        for other in (read.estimator(name), pickled(pipeline)):
            np.testing.assert_array_equal(other.predict(rows), pipeline.predict(rows))
    assert pickled(result) == result


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    whole = lp.save(result_of("scores"), tmp_path / "probes.safetensors").read_bytes()
    changed = bytearray(whole)
    changed[-3] ^= 1
    other = save({"a": np.ones(3)})
    for content, message in (
        (bytes(changed), "it was damaged or changed"),
        (whole[:-5], "expected probes saved by layerprobe.save"),
        (other, "expected probes saved by layerprobe.save"),
        (b"", "expected probes saved by layerprobe.save"),
        (save(load(whole), {"result": "{}", "probes": "{}"}), "it was damaged or changed"),
    ):
        (tmp_path / "other.safetensors").write_bytes(content)
        with pytest.raises(DataError, match=message):
            lp.load(tmp_path / "other.safetensors")


def test_where_there_is_none_is_one_line() -> None:
    result = result_of("scores")
    with pytest.raises(DataError, match="JSON does not contain them: probe again, or save results as"):
        from_json(Probing, to_json(result)).estimator()
    with pytest.raises(DataError, match=r"a layer that was scored, one of layer 0, layer 1, .*, weighted sum, got 7"):
        result.estimator(7)
    with pytest.raises(DataError, match="got -9"):
        result.estimator(-9)
    pairs = np.column_stack([np.arange(60), np.arange(60, N), SCORES[:60]])
    with pytest.raises(DataError, match="layers are scored by the cosine of the two embeddings, without fitting"):
        probed(EMBEDDINGS, pairs, kind="pairs").estimator()


def test_pairs_of_texts_are_side_by_side() -> None:
    fit = result_of("two").fits["layer 1"]
    first, second = NEW[:, 0, :4].astype(np.float32), NEW[:, 1, :4].astype(np.float32)
    features = logistic_features(first, second)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, np.arange(30) % 2)
    as_fit = type(fit)(
        mean=model[0].mean_,
        scale=model[0].scale_,
        weights=model[1].coef_.T,
        bias=model[1].intercept_,
        penalties=np.ones(1),
        classes=np.array([0, 1]),
        pairs="logistic",
    )
    pipeline = pickled(as_fit.pipeline("classes"))
    predicted = pipeline.predict_proba(np.concatenate([first, second], axis=1))
    np.testing.assert_allclose(predicted, model.predict_proba(features), rtol=1e-4)


def test_the_penalty_is_the_median_of_those_chosen() -> None:
    pipeline = result_of("scores").estimator(0)
    assert isinstance(pipeline[-1], Ridge)
    problem = as_targets(TARGETS["scores"], N).folded(None, ProbeSettings(foldings=1, folds=3))
    fitted = problem.outputs(scaled(as_layers(EMBEDDINGS)[0], shifted=True)[0])
    assert pipeline[-1].alpha == np.median(fitted.penalties)
