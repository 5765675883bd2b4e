"""Means of layers against means that are made: cosines of every pair, choices by hand, gains with their errors."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.extraction.embeddings import extract
from layerprobe.metrics.correlation import cosine_scores
from layerprobe.scoring import layer_means as module
from layerprobe.scoring.layer_means import mean_cosines
from layerprobe.scoring.score import score
from layerprobe.scoring.values import LayerMeans, LayerScores
from layerprobe.scoring.zero_shot import zero_shot
from layerprobe.tasks.values import Task, TextSplit
from tests.models import given, save_tiny
from tests.shown import assert_shows_itself
from tests.toy_task import toy_task_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("models") / "bert"))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("chunk", [1, 200, 2**22])
def test_cosines_of_means_are_those_of_means_that_are_made(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    scales = np.array([1.0, 30.0, 0.02])[:, None, None]
    u, v = (scales * rng.normal(size=(3, 11, 5)) + 1 for _ in range(2))
    found = mean_cosines(list(u), list(v))
    for a, b in itertools.product(range(3), repeat=2):
        np.testing.assert_allclose(found["plain"][a, b], cosine_scores(u[a] + u[b], v[a] + v[b]), atol=1e-11)
        first, second = (
            [side[layer] / np.linalg.norm(side[layer], axis=1)[:, None] for layer in (a, b)] for side in (u, v)
        )
        np.testing.assert_allclose(found["unit"][a, b], cosine_scores(sum(first), sum(second)), atol=1e-11)
    np.testing.assert_allclose(found["unit"][1, 1], found["plain"][1, 1], atol=1e-11)


def test_what_has_no_cosine_is_refused() -> None:
    ones = np.ones((4, 3))
    with pytest.raises(DegenerateLayerError, match="expected finite embeddings that are not zero"):
        mean_cosines([ones, 0 * ones], [ones, ones])
    with pytest.raises(DegenerateLayerError, match="got two layers that cancel out"):
        mean_cosines([ones, -ones], [ones, ones])


@pytest.mark.parametrize("split", ["train", "all"])
def test_a_probe_is_not_scored_on_what_it_was_fitted_on(model: str, options: Model, split: TextSplit) -> None:
    task = toy_task_of("classification", train=20, validation=8, test=8)
    embeddings = extract(given(model, options), task.texts())
    with pytest.raises(DataError, match=f"the validation or the test split for a probe .* fits, got {split}"):
        zero_shot(embeddings, task, split=split)


def layer_means(model: Model, task: Task) -> LayerMeans:
    means = score(model, task, layer_means=True).means
    assert means is not None
    return means


def test_the_pair_is_chosen_on_validation_and_its_gain_is_on_test(model: str, options: Model) -> None:
    task = toy_task_of("sts")
    result = layer_means(given(model, options), task)
    embeddings = extract(given(model, options), task.texts())
    single = zero_shot(embeddings, task, split="validation")
    assert result.by_layer == pytest.approx(single.scores)
    assert result.layer == single.best_layer
    assert result.test == pytest.approx(zero_shot(embeddings, task).scores[result.layer])
    (unit, plain) = result.means

    def by_hand(split: str, a: int, b: int) -> float:
        items = task.examples(split)  # type: ignore[arg-type]
        u, v = (embeddings.layer(a)[rows] + embeddings.layer(b)[rows] for rows in map(embeddings.rows, items.sides))
        return 100 * float(stats.spearmanr(cosine_scores(u, v), items.targets).statistic)

    assert plain.by_pair == pytest.approx([by_hand("validation", *pair) for pair in result.pairs])
    assert plain.layers == max(result.pairs, key=lambda pair: by_hand("validation", *pair))
    assert plain.test == pytest.approx(by_hand("test", *plain.layers))
    for mean in (unit, plain):
        assert mean.gain is not None
        assert mean.gain.value == pytest.approx(mean.test - result.test)
        assert mean.gain.seeds_error is None
        assert mean.gain.n_items == 32


@pytest.mark.parametrize("kind", ["paraphrase", "classification"])
def test_thresholds_and_probes_are_those_of_single_layers(model: str, options: Model, kind: str) -> None:
    task = toy_task_of(kind)
    result = layer_means(given(model, options), task)
    embeddings = extract(given(model, options), task.texts())
    assert result.by_layer == pytest.approx(zero_shot(embeddings, task, split="validation").scores, abs=0.01)
    assert result.test == pytest.approx(zero_shot(embeddings, task).scores[result.layer], abs=0.01)
    assert [len(mean.by_pair) for mean in result.means] == [6, 6]


def test_it_shows_itself(model: str, options: Model, tmp_path: Path) -> None:
    assert_shows_itself(score(given(model, options), toy_task_of("sts"), layer_means=True), tmp_path)


@pytest.mark.parametrize(("scores", "warned"), [((0.0, -30.0, -25.5), True), ((-30.0, -30.0, -5.0), False)])
def test_labels_the_wrong_way_round_are_noticed(scores: tuple[float, ...], warned: bool) -> None:
    found = LayerScores(
        split="test", method="cosine", primary="spearman", metrics={"spearman": scores}, first_layer=int(warned)
    )
    assert [said.partition(":")[0] for said in found.warnings] == [
        "every layer has a Spearman x 100 below -20"
    ] * warned


@pytest.mark.parametrize("store_dtype", ["float32", "float16"])
def test_no_layer_is_read_whole_for_cosines(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_read: list[int], store_dtype: str
) -> None:
    options, task = Model(device="cpu", cache_dir=tmp_path, store_dtype=store_dtype), toy_task_of("sts")
    checkpoint = resolve(given(model, options))
    whole = module.layer_means(checkpoint, task)
    monkeypatch.setattr(module, "CHUNK", 200)
    rows_read.clear()
    assert module.layer_means(checkpoint, task) == whole
    assert max(rows_read) == 1
