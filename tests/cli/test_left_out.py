"""Where pooling takes one token, layer 0 can be the same for all texts: it is left out everywhere, and said so."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerprobe.comparison.compare import compare
from layerprobe.comparison.values import Comparisons
from layerprobe.encoders.model import Model, Pooling
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.prediction.rules import rule_curves
from layerprobe.readings.reading import READINGS, LayerCurve, alone
from layerprobe.readings.source import read_curves
from layerprobe.results.shown import read_result
from layerprobe.similarity.cka import estimate_cka, linear_cka
from layerprobe.similarity.diagnostics import diagnose
from layerprobe.study.predict import predict, predict_drop
from layerprobe.tasks.loading import load_task
from tests.models import given, save_tiny

from .conftest import Layerprobe, Pair

CLS = ("--pooling", "cls")


@pytest.fixture
def texts(pairs_file: Path) -> tuple[str, ...]:
    return load_task(pairs_file).texts()


def embed(model: Path, texts: tuple[str, ...], cache: Path, pooling: Pooling = "cls") -> Embeddings:
    return extract(given(model, Model(pooling=pooling, cache_dir=cache)), texts)


def said(model: Path) -> str:
    return f"layer 0 of {model} is left out: with cls pooling it is the same for all texts"


def test_only_a_constant_layer_of_one_token_is_left_out(pair: Pair, texts: tuple[str, ...], tmp_path: Path) -> None:
    embedded = embed(pair[0], texts, tmp_path)
    assert embedded.first_layer == 1
    assert embedded.warnings == (said(pair[0]),)
    # what is stored stays: layer 0 is there, and the same for all texts
    np.testing.assert_allclose(embedded.layer(0), embedded.layer(0)[:1].repeat(len(texts), axis=0), rtol=1e-5)
    np.testing.assert_array_equal(embedded.measured(0), embedded.layer(1))
    np.testing.assert_array_equal(embedded.measured(2), embedded.layer(2))
    mean = embed(pair[0], texts, tmp_path, "mean")
    assert (mean.first_layer, mean.warnings) == (0, ())
    # one text says nothing of what is the same for all
    assert embed(pair[0], texts[:1], tmp_path).first_layer == 0


def test_the_other_layers_are_those_of_embeddings_without_layer_0(
    pair: Pair, texts: tuple[str, ...], tmp_path: Path
) -> None:
    model, reference = (embed(each, texts, tmp_path) for each in pair)
    comparison = compare(model, reference)
    without = [[each.layer(layer) for layer in range(1, each.n_layers)] for each in (model, reference)]
    (estimate,) = estimate_cka([("model", without[0]), ("reference", without[1])])
    alone, curve = estimate.curve("same-index"), comparison.curve
    assert comparison.map.first_layers == (1, 1)
    np.testing.assert_allclose(np.array(comparison.map.values)[1:, 1:], estimate.map.values, atol=1e-12)
    np.testing.assert_allclose(curve.values[1:], alone.values, atol=1e-12)
    assert curve.uncertainty is not None
    assert alone.uncertainty is not None
    np.testing.assert_allclose(curve.uncertainty.lower[1:], alone.uncertainty.lower, atol=1e-9)
    np.testing.assert_allclose(np.array(curve.uncertainty.covariance)[1:, 1:], alone.uncertainty.covariance, atol=1e-9)
    # what stands for layer 0 makes no step
    assert curve.values[0] == pytest.approx(curve.values[1], abs=1e-12)
    assert curve.reference_layers == (1, 1, 2, 3)
    assert comparison.model_diagnostics[1:] == tuple(
        diagnose(layer, name="layer", norm=model.model.norm) for layer in without[0]
    )
    assert from_json(Comparisons, to_json(Comparisons(comparisons=(comparison,)))).comparisons == (comparison,)


def test_readings_leave_it_out(pair: Pair, texts: tuple[str, ...], tmp_path: Path) -> None:
    options = Model(pooling="cls", cache_dir=tmp_path)
    curves = read_curves(given(pair[0], options), texts, alone())
    embedded = embed(pair[0], texts, tmp_path)
    for name, curve in curves.items():
        expected = 1 + READINGS[name].first  # CKA with the layer before begins a layer later
        assert curve.first_layer == expected, name
        assert set(curve.values[:expected]) <= {curve.values[expected]}, name
    by_hand = [linear_cka(embedded.layer(layer), embedded.layer(layer - 1)) for layer in (2, 3)]
    np.testing.assert_allclose(curves["self CKA"].values[2:], by_hand, atol=1e-6)


def test_no_rule_recommends_it(pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    prediction = predict(
        given(pair[0], Model(pooling="cls", cache_dir=tmp_path)), load_task(pairs_file), reference=pair[1]
    )
    plain = json.loads(prediction.to_json())
    assert all(values[0] is None for values in plain["drops"][0]["read"].values())
    assert read_result(prediction.to_json()) == prediction
    assert prediction.warnings.count(said(pair[0])) == 1
    comparison, scores = prediction.comparison, prediction.zero_shot
    assert scores is not None
    assert scores.first_layer == 1
    # worst for every rule: what is read falls from the first layer on
    falling = (1.0, 1.0, 0.5, 0.1)
    steep = dataclasses.replace(
        comparison, curve=dataclasses.replace(comparison.curve, values=falling, uncertainty=None)
    )
    for name in ("fall of InfoNCE", "fall of effective rank", "plateau of CKA"):
        curves = {read: LayerCurve(values=falling, first_layer=1) for read in rule_curves(name)}
        drop = predict_drop(steep, rule=name, curves=curves, zero_shot=scores)
        assert drop.first_layer == 1
        assert min(drop.recommended_layer, *drop.baselines.values()) >= 1
        assert not drop.drop_layers or drop.drop_layers[0] == drop.recommended_layer + 1
        assert drop.evidence is None or min(drop.evidence.plateau_layers) >= 1


def test_compare_leaves_cells_blank(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    table, page = tmp_path / "map.parquet", tmp_path / "page.html"
    done = layerprobe("compare", *pair, "-t", pairs_file, *CLS, "--report", page)
    assert done.code == 0, done.err
    assert [done.err.count(said(one)) for one in pair] == [1, 1]
    told = page.read_text("utf-8")
    assert [told.count(f"layer 0 of {one.name} is left out: with cls pooling") for one in pair] == [1, 1]
    assert "layer 0" not in done.out
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line[:6].strip().isdigit()}
    assert rows["0"] == []
    assert len(rows["1"]) == len(rows["2"]) - 1  # no change from a layer that is left out
    output = layerprobe("compare", *pair, "-t", pairs_file, *CLS, "--map", "--parquet", table).out
    assert "\nlayer      1      2      3\n" in output
    cells = pd.read_parquet(table)
    assert (cells.layer.min(), cells.reference_layer.min()) == (1, 1)
    assert cells.on_curve.sum() == 3
    printed = read_result(layerprobe("compare", *pair, "-t", pairs_file, *CLS, "--json").out)
    frame = printed.to_pandas()
    assert frame.loc[0, "value":].isna().all()  # type: ignore[misc]
    assert frame.loc[1:, "value"].notna().all()
    figure = printed.plot()
    (line,) = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert line.x[0] == 1


def test_a_layer_alone_is_compared_with_nothing(layerprobe: Layerprobe, pairs_file: Path, tmp_path: Path) -> None:
    model, page = save_tiny("bert", tmp_path / "one", num_hidden_layers=1), tmp_path / "page.html"
    for command in (("compare", model, "--report", page), ("predict", model), ("predict", model, "--readings")):
        done = layerprobe(*command, "-t", pairs_file, *CLS)
        assert (done.code, done.out) == (1, "")
        assert done.err.endswith("expected two layers that differ between texts, to compare with each other, got one\n")
    assert layerprobe("compare", model, "-t", pairs_file).code == 0


def test_find_goes_without_it(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    settings = (*CLS, "--epochs", "1", "--seeds", "1", "--batch-size", "16")
    done = layerprobe("find", pair[0], "-t", pairs_file, "--reference", pair[1], *settings, "--json")
    assert done.code == 0, done.err
    assert done.err.count(f"warning: {said(pair[0])}") == 1
    finding = read_result(done.out)
    assert {run.layer for run in finding.fine_tuned} == {1, 2, 3}, "expected no run at a layer that is left out"
    assert finding.prediction
    assert 0 not in (*finding.answer.candidates, finding.best_layer, finding.prediction.recommended_layer)
    first, *others = finding.table.records()
    assert [first[name] for name in ("cka", "untrained", "expected", "chance_best")] == [None] * 4
    assert all(row["cka"] is not None and row["expected"] is not None for row in others)
    assert finding.answer.first_layer == 1
