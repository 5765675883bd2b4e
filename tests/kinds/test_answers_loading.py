"""Questions in the layouts of SQuAD: files, tables, splits by context, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from layerprobe.errors import TaskError
from layerprobe.kinds.answers import Questions
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.splitting import folds_of
from layerprobe.tasks.values import Task
from tests.toy_questions import squad_json, toy_questions

KIND = "question answering"


def written(path: Path, data: Any) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in data) if path.suffix == ".jsonl" else json.dumps(data)
    path.write_text(lines)
    return path


def rows(items: Questions) -> list[dict[str, Any]]:
    return [
        {
            "id": id,
            "question": question,
            "context": context,
            "answers": {"text": [each.text for each in answers], "answer_start": [each.start for each in answers]},
        }
        for id, question, context, answers in zip(
            items.ids, items.questions, items.contexts, items.answers, strict=True
        )
    ]


def whole(task: Task) -> Questions:
    items = task.train.join(task.validation).join(task.test)
    assert isinstance(items, Questions)
    return items.take(sorted(range(len(items)), key=lambda row: int(items.ids[row][1:])))


ALL = toy_questions(60, 0, impossible=0.3)
ANSWERED = toy_questions(60, 0)


def test_every_layout_is_the_same_task(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame(rows(ALL))
    frame.to_parquet(tmp_path / "squad.parquet")
    listed = [
        {**row, "answers": [{"text": t, "answer_start": s} for t, s in zip(*row["answers"].values(), strict=True)]}
        for row in rows(ALL)
    ]
    pandas.DataFrame(listed).to_parquet(tmp_path / "listed.parquet")
    sources: list[Any] = [
        written(tmp_path / "squad.json", squad_json(ALL, second=True)),
        written(tmp_path / "rows.jsonl", rows(ALL)),
        tmp_path / "squad.parquet",
        tmp_path / "listed.parquet",
    ]
    for source in sources:
        assert whole(load_task(source)) == ALL
    in_memory: list[Any] = [rows(ALL), listed, frame, squad_json(ALL, second=True), {"train": rows(ALL)}]
    for source in in_memory:
        assert whole(load_task(source, kind=KIND)) == ALL
    task = load_task(sources[0])
    assert task.kind == KIND
    assert any("without an answer in train" in note for note in task.notes)
    assert load_task(sources[1]).digest == task.digest


def test_one_answer_needs_no_list() -> None:
    single = [{**row, "answers": {key: right[0] for key, right in row["answers"].items()}} for row in rows(ANSWERED)]
    assert whole(load_task(single, kind=KIND)).answers == tuple(right[:1] for right in ANSWERED.answers)


def test_splits_keep_contexts_apart(tmp_path: Path) -> None:
    task = load_task(written(tmp_path / "squad.json", squad_json(ANSWERED)))
    contexts = [
        set(items.contexts) for items in (task.train, task.validation, task.test) if isinstance(items, Questions)
    ]
    assert not contexts[0] & contexts[1]
    assert not (contexts[0] | contexts[1]) & contexts[2]
    assert "the questions about one context are in one split" in task.notes[0]
    for fold in folds_of(task, 3):
        assert isinstance(fold.train, Questions)
        assert isinstance(fold.validation, Questions)
        assert not set(fold.train.contexts) & set(fold.validation.contexts)


def test_questions_of_one_context_are_linked() -> None:
    links = links_of(ANSWERED)
    assert links is not None
    _, contexts = links.sides
    assert (contexts[::2] == contexts[1::2]).all()


def broken(**changes: Any) -> list[dict[str, Any]]:
    return [{**row, **(changes if i in (3, 5) else {})} for i, row in enumerate(rows(ANSWERED))]


def test_questions_that_are_skipped_are_counted() -> None:
    task = load_task(broken(answers={"text": ["z"], "answer_start": [1]}), kind=KIND, skip_empty=True)
    assert len(whole(task)) == 58
    assert any(
        "left out questions that cannot be used, 2 whose answer is not in the context" in warning
        for warning in task.warnings
    )


def test_without_an_answer_where_the_layout_has_no_such_thing(tmp_path: Path) -> None:
    path = written(tmp_path / "squad.json", squad_json(toy_questions(120, 0, impossible=0.3)))
    with pytest.raises(TaskError, match=r"56 questions cannot be used: .* without an answer"):
        load_task(path)
    assert all(whole(load_task(path, skip_empty=True)).answers)
