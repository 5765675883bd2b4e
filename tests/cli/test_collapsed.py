"""Last layers that give all texts one embedding, perhaps after a collapsed training: they are left out and flagged."""

from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe.comparison.compare import compare
from layerprobe.comparison.values import Comparison
from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.readings.reading import alone
from layerprobe.readings.source import read_curves
from layerprobe.results.shown import read_result
from layerprobe.scoring.score import score
from layerprobe.scoring.scores import Scores
from layerprobe.study.predict import predict
from layerprobe.study.values import Prediction
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task
from tests.models import given, tiny_model, tiny_tokenizer

from .conftest import Layerprobe

LAYERS, COLLAPSED = 7, (5, 6)
KEPT = (1, 2, 3, 4)


def save_collapsed(folder: Path, layers: tuple[int, ...], *, left: float = 0.0) -> Path:
    """An encoder whose layers have one embedding for all texts, but for a relative rest `left` of what they had."""
    model = tiny_model("electra", num_hidden_layers=LAYERS - 1)
    norms = [model.embeddings.LayerNorm, *(block.output.LayerNorm for block in model.encoder.layer)]
    with torch.no_grad():
        for layer in layers:
            norms[layer].weight.fill_(left)
            norms[layer].bias.copy_(torch.linspace(-1, 1, len(norms[layer].bias)).roll(layer))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_collapsed(tmp_path_factory.mktemp("collapsed"), COLLAPSED)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def task(pairs_file: Path) -> Task:
    return load_task(pairs_file)


@pytest.mark.parametrize(
    ("layers", "left", "pooling", "varying"),
    [
        ((), 0.0, "mean", range(7)),
        ((6,), 0.0, "mean", range(6)),
        ((5, 6), 0.0, "cls", range(1, 5)),
        ((5, 6), 1e-8, "mean", range(5)),
        ((5, 6), 0.1, "mean", range(7)),
        ((0,), 0.0, "mean", range(7)),  # all of them: nothing is left to read
    ],
)
def test_constant_layers_at_the_ends_are_left_out(
    task: Task, tmp_path: Path, layers: tuple[int, ...], left: float, pooling: str, varying: range
) -> None:
    folder = save_collapsed(tmp_path / "model", layers, left=left)
    embedded = extract(Model(str(folder), pooling=pooling, cache_dir=tmp_path / "cache"), task)  # type: ignore[arg-type]
    assert embedded.layers == varying
    assert sum("left out" in warning for warning in embedded.warnings) == (varying.start > 0) + (varying.stop < LAYERS)
    np.testing.assert_array_equal(embedded.measured(6), embedded.layer(varying[-1]))


def test_other_layers_are_those_of_the_blocks_before(model: Path, task: Task, options: Model) -> None:
    """Every number is that of the encoder without the collapsed blocks."""
    whole, kept = (given(Model(str(model), blocks=blocks), options) for blocks in (None, KEPT))
    curves, expected = (read_curves(one, task.texts(), alone()) for one in (whole, kept))
    for name, curve in curves.items():
        assert curve.layers.stop == 5, name
        np.testing.assert_allclose(curve.values[:5], expected[name].values, rtol=1e-6, err_msg=name)
    scored, other = (score(one, task) for one in (whole, kept))
    np.testing.assert_allclose(scored.scores[:5], other.scores, rtol=1e-6)
    assert (scored.best_layer, scored.candidates) == (other.best_layer, other.candidates)
    assert scored.to_pandas()["spearman"].isna().tolist() == [False] * 5 + [True] * 2
    assert from_json(Scores, to_json(scored)).first.layers == range(5)


@pytest.mark.parametrize("rule", ["fall of InfoNCE", "fall of effective rank"])
def test_a_prediction_flags_them_and_looks_below(model: Path, task: Task, options: Model, rule: str) -> None:
    whole, kept = (
        predict(given(Model(str(model), blocks=blocks), options), task, rule=rule) for blocks in (None, KEPT)
    )
    assert whole.recommended_layer == kept.recommended_layer
    assert whole.drop.drop_layers == (*kept.drop.drop_layers, *COLLAPSED)
    assert whole.drop.same == pytest.approx(kept.drop.same)
    if whole.drop.flagged_in:
        assert whole.drop.flagged_in[5:] == (1.0, 1.0)
    assert from_json(Prediction, to_json(whole)).drop == whole.drop


@pytest.mark.parametrize("side", [0, 1])
def test_a_comparison_has_no_cell_of_them(
    pair: tuple[Path, Path], model: Path, task: Task, options: Model, side: int
) -> None:
    sane = save_collapsed(pair[0].parent / "sane", ())
    models = [str(sane), str(sane)]
    models[side] = str(model)
    comparison = compare(*(given(one, options) for one in models), task)
    assert comparison.map.layers[side] == range(5)
    assert comparison.map.layers[1 - side] == range(7)
    assert len(comparison.map.table) == 5 * 7
    assert set(comparison.curve.reference_layers) == set(range(5 + 2 * (1 - side)))
    assert comparison.to_pandas()["value"].isna().tolist() == [False] * 5 + [side == 0] * 2
    assert from_json(Comparison, to_json(comparison)) == comparison


def test_find_fine_tunes_them_only_if_nothing_speaks_against(
    layerprobe: Layerprobe, model: Path, pairs_file: Path
) -> None:
    done = layerprobe("find", model, "-t", pairs_file, "--epochs", "1", "--seeds", "1", "--batch-size", "16", "--json")
    assert done.code == 0, done.err
    assert "layers 5 to 6 of" in done.err
    assert "give all texts the same embedding: no reading favours fine-tuning there" in done.err
    finding = read_result(done.out)
    assert finding.best_layer not in COLLAPSED
    assert finding.untrained[5:] == (None, None)


def test_a_model_that_collapsed_whole_is_refused(layerprobe: Layerprobe, pairs_file: Path, tmp_path: Path) -> None:
    model = save_collapsed(tmp_path / "model", (0,))
    for command in "predict", "score", "compare":
        done = layerprobe(command, model, "-t", pairs_file)
        assert (done.code, done.out) == (1, "")
        assert "layer 0 of" in done.error, command
