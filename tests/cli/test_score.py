"""layerprobe score: of one model, of several models and tasks, and of retrieval."""

import json
import re
import shutil
from pathlib import Path

import pytest

from layerprobe.kinds.tokens import TaggedSentences
from layerprobe.metrics.names import metric_title
from layerprobe.profiling.values import ProfileSettings
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from tests.cli.conftest import Layerprobe, Pair
from tests.few import few
from tests.models import save_tiny
from tests.toy_retrieval import collection, write_jsonl
from tests.toy_task import toy_task_of

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


@pytest.fixture
def both(pair: Pair, pairs_file: Path) -> tuple[str | Path, ...]:
    return ("score", *pair, "-t", pairs_file)


def test_models_are_compared_layer_by_layer(
    layerprobe: Layerprobe, both: tuple[str | Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "layerprobe.profiling.run.ALONE", ProfileSettings(lengths=(8,), batch_sizes=(1,), rounds=2, repeats=1)
    )
    page = tmp_path / "models.html"
    done = layerprobe(*both, "--report", page)
    assert done.code == 0, done.err
    lines = done.table
    assert lines[0].split()[:6] == ["model", "layer", "Spearman", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[1:9]] == ["electra"] * 4 + ["bert"] * 4
    wide = layerprobe(*both, "--wide").table[0]
    assert all(name in wide for name in (" ms ", "parameters", "at most behind"))
    assert done.commands[0][0] == "find"
    assert page.is_file()


def test_each_model_is_scored_as_alone_and_time_can_be_left_out(
    layerprobe: Layerprobe, both: tuple[str | Path, ...], pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    scores = layerprobe(*both, "--no-time", "--json", "--level", "0.9", "--split", "all").json
    assert not any("milliseconds" in row for row in scores["layers"])
    assert scores["level"] == 0.9
    assert {(row["scores"]["split"], row["n_items"]) for row in scores["tasks"]} == {("all", 60)}
    for i, model in enumerate(pair):
        alone = layerprobe("score", model, "-t", pairs_file, "--json").json["scores"]["metrics"]["spearman"]
        of_model = [row["score"] for row in scores["layers"] if row["model"] == i]
        assert of_model == pytest.approx(alone)
    for split, where in ((), ""), (("--split", "test"), " on test"):
        assert f"Spearman x 100{where}, 95 %" in layerprobe("score", pair[0], "-t", pairs_file, *split).out
    assert " ms " not in layerprobe(*both, "--no-time", "--wide").out


@pytest.fixture
def two(pairs_file: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two tasks: the pairs, and all but the last of them."""
    lines = pairs_file.read_text().splitlines(keepends=True)
    other = tmp_path / "fewer.csv"
    other.write_text("".join(lines[:-1]))
    return pairs_file, other


def test_one_layer_for_several_tasks(
    layerprobe: Layerprobe, pair: Pair, two: tuple[Path, Path], tmp_path: Path
) -> None:
    both = ("-t", two[0], "-t", two[1])
    result = layerprobe("score", pair[0], *both)
    assert result.code == 0, result.err
    assert result.table[0].split()[:4] == ["layer", two[0].name, "fewer.csv", "mean"]
    assert "is best over 2 tasks" in result.out
    for task in two:
        assert result.err.count(f"{task.name}: read as texts") == 1
        assert f"{task.name}: {task}: " not in result.err, "expected a name once"
    found = layerprobe("score", pair[0], *both, "--json").json
    scores = [task["scores"]["metrics"]["spearman"] for task in found["tasks"]]
    assert found["layers"][2]["score"] == pytest.approx((scores[0][2] + scores[1][2]) / 2)


def test_other_commands_check_too(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    model, reference = pair
    last = layerprobe("score", model, "-t", pairs_file, "--json").json["scores"]["metrics"]["spearman"][-1]
    assert layerprobe("score", model, "-t", pairs_file, "--fail-below", f"{last - 0.01}").code == 0
    failed = layerprobe("score", model, "-t", pairs_file, "--fail-below", f"{last + 0.01}")
    assert (failed.code, f"failed: the last layer scores {last:.2f}, below" in failed.err) == (3, True)

    failed = layerprobe("score", model, "-t", pairs_file, "--fail-below", f"{last + 1e-6:.9f}")
    printed, least = re.findall(r"\d+\.\d+", failed.err.splitlines()[-1])
    assert float(printed) < float(least) == pytest.approx(last + 1e-6, abs=1e-8)

    curve = layerprobe("compare", model, reference, "-t", pairs_file, "--json").json["comparisons"][0]["curve"][
        "values"
    ]
    assert layerprobe("compare", model, model, "-t", pairs_file, "--fail-below", "0.9999").code == 0
    failed = layerprobe("compare", model, reference, "-t", pairs_file, "--fail-below", f"{min(curve) + 0.01}")
    message = f"failed: the least similarity, at layer {curve.index(min(curve))}, is {min(curve):.4f}, below"
    assert (failed.code, message in failed.err) == (3, True), failed.err

    arguments = ("predict", model, "-t", pairs_file)
    drops = layerprobe(*arguments, "--json").json["drops"][0]["drop_layers"]
    checked = layerprobe(*arguments, "--fail-on-drop")
    assert (checked.code, "failed: layers are flagged from layer" in checked.err) == (3, True) if drops else (0, False)


@pytest.fixture(scope="session")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collection(tmp_path_factory.mktemp("beir") / "data", queries=30, documents=40, splits=(29,))


def test_json_has_every_query(layerprobe: Layerprobe, pair: Pair, beir: Path) -> None:
    options = ("--ranking", "dot", "--query-prompt", "a ", "--document-prompt", "b ", "--level", "0.9")
    scores = layerprobe("score", *pair, "-t", beir, *options, "--no-time", "--json").json
    first, second = scores["tasks"]
    assert [model["name"] for model in scores["models"]] == list(map(str, pair))
    assert first["scores"]["by_item"] != second["scores"]["by_item"]
    assert scores["settings"] == {"query_prompt": "a ", "document_prompt": "b "}
    assert first["scores"]["method"] == "dot"
    assert len(first["ids"]) == len(first["scores"]["by_item"]["ndcg@10"][3]) == 29


def test_a_model_that_cannot_read_a_collection_or_several_tasks_is_told(
    layerprobe: Layerprobe, pair: Pair, beir: Path, pairs_file: Path, tmp_path: Path
) -> None:
    greek = str.maketrans("cdefghijklmnop", "γδεζηθικλμνξοπ")
    for file in (folder := shutil.copytree(beir, tmp_path / "greek")).glob("*.jsonl"):
        records = map(json.loads, file.read_text().splitlines())
        greeks = [record | {"text": record["text"].translate(greek)} for record in records]
        write_jsonl(file, greeks)
    (other := tmp_path / "greek.csv").write_text(pairs_file.read_text().translate(greek))
    page, reason = tmp_path / "scores.html", "cannot read these texts"
    for tasks in ((folder,), (pairs_file, other)):
        done = layerprobe("score", pair[0], *(word for task in tasks for word in ("-t", task)), "--report", page)
        assert (done.code, done.err.count(reason)) == (0, 1), done.err
        assert reason in page.read_text()


@pytest.mark.parametrize("command", ["score", "probe"])
def test_layers_that_are_read_are_not_offered_to_be_cut(
    command: str, layerprobe: Layerprobe, pair: Pair, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (command, pair[1], "-t", pairs_file)
    assert layerprobe(*words).commands
    monkeypatch.setattr("layerprobe.encoders.loading.look", lambda encoder: "a reason")
    monkeypatch.setattr("layerprobe.encoders.loading.FIRST_USE_VERSION", 0)  # look again
    done = layerprobe(*words)
    assert not done.commands
    assert "■" not in done.out
    assert f"warning: the layers of {pair[1]} are read, not cut: a reason" in done.err
    assert '"read": "a reason"' in layerprobe(*words, "--json").out
    assert layerprobe("find", *words[1:]).error.endswith("; extract, score, probe and compare read its layers")
