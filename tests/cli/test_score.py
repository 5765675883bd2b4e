"""layerprobe score; and scores of every kind of task from the store, without the weights of the model."""

import json
from pathlib import Path

import pytest

from layerprobe.kinds.tokens import TaggedSentences
from layerprobe.metrics.names import metric_title
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from tests.few import few
from tests.models import save_tiny
from tests.toy_task import toy_task_of

from .conftest import Layerprobe, Pair

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OWN = ("sts", "paraphrase", "entailment", "regression", "classification", "entities", "tags")


def write(task: Task, folder: Path) -> Path:
    """A folder with the three splits of a task."""
    folder.mkdir()
    for split in ("train", "validation", "test"):
        examples = task.split(split)  # type: ignore[arg-type]
        if isinstance(examples, TaggedSentences):
            named = [[task.labels[tag] for tag in tags] for tags in examples.tags]
            rows = [{"tokens": w, "tags": t} for w, t in zip(examples.words, named, strict=True)]
        else:
            targets = [task.labels[int(target)] if task.labels else 5 * target for target in examples.targets]
            columns = {"text1": examples.first, "text2": examples.second, "label": targets}
            if not examples.second:
                columns = {"text": examples.first, "label": targets}
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def hub_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of org/tiny in the cache of the hub's client, which is offline."""
    repository = tmp_path / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    snapshot = save_tiny("bert", repository / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


@pytest.mark.parametrize("kind", few(OWN, lambda kind: kind in ("sts", "classification", "entities")))
def test_scores_are_a_table_and_need_no_weights_once_texts_are_embedded(
    layerprobe: Layerprobe, hub_model: Path, tmp_path: Path, kind: str
) -> None:
    folder = write(toy_task_of(kind), tmp_path / "task")
    command = ("score", "org/tiny", "-t", folder, "--kind", kind, "--json")
    first = layerprobe(*command)
    assert first.code == 0, first.err
    assert first.json["scores"]["method"] == ("cosine" if kind in ("sts", "paraphrase") else "probe")
    assert tuple(first.json["scores"]["metrics"]) == KINDS[kind].metrics
    (hub_model / "model.safetensors").unlink()
    again = layerprobe(*command)
    assert again.json == first.json
    done = layerprobe(*command[:-1])
    header, *rows = done.table[:5]
    assert header.split()[0] == "layer"
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3"]
    assert any(row.endswith(("  best", "  best guess")) for row in rows) == (not done.out.startswith("No layer "))
    wide = layerprobe(*command[:-1], "--wide")
    assert all(metric_title(metric) in wide.table[0] for metric in KINDS[kind].metrics)
    other = layerprobe(*command, "--split", "validation")
    assert other.code == (0 if kind == "paraphrase" else 1), "expected that only its validation split is embedded"


def test_retrieval_needs_no_weights_once_texts_are_embedded(
    layerprobe: Layerprobe, hub_model: Path, pairs_file: Path
) -> None:
    source = ("-t", pairs_file, "--columns", "0,1,2", "--relevant-from", "2.5", "--query-prompt", "a ")
    first = layerprobe("score", "org/tiny", *source, "--json").json
    (hub_model / "model.safetensors").unlink()
    assert layerprobe("score", "org/tiny", *source, "--json").json == first
    refused = layerprobe("score", "org/tiny", *source, "--document-prompt", "b ")
    assert (refused.code, "org/tiny" in refused.error) == (1, True)


def test_what_splits_share_is_said_where_something_is_learnt_from_one(
    layerprobe: Layerprobe, pair: Pair, tmp_path: Path
) -> None:
    words = [f"{a} {b}" for a in "abcdef" for b in "abcdef"]
    rows = [f"{words[i]},{words[(7 * i + k) % 36]},{(i * k) % 6}" for i in range(36) for k in (1, 2)]
    (data := tmp_path / "pairs.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]))
    scored = layerprobe("score", pair[0], "-t", data)
    assert "note: all 72 are scored, whatever their split, as nothing is trained" in scored.err
    assert "also in the" not in scored.err
    planned = layerprobe("find", pair[0], "-t", data, "--dry-run")
    assert (
        "split, in other pairs, and stay there: scores on new texts may be lower; to measure those, give" in planned.err
    )
    assert "are scored" not in planned.err
