"""Documents with summaries: files, sentences, what outputs choose and what that scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.errors import TaskError
from layerprobe.kinds.summaries import SummaryItems, document_scores, is_summaries, rouge, sentences_of, summary_view
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.formats import Format
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task
from tests.toy_task import toy_summaries

ROWS = [
    {"document": f"Cat {i} sat. It rained! Dogs slept at {i}?", "summary": f"Dogs slept at {i}."} for i in range(40)
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def items(task: Task) -> SummaryItems:
    assert isinstance(task.train, SummaryItems)
    return task.train


# ---- files ---------------------------------------------------------------------------------------------


def test_a_file_is_recognised_and_split(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "articles.jsonl", ROWS))
    assert (task.kind, task.primary) == ("summarization", "rouge-l")
    assert [len(each) for each in (task.train, task.validation, task.test)] == [32, 4, 4]
    assert all(len(sentences) == 3 for sentences in items(task).documents)
    assert items(task).oracle == ((2,),) * 32
    assert "chooses 1 sentence of each document, the median of the training summaries" in task.notes
    assert load_task(ROWS, kind="summarization").digest == load_task(tmp_path / "articles.jsonl", name="other").digest
    (tmp_path / "marked.jsonl").write_text((tmp_path / "articles.jsonl").read_text(), encoding="utf-8-sig")
    assert load_task(tmp_path / "marked.jsonl").digest == task.digest


def test_a_folder_has_its_splits_and_sentences_can_be_given(tmp_path: Path) -> None:
    listed = [{"text": each["document"].split("! "), "title": ["A cat sat.", each["summary"]]} for each in ROWS]
    for number, split in enumerate(("train", "validation", "test")):
        write(tmp_path / f"{split}.jsonl", listed[10 * number : 10 * number + 10])
    task = load_task(tmp_path, kind="summarization", columns="text,title")
    assert items(task).documents[0] == ("Cat 0 sat. It rained", "Dogs slept at 0?")
    assert items(task).keep == 2
    assert any("10 documents" in said or "30 documents" in said for said in task.warnings)


def test_splits_in_memory_have_the_names_that_others_have() -> None:
    parts = {"train": ROWS[:20], "dev": ROWS[20:30], "test": ROWS[30:]}
    task = load_task(parts, kind="summarization")
    assert [len(each) for each in (task.train, task.validation, task.test)] == [20, 10, 10]
    with pytest.raises(TaskError, match="data has the splits a, b: expected train"):
        load_task({"a": ROWS, "b": ROWS}, kind="summarization")


def test_the_encoding_is_found_out_or_given(tmp_path: Path) -> None:
    rows = [{**row, "document": f"Größe {row['document']}"} for row in ROWS]
    plain, other = write(tmp_path / "a.jsonl", rows), tmp_path / "b.jsonl"
    other.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("cp1252"))
    digests = {
        load_task(file, kind="summarization", format=format, name="x").digest
        for file, format in ((plain, None), (other, None), (other, Format(encoding="cp1252")))
    }
    assert len(digests) == 1


def test_sentences_are_cut_by_a_simple_rule() -> None:
    assert sentences_of("one . two!\nthree\n...\n") == ("one .", "two!", "three")
    assert sentences_of(" . ") == ()


# ---- outputs -------------------------------------------------------------------------------------------


def test_the_highest_outputs_are_chosen_in_their_order() -> None:
    some = SummaryItems(documents=(("a", "b", "c"), ("d", "e")), summaries=(("x",), ("y",)), oracle=((2,), ()), keep=2)
    outputs = some.arranged(np.array([0.1, 3.0, 0.2, -1.0, -2.0]))
    assert outputs.tolist() == [[0.1, 3.0, 0.2], [-1.0, -2.0, 0.0]]
    assert some.chosen(outputs) == [("b", "c"), ("d", "e")]
    assert some.chosen(some.lead()) == [("a", "b"), ("d", "e")]
    assert some.chosen(some.best()) == [("a", "c"), ("d", "e")]
    assert some.targets.tolist() == [0, 0, 1, 0, 0]
    assert some.take([1, 0]).join(some.take([0])).documents == (("d", "e"), ("a", "b", "c"), ("a", "b", "c"))
    assert some.prompted("p ").texts == ("p a", "p b", "p c", "p d", "p e")
    assert some.prompted("p ").chosen(outputs) == some.chosen(outputs)


def test_scores_are_means_over_documents_and_so_are_influences() -> None:
    gold = toy_summaries(20, 0)
    outputs = np.random.default_rng(0).normal(size=(20, 5))
    by_hand = [
        rouge((document[int(row.argmax())],), summary)
        for document, summary, row in zip(gold.documents, gold.summaries, outputs, strict=True)
    ]
    found = evaluate_outputs("summarization", outputs, gold).metrics
    assert found == pytest.approx({name: 100 * np.mean([each[name] for each in by_hand]) for name in found})
    scores = document_scores(outputs, gold)["rouge-l"]
    np.testing.assert_allclose(item_influences("summarization", outputs, gold), 100 * (scores - scores.mean()))
    assert evaluate_outputs("summarization", gold.best(), gold).metrics["rouge-1"] == pytest.approx(100)


def test_a_page_shows_what_is_chosen_and_how_far_it_is_from_the_oracle() -> None:
    gold = toy_summaries(20, 0)
    task = Task(name="toy", kind="summarization", train=gold, validation=gold, test=gold)
    view = summary_view(task, gold)
    best, random = (
        view.read(outputs, None) for outputs in (gold.best(), np.random.default_rng(0).normal(size=(20, 5)))
    )
    np.testing.assert_allclose(best.errors, 0, atol=1e-9)
    assert list(best.words) == [" ".join(chosen) for chosen in gold.chosen(gold.best())]
    assert random.errors.max() > view.limit
    assert (np.array(random.values) <= np.array(best.values)).all()
    assert len(view.texts["Document"]) == len(view.gold) == 20


def test_a_first_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_MAX_RECORD", "1000")
    (tmp_path / "long.jsonl").write_text('{"document": "' + "a" * 1000 + '", "summary": "a"}')
    assert not is_summaries(tmp_path / "long.jsonl")
