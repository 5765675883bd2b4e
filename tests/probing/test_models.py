"""A model and a task: kinds whose items are rows of embeddings, by cosines or across folds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import KFold

import layerprobe as lp
from layerprobe.comparison import arrays
from layerprobe.errors import DataError
from layerprobe.kinds.retrieval import RetrievalItems
from layerprobe.probing import linear, probes, targets
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, Task
from tests.few import few

FEW: dict[str, Any] = {"foldings": 1}
MODEL = lp.Model(str(lp.embedded_model("rtd")), device="cpu")
TASK = lp.embedded_task(train=60, validation=40, test=60)
COPIES = "only copies of an item stay in one fold, so folds share texts"


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(probes, "REFITTED_NUMBERS", 0)  # which takes most of the time


def task_of(folder: Path, kind: str, splits: tuple[str, ...] = ("train", "validation", "test")) -> Task:
    """Return a task of a kind from pairs of the embedded language."""
    rows = [row for split in splits for row in _rows(split)]
    middle = sorted(len(a) for a, _, _ in rows)[len(rows) // 2]
    lines = {
        "paraphrase": ["first\tsecond\tlabel", *(f"{a}\t{b}\t{int(t > 0.5)}" for a, b, t in rows)],
        "entailment": ["first\tsecond\tlabel", *(f"{a}\t{b}\t{'near' if t > 0.5 else 'far'}" for a, b, t in rows)],
        "classification": ["text\tlabel", *(f"{a}\t{'long' if len(a) > middle else 'short'}" for a, _, _ in rows)],
        "regression": ["text\tvalue", *(f"{a}\t{len(a)}.5" for a, _, _ in rows)],
        "retrieval": ["query\tdocument", *(f"{a}\t{b}" for a, b, t in rows if t > 0.4)],
        "triplets": [
            "anchor\tpositive\tnegative",
            *(f"{a}\t{b}\t{rows[i - 1][1]}" for i, (a, b, t) in enumerate(rows) if t > 0.4),
        ],
    }
    path = folder / f"{kind}.tsv"
    path.write_text("\n".join(lines[kind]) + "\n")
    return lp.load_task(str(path), kind=kind)


def _rows(split: str) -> list[tuple[str, str, float]]:
    items = TASK.examples(split)  # type: ignore[arg-type]
    assert items.second is not None
    return list(zip(items.first, items.second, items.targets, strict=True))


@pytest.mark.parametrize("kind", ["sts", "retrieval"])
def test_what_score_scores_is_scored_alike(tmp_path: Path, kind: str) -> None:
    task = TASK if kind == "sts" else task_of(tmp_path, kind)
    result, scores = lp.probe(MODEL, task, **FEW), lp.score(MODEL, task)
    assert [each.metrics[result.primary] for each in result.layers] == pytest.approx(scores.scores)
    assert result.kind == {"sts": "pairs", "retrieval": "queries"}[kind]
    assert result.n_items == len(task.split(task.scored))
    assert result.model is not None
    assert all(each.error is not None for each in result.layers)
    assert result.summed is None


def test_a_query_that_is_a_document_does_not_find_itself(tmp_path: Path) -> None:
    task = task_of(tmp_path, "retrieval")
    splits = {split: task.split(split) for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    items = {split: each for split, each in splits.items() if isinstance(each, RetrievalItems)}
    documents, queries = items["test"].documents, [query for each in items.values() for query in each.queries]
    places = {query: len(documents) + place for place, query in enumerate(queries)}
    found = {
        split: replace(each, documents=(*documents, *queries), own=tuple(places[query] for query in each.queries))
        for split, each in items.items()
    }
    task = replace(task, **found)
    result, scores = lp.probe(MODEL, task, **FEW, weighted_sum=False), lp.score(MODEL, task)
    assert [each.metrics[result.primary] for each in result.layers] == pytest.approx(scores.scores)


@pytest.mark.parametrize("kind", few(["classification", "regression", "entailment"], lambda kind: kind == "entailment"))
def test_texts_are_predicted_across_folds_of_all(tmp_path: Path, kind: str) -> None:
    task = task_of(tmp_path, kind, ("train",))
    result = lp.probe(MODEL, task, **FEW, weighted_sum=False)
    assert result.primary == KINDS[kind].metrics[0]
    assert result.n_items == len(task.split("all"))
    assert len(result.layers) == 9
    assert result.notes == ("scored on all items",)
    if kind == "regression":
        assert result.best.metrics["spearman"] > 50


def test_pairs_that_are_all_linked_are_probed(tmp_path: Path) -> None:
    rows = [("the same text", b, "near" if target > 0.5 else "far") for _, b, target in _rows("train")]
    path = tmp_path / "linked.tsv"
    path.write_text("\n".join(["first\tsecond\tlabel", *map("\t".join, rows)]) + "\n")
    result = lp.probe(MODEL, lp.load_task(str(path), kind="entailment"), **FEW, weighted_sum=False)
    assert len(result.layers) == 9
    assert result.notes[1].endswith(COPIES)


def test_copies_of_an_item_are_in_one_fold() -> None:
    items = Examples(first=("a", "a", "b", "a"), second=("x", "y", "a", "x"), targets=(0.0, 1.0, 1.0, 0.0))
    groups, (note,) = targets._kept_together(items, links_of(items), folds=3)
    assert groups is not None
    assert groups.tolist() == [0, 1, 2, 0]
    assert note == f"4 of 4 items are linked by shared texts: {COPIES}"
    few = Examples(first=("a", "a", "b", "c"), second=("x", "y", "z", "v"), targets=(0.0, 1.0, 1.0, 0.0))
    kept, notes = targets._kept_together(few, links_of(few), folds=3)
    assert kept is not None
    assert (kept.tolist(), notes) == ([0, 0, 1, 2], ())


def test_a_first_layer_that_is_the_same_everywhere_is_left_out(tmp_path: Path) -> None:
    model = lp.Model(str(lp.embedded_model("rtd")), device="cpu", pooling="cls")
    result = lp.probe(model, TASK, **FEW, weighted_sum=False)
    assert [each.layer for each in result.layers] == list(range(1, 9))
    assert "the same for all texts" in result.left_out["layer 0"]


@pytest.mark.parametrize("kind", ["regression", "retrieval"])
def test_warnings_about_the_embeddings_are_kept(tmp_path: Path, kind: str) -> None:
    model, task = replace(MODEL, max_length=4), task_of(tmp_path, kind)
    result = lp.probe(model, task, **FEW, weighted_sum=False)
    cut = [warning for warning in result.warnings if "were cut at 4 tokens" in warning]
    assert len(cut) == 1
    assert lp.load(lp.save(result, tmp_path / "probing.json")).warnings == result.warnings
    if kind == "regression":
        embeddings = lp.extract(model, task.train)
        given = lp.probe(embeddings, list(task.train.gold), **FEW, weighted_sum=False)
        assert sum("were cut at 4 tokens" in warning for warning in given.warnings) == 1


@pytest.mark.parametrize("kind", ["sts", "regression"])
def test_embeddings_in_the_store_are_read_in_parts(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, rows_read: list[int]
) -> None:
    task = TASK if kind == "sts" else task_of(tmp_path, kind)
    lp.extract(MODEL, task.texts())
    rows_read.clear()
    monkeypatch.setattr(probes, "NUMBERS", 64 * 16)
    monkeypatch.setattr(arrays, "NUMBERS", 64 * 16)
    monkeypatch.setattr(linear, "NUMBERS", 64 * 16)
    lp.probe(MODEL, task, **FEW, weighted_sum=False)
    assert max(rows_read) <= 16


@pytest.mark.parametrize("kind", ["classification", "entailment", "regression"])
def test_the_fitted_probe_predicts_new_texts(tmp_path: Path, kind: str) -> None:
    task = task_of(tmp_path, kind)
    result = lp.probe(MODEL, task, weighted_sum=False, cv=KFold(3), **FEW)
    items = task.split("all")
    sides = [lp.extract(MODEL, side) for side in items.sides]  # type: ignore[attr-defined]
    rows = np.concatenate([np.asarray(side)[:, result.best_layer] for side in sides], axis=1)
    predicted = result.estimator().predict(rows)
    if kind == "regression":
        assert np.corrcoef(predicted, items.gold)[0, 1] > 0.5
    else:
        assert set(predicted) <= set(task.labels)
        assert (predicted == np.array(task.labels)[np.array(items.gold, dtype=int)]).mean() > 0.6
    assert result.settings.folds == 3


@pytest.mark.parametrize("mean", [False, True])
def test_the_weighted_sum_of_pairs_reads_first_texts_of_all_layers_and_then_second_ones(
    tmp_path: Path, mean: bool
) -> None:
    task = task_of(tmp_path, "entailment")
    result, items = lp.probe(MODEL, task, cv=3, weighted_mean=mean, **FEW), task.split("all")
    layers, weights = [layer.layer for layer in result.layers], [layer.weight for layer in result.layers]
    sides = [np.asarray(lp.extract(MODEL, side))[:, layers] for side in items.sides]  # type: ignore[attr-defined]
    read = [np.tensordot(side, weights, (1, 0)) if mean else side.reshape(len(side), -1) for side in sides]  # type: ignore[arg-type]
    alone = np.concatenate([side[:, layers.index(result.best_layer)] for side in sides], axis=1)
    assert result.summed is not None
    summed = result.estimator(result.summed.name).predict(np.concatenate(read, axis=1))
    assert (summed == result.estimator().predict(alone)).mean() > 0.8


def test_tasks_that_no_row_is_scored_on_are_for_score(tmp_path: Path) -> None:
    for kind in ("triplets", "paraphrase"):
        with pytest.raises(DataError, match=f"got kind {kind}: use score"):
            lp.probe("no such model", task_of(tmp_path, kind))
