"""Several models on one task: scores as of each alone, paired errors, cost and the front."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import layerprobe as lp
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, LayerProbeError, ModelError
from layerprobe.results.shown import read_result
from layerprobe.scoring.score import score, score_split
from layerprobe.scoring.scores import LayerOfModel, Scores, TaskScores
from layerprobe.scoring.values import LayerScores
from layerprobe.stats.crossed import crossed
from layerprobe.stats.floors import Floor
from layerprobe.stats.values import AgainstBest
from layerprobe.store.store import Store
from layerprobe.tasks.evaluation import item_influences
from tests.models import save_tiny
from tests.toy_task import TOY_KINDS, toy_task_of


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """Two encoders of different architectures and one cache."""
    folder = tmp_path_factory.mktemp("models")
    return [Model(save_tiny(name, folder / name), cache_dir=folder / "cache") for name in ("bert", "electra")]


@pytest.fixture(scope="module")
def scored(models: list[Model]) -> Scores:
    return score(models, toy_task_of("sts"))


def test_scores_whose_floor_is_0_are_drawn_and_all_items_are_no_split(models: list[Model]) -> None:
    one = score(models[0], toy_task_of("sts"), split="all")
    assert one.compared is not None
    assert one.compared.floor == Floor(value=0.0, by="a random order")
    assert one.plot().data
    assert " on all" not in str(one)
    assert " on test" in str(score(models[0], toy_task_of("sts")))


@pytest.mark.parametrize("kind", TOY_KINDS)
def test_scores_of_every_kind_are_those_of_each_model_alone(models: list[Model], kind: str) -> None:
    task = toy_task_of(kind)
    both = score(models, task)
    for i, model in enumerate(models):
        alone = score_split(model, task)[0]
        assert alone.influences == (), "only where they are asked for"
        assert [each.score for each in both.of_model(i)] == pytest.approx(list(alone.scores), abs=1e-9)
    assert (both.tasks[0].kind, both.primary, both.tasks[0].n_items) == (kind, task.primary, len(task.test))
    assert all(each.interval[0] <= each.score <= each.interval[1] for each in both.layers)
    # a second call reads probes from the store, with what items add to them
    assert score(models, task) == both


def test_intervals_are_of_paired_errors_over_items(scored: Scores, models: list[Model]) -> None:
    task, rows = toy_task_of("sts"), []
    for model in models:
        embeddings = score_split(model, task)[1]
        for layer in range(embeddings.n_layers):
            values, (first, second) = embeddings.measured(layer), [embeddings.rows(s) for s in task.test.sides]
            u, v = values[first].astype(float), values[second].astype(float)
            cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
            rows.append(item_influences("sts", cosines.round(6), task.test.gold))
    for each, psi in zip(scored.layers, rows, strict=True):
        alone = crossed([each.score], psi[None], metric="spearman", difference=False)
        assert alone is not None
        best = each == scored.best_of_each[0]  # was chosen, so that its lower end is lower
        assert each.interval[best] == pytest.approx(alone.interval[best], abs=0.5)
        assert (each.interval[0] < alone.interval[0] - 0.5) == best


def test_a_kept_probe_without_influences_is_fitted_again(tmp_path: Path) -> None:
    task, place = toy_task_of("classification"), tmp_path / "cache"
    pair = [Model(save_tiny(name, tmp_path / name), cache_dir=place) for name in ("bert", "electra")]
    before = [score_split(model, task)[0] for model in pair]
    both = score(pair, task)
    assert [each.score for each in both.of_model(0)] == list(before[0].scores)
    assert score_split(pair[0], task)[0] == before[0]
    kept = [path for path in Store(place).root.rglob("*.json") if "probes" in path.parts]
    assert kept, "expected the probes in the store"


def test_other_settings_of_one_model_are_compared_under_other_names(models: list[Model]) -> None:
    bert = models[0]
    cls = dataclasses.replace(bert, pooling="cls")
    with pytest.raises(DataError, match=r"expected models with different names, got two named .*: give a display_name"):
        score([bert, cls], toy_task_of("sts"))
    named = score([bert, dataclasses.replace(cls, display_name="by [CLS]")], toy_task_of("sts"))
    assert named.labels[1] == "by [CLS]"


def test_a_model_is_compared_with_what_became_of_it(models: list[Model]) -> None:
    before, after = (AutoModel.from_pretrained(models[0].name) for _ in range(2))
    tokenizer = AutoTokenizer.from_pretrained(models[0].name)
    with torch.no_grad():
        after.encoder.layer[1].output.dense.weight.mul_(1.5)
    given = [dataclasses.replace(models[0], name=(each, tokenizer)) for each in (before, after)]
    with pytest.raises(DataError, match="give a display_name"):
        score(given, toy_task_of("sts"))
    tuned = dataclasses.replace(given[1], display_name="tuned")
    scores = score([given[0], tuned], toy_task_of("sts"))
    assert scores.labels[1] == "tuned"
    assert resolve(tuned).identity == resolve(given[1]).identity
    with pytest.raises(ModelError, match="expected a display name for a loaded model, got ' '"):
        dataclasses.replace(tuned, display_name=" ")


def test_warnings_are_the_same_however_scores_are_asked_for(
    models: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.scoring.values.REVERSED", 101.0)  # no correlation is as high
    task, short = toy_task_of("sts"), dataclasses.replace(models[0], max_length=4, pooling="cls")
    scores = lp.score(short, task)
    cut, left_out, distances = scores.warnings
    assert "were cut at 4 tokens" in cut
    assert "is left out" in left_out
    assert "may be distances" in distances
    assert read_result(scores.to_json()) == scores
    name = scores.warnings[0].partition(" for ")[2]
    beside = lp.score([short, models[1]], task).warnings
    assert {cut, left_out, f"{name}: {distances}"} < set(beside)
    across = lp.score(short, [task])
    assert across.warnings == tuple(f"{task.name}: {said}" for said in scores.warnings)
    assert read_result(across.to_json()) == across


def test_what_cannot_be_compared_is_one_line(models: list[Model], tmp_path: Path) -> None:
    task, bert = toy_task_of("sts"), models[0]
    with pytest.raises(DataError, match=r"expected different models, got .*bert and again, which are the same"):
        score([bert, dataclasses.replace(bert, display_name="again")], task)
    with pytest.raises(DataError, match="expected at least one model, got none"):
        score([], task)
    with pytest.raises(DataError, match="the model comes first, then the task"):
        score(task, bert)  # type: ignore[arg-type]
    for tolerance in ("x", float("nan"), -1):
        with pytest.raises(DataError, match="expected a tolerance of at least 0 points, got"):
            score(bert, task, tolerance=tolerance)  # type: ignore[arg-type]
    for wrong in (dataclasses.replace(task, test=task.test.take([0])), "stsb"):
        with pytest.raises(LayerProbeError) as caught:
            score(models, wrong)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_a_model_that_is_not_there_is_found_before_anything_is_spent(models: list[Model], tmp_path: Path) -> None:
    good = dataclasses.replace(models[0], cache_dir=tmp_path / "cache")
    with pytest.raises(LayerProbeError, match="nothing"):
        score([good, Model(tmp_path / "nothing")], toy_task_of("sts"))
    assert not list((tmp_path / "cache").rglob("*.npy")), "expected no embeddings"


def test_what_is_done_when_a_model_fails_is_kept(models: list[Model], tmp_path: Path) -> None:
    """The weights of the second one are broken, which only loading shows."""
    place, task = tmp_path / "cache", toy_task_of("sts")
    good = dataclasses.replace(models[0], cache_dir=place)
    broken = save_tiny("electra", tmp_path / "electra")
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises(LayerProbeError, match="electra"):
        score([good, Model(broken, cache_dir=place)], task)
    entries = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file() and "embed" in str(path)}
    (broken / "model.safetensors").write_bytes(weights)
    done = score([good, Model(broken, cache_dir=place)], task)
    assert {layer.model for layer in done.layers} == {0, 1}
    assert {path: path.stat().st_mtime_ns for path in entries} == entries


def task_scores(model: int, n_layers: int, rows: list[tuple[int, int, float, int, float | None]]) -> TaskScores:
    """Return the scores of a model, of which layers before the first row are left out."""
    by_layer = {layer: score for _, layer, score, *_ in rows}
    metrics = {"spearman": tuple(by_layer.get(layer, 0.0) for layer in range(n_layers))}
    scores = LayerScores(
        split="test", method="cosine", primary="spearman", metrics=metrics, first_layer=min(by_layer, default=0)
    )
    return TaskScores(
        task="stsb", task_digest="0" * 64, kind="sts", scores=scores, model=model, n_items=100, unit="pair"
    )


def result_of(
    *rows: tuple[int, int, float, int, float | None],
    behind: tuple[float, ...] = (),
    candidates: tuple[int, ...] = (),
    floor: Floor | None = None,
) -> Scores:
    from tests.scoring.test_across import model_of

    compared = None
    if behind:
        ends = tuple((score - 1, score + 1) for _, _, score, *_ in rows)
        scores = tuple(score for _, _, score, *_ in rows)
        compared = AgainstBest(
            scores=scores, intervals=ends, behind=behind, candidates=candidates, level=0.95, tolerance=2.0, floor=floor
        )
    return Scores(
        models=(model_of(2, "org/small"), model_of(3, "org/large")),
        tasks=tuple(task_scores(i, n, [row for row in rows if row[0] == i]) for i, n in enumerate((3, 4))),
        level=0.95,
        compared=compared,
        layers=tuple(
            LayerOfModel(
                model=model,
                layer=layer,
                score=score,
                interval=(score - 1, score + 1),
                parameters=parameters,
                milliseconds=time,
                milliseconds_range=None if time is None else (0.9 * time, 1.2 * time),
            )
            for model, layer, score, parameters, time in rows
        ),
    )


MADE = result_of(
    (0, 1, 60.0, 10, 1.0),
    (0, 2, 79.0, 20, 2.0),
    (1, 2, 70.0, 30, 1.5),
    (1, 3, 80.0, 40, 3.0),
    behind=(22.0, 1.9, 11.5, 0.5),
    candidates=(1, 3),
    floor=Floor(value=50.0, by="always predicting 1"),
)


def test_the_fronts_are_of_size_and_of_time() -> None:
    assert [(each.model, each.layer) for each in MADE.front("parameters")] == [(0, 1), (0, 2), (1, 3)]
    assert [(each.model, each.layer) for each in MADE.front("milliseconds")] == [(0, 1), (1, 2), (0, 2), (1, 3)]
    front, flag = MADE.table.data["front"], MADE.table.data["flag"]
    assert [front[i] for i in (1, 2, 5, 6)] == ["size, time", "size, time", "time", "size, time"]
    assert [flag[i] for i in (1, 2, 5, 6)] == [
        None,
        "best of its model, may be best, smallest sufficient",
        None,
        "best",
    ]
    assert {front[i] or flag[i] for i in (0, 3, 4)} == {None}, "of layers that are left out"
    # what the ranges do not tell apart beats nothing, but for the same model size measured once
    near = result_of((0, 1, 60.0, 10, 2.0), (0, 2, 79.0, 20, 2.0), (1, 2, 70.0, 30, 2.1))
    assert [(each.model, each.layer) for each in near.front("milliseconds")] == [(0, 2), (1, 2)]
    unmeasured = result_of((0, 2, 50.0, 20, None), (1, 3, 80.0, 40, None))
    assert unmeasured.front("milliseconds") == ()
    assert "milliseconds" not in [column.name for column in unmeasured.table.shown]
