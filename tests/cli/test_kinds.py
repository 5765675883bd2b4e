"""Tasks of every kind on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification

from layerprobe.kinds.tokens import TaggedSentences
from tests.toy_questions import squad_json, toy_questions
from tests.toy_retrieval import write_jsonl
from tests.toy_task import toy_summaries, toy_task_of

from .conftest import QUICK, Layerprobe, Pair


def conll(folder: Path) -> Path:
    """Write words with tags as a folder of CoNLL files."""
    task = toy_task_of("entities", train=48, validation=24, test=24)
    folder.mkdir()
    for name, items in (("train", task.train), ("dev", task.validation), ("test", task.test)):
        assert isinstance(items, TaggedSentences)
        lines = []
        for words, tags in zip(items.words, items.tags, strict=True):
            lines += [f"{word}\t{task.labels[tag]}" for word, tag in zip(words, tags, strict=True)] + ["\t"]
        (folder / f"{name}.conll").write_text("\n".join(lines) + "\n")
    return folder


def squad(folder: Path) -> Path:
    """Write a hundred questions about fifty contexts, some without an answer."""
    path = folder.with_suffix(".json")
    path.write_text(json.dumps(squad_json(toy_questions(100, 0, impossible=0.2), second=True)))
    return path


def articles(folder: Path) -> Path:
    """Write sixty documents of five sentences, one of which is the summary."""
    toys, path = toy_summaries(60, 0), folder.with_suffix(".jsonl")
    rows = zip(toys.documents, toys.summaries, strict=True)
    return write_jsonl(path, ({"document": list(a), "summary": list(b)} for a, b in rows))


@pytest.mark.parametrize(
    ("write", "note", "metrics", "title", "load"),
    [
        (
            conll,
            "read as entities",
            ("entity f1", "entity precision", "entity recall", "accuracy"),
            "entity F1",
            AutoModelForTokenClassification,
        ),
        (squad, "read as question answering", ("f1", "exact match"), "exact match", AutoModelForQuestionAnswering),
        (articles, "chooses 1 sentence of each document", None, "ROUGE-L", None),
    ],
    ids=("entities", "answers", "summaries"),
)
def test_every_command_takes_other_items(
    write: Callable[[Path], Path],
    note: str,
    metrics: tuple[str, ...] | None,
    title: str,
    load: type | None,
    layerprobe: Layerprobe,
    pair: Pair,
    tmp_path: Path,
) -> None:
    task, page = ("-t", write(tmp_path / "toy")), tmp_path / "page.html"
    scored = layerprobe("score", pair[1], *task, "--report", page, "--json")
    assert scored.code == 0, scored.err
    assert f"note: {note}" in scored.err
    assert title in page.read_text()
    tuning = ("finetune", pair[1], *task, *QUICK, "--max-length", "40", "--json")
    tuned = layerprobe(*tuning, "--layers", "1", "--seeds", "1", "--save-models")
    assert tuned.code == 0, tuned.err
    (run,) = tuned.json["runs"]
    scan = layerprobe(*tuning, "--scan", "--seeds", "1")
    assert scan.code == 0, scan.err
    assert metrics is None or tuple(run["test"]) == tuple(scan.json["runs"][0]["test"]) == metrics
    exported = layerprobe("export", run["directory"], tmp_path / "exported")
    assert exported.code == 0, exported.err
    if load is not None:
        load.from_pretrained(tmp_path / "exported")  # type: ignore[attr-defined]


def test_files_of_a_folder_are_merged(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    for name, top in (("one", 4), ("two", 10)):
        rows = [f"{name}{i},{name}{i + 1},{top * i / 40}" for i in range(41)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["word1,word2,similarity", *rows]) + "\n")
    printed = layerprobe("extract", pair[0], "-t", tmp_path, "--merge", "--json").json
    assert "scaled 41 scores of one.csv from 0 .. 4 to 0 .. 1" in printed["notes"]
    assert any("into 57 train, 12 validation, 13 test" in note for note in printed["notes"])
