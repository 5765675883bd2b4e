"""JSON of scores that version 0.2.0 wrote, in its three shapes, is read as `Scores`."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import layerprobe as lp
from layerprobe.errors import DataError
from layerprobe.scoring.values import Scores

ARCHIVE = Path(__file__).parents[1] / "archives" / "0.2.0.tar.gz"
MEAN = {"standard_error": 2.0, "lower": 40.0, "upper": 60.0, "level": 0.9, "effective_share": None}


@pytest.fixture(scope="module")
def one_task() -> dict[str, Any]:
    with tarfile.open(ARCHIVE) as archive:
        file = archive.extractfile("0.2.0/expected/score.json")
        assert file is not None
        content: dict[str, Any] = json.load(file)
    return content


def read(data: dict[str, Any]) -> Scores:
    scores = lp.from_json(Scores, json.dumps(data))
    assert lp.from_json(Scores, scores.to_json()) == scores, "what is written of it is read"
    assert len(scores.table)
    assert scores.summary
    return scores


def test_one_task(one_task: dict[str, Any]) -> None:
    scores = read(one_task)
    assert (scores.best_layer, scores.level) == (3, 0.95)
    assert list(scores.scores) == [layer.score for layer in scores.layers] == one_task["scores"]["metrics"]["spearman"]
    assert scores.tasks[0].task == "pairs.csv"
    with pytest.raises(DataError, match="expected model, task, kind, scores, got no model"):
        read({name: one_task[name] for name in ("task", "kind", "scores")})


def test_several_tasks(one_task: dict[str, Any]) -> None:
    tasks = [{"task": name, "task_digest": name, "kind": "sts", "scores": one_task["scores"]} for name in ("a", "b")]
    layers = [
        {"layer": layer, "mean": mean, "behind": 88.0 - mean, "interval": None if layer == 3 else [0.5, 2.0]}
        for layer, mean in enumerate((79.0, 79.0, 79.0, 88.0))
    ]
    scores = read({"model": one_task["model"], "tasks": tasks, "layers": layers, "level": 0.9})
    assert (scores.best_layer, scores.level, scores.names) == (3, 0.9, ("a", "b"))
    assert [layer.score for layer in scores.layers] == [79.0, 79.0, 79.0, 88.0]
    assert "scores best over 2 tasks" in scores.sentence
    alone = read({"model": one_task["model"], "tasks": tasks[:1], "layers": layers, "level": 0.9})
    assert "one task says nothing about others" in alone.sentence


def test_retrieval(one_task: dict[str, Any]) -> None:
    about = {"value": 1.0, "standard_error": 0.5, "lower": 0.0, "upper": 2.0, "level": 0.9, "p_value": 0.04}
    of_model = {
        "model": one_task["model"],
        "task": "scifact",
        "task_digest": "0" * 64,
        "n_documents": 100,
        "ranking": "dot",
        "query_ids": ["p", "q"],
        "by_query": {"ndcg@10": [[40.0, 60.0]] * 4},
        "means": {"ndcg@10": [{"value": 50.0 + layer, **MEAN} for layer in range(4)]},
        "differences": [{"label": f"layer {layer} less layer 3", **about} for layer in range(3)],
        "settings": {"query_prompt": "a "},
        "warnings": ["3 texts were cut"],
    }
    for data in (of_model, {"retrieval": [of_model]}):
        scores = read(data)
        assert (scores.best_layer, scores.method, scores.scores) == (3, "dot", (50.0, 51.0, 52.0, 53.0))
        assert (scores.settings, scores.warnings) == ({"query_prompt": "a "}, ("3 texts were cut",))
        assert scores.tasks[0].items is not None
        assert scores.tasks[0].items.ids == ("p", "q")
    both = read({"retrieval": [of_model, of_model | {"model": one_task["model"] | {"name": "other"}}]})
    assert (both.labels, len(both.layers)) == (("electra", "other"), 8)
