"""Questions in the layouts of SQuAD as rows: id, question, context and answers.

JSON has articles with paragraphs, each a context with its questions (`qas`); a table, as on the Hub, has a row a
question, whose answers are lists of `text` and of `answer_start`. SQuAD 2.0 also has questions without an answer:
`is_impossible` in JSON, empty lists in tables. Its plausible answers are not read.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, TaskError
from layerprobe.files.inputs import BYTES, open_regular, read_document
from layerprobe.files.serialisation import parse_json
from layerprobe.kinds.answers.kind import QUESTION_ANSWERING, Answer, Questions, is_in
from layerprobe.names import counted
from layerprobe.tasks.cells import Cleaner, UnusableRowError
from layerprobe.tasks.columns import declared_columns
from layerprobe.tasks.examples import Cells
from layerprobe.tasks.formats import Format
from layerprobe.tasks.loading import TaskSource, load_rows
from layerprobe.tasks.sources import data_files
from layerprobe.tasks.splitting import SPLITS
from layerprobe.tasks.tables import Table, check_format, first_columns, table_of_columns
from layerprobe.tasks.values import Task

SUFFIXES = (".json", ".jsonl", ".parquet")
COLUMNS = tuple(QUESTION_ANSWERING.columns)
_HEAD = 2**20
_ADVICE = "give JSON in the layout of SQuAD (data, paragraphs, qas), or rows with id, question, context and answers"

Question = tuple[str, str, str, tuple[Answer, ...]]
"""Its id, its text, the context and the answers."""


def is_squad(path: Path) -> bool:
    """Return whether a file, or one of a folder, has questions in the layout of SQuAD; what cannot be read has none."""
    try:
        if path.is_dir():
            return any(map(is_squad, data_files(path, SUFFIXES)))
        if path.suffix.lower() != ".json":
            return path.suffix.lower() in SUFFIXES and set(COLUMNS) <= first_columns(path)
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except Exception:  # whatever is wrong with it is said where it is read
        return False
    return b'"paragraphs"' in head or all(b'"%s"' % column.encode() in head for column in COLUMNS)


def load_questions(source: TaskSource) -> Task:
    """Load questions about contexts, in three splits.

    A file named `...train...` brings the dev and test file beside it that is named like it. Splits that are
    missing are drawn at random from the train file; the questions about one context stay together. Every split has at
    least 4 questions, and the train split one with an answer.
    """
    ids, contexts = set[str](), dict[str, str]()

    def columns_of(table: Table) -> tuple[Table, Sequence[int]]:
        ids.clear()  # which are distinct in a split
        return _columns(table, source)

    return load_rows(
        replace(source, data={role: _unpacked(data, source.name) for role, data in source.data.items()}),
        QUESTION_ANSWERING,
        functools.partial(_question, ids=ids, contexts=contexts),
        _splits,
        key=lambda question: (question[2], ""),
        together="the questions about one context",
        columns_of=columns_of,
        readers={".json": _read},
    )


def _columns(table: Table, source: TaskSource) -> tuple[Table, Sequence[int]]:
    """Return where question, context and answers are, and the id and whether there is no answer, if the table says."""
    table, columns = declared_columns(table, source.settings.columns, QUESTION_ANSWERING)
    header = table.header or ()
    return table, (*columns, *(header.index(name) for name in ("id", _IMPOSSIBLE) if name in header))


# ---- articles -> rows -----------------------------------------------------------------------------------


_IMPOSSIBLE = "is_impossible"
_SPAN = ("text", "answer_start")


def _read(path: Path, format: Format) -> Table:
    check_format(path, format, ())
    try:
        data = parse_json(read_document(path, BYTES).decode("utf-8-sig"))
    except (DataError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} cannot be read as JSON: {str(error).partition(chr(10))[0]}") from error
    rows = _listed(_unpacked(data, str(path)), str(path))
    names = dict.fromkeys(name for row in rows for name in row)
    return table_of_columns(str(path), {name: [row.get(name) for row in rows] for name in names})


def _unpacked(data: Any, name: str) -> Any:
    """Return the articles of a mapping in the layout of SQuAD as rows, and anything else as it is."""
    if not isinstance(data, Mapping) or "data" not in data:
        return data
    articles = _listed(data["data"], f"{name}: data")
    if articles and isinstance(articles[0], dict) and "paragraphs" not in articles[0]:
        return articles
    rows = list(_rows(articles, name))
    second = any(_IMPOSSIBLE in row for row in rows)  # whether the file says of questions that they have no answer
    return [{**row, _IMPOSSIBLE: second and row.get(_IMPOSSIBLE) is True} for row in rows]


def _rows(articles: Sequence[Any], name: str) -> Iterator[dict[str, Any]]:
    for a, article in enumerate(articles):
        for p, paragraph in enumerate(
            _listed(_get(article, "paragraphs", f"{name}: data[{a}]"), f"{name}: paragraphs")
        ):
            place = f"{name}: data[{a}].paragraphs[{p}]"
            for number, q in enumerate(_listed(_get(paragraph, "qas", place), f"{place}.qas")):
                of_question = f"{place}.qas[{number}]"
                row = {"id": str(q.get("id", number)), "question": _get(q, "question", of_question)}
                row |= {"context": _get(paragraph, "context", place)}
                answers = _listed(_get(q, "answers", of_question), f"{of_question}: answers")
                row |= {"answers": [{key: _get(one, key, of_question) for key in _SPAN} for one in answers]}
                yield row | ({_IMPOSSIBLE: q[_IMPOSSIBLE]} if _IMPOSSIBLE in q else {})


def _listed(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise TaskError(f"{place}: expected a list, got {str(value)[:40]!r}: {_ADVICE}")
    return value


def _get(value: Any, key: str, place: str) -> Any:
    if not isinstance(value, Mapping) or key not in value:
        got = f"the keys {', '.join(map(str, value))[:80]}" if isinstance(value, Mapping) else repr(str(value)[:40])
        raise TaskError(f"{place}: expected an object with {key!r}, got {got}: {_ADVICE}")
    return value[key]


# ---- rows -> questions ----------------------------------------------------------------------------------


def _question(row: Cells, ids: set[str], contexts: dict[str, str]) -> Question:
    """Return the question of a row; UnusableRowError where it has not what it should have.

    Args:
        row: Question, context and answers, maybe the id and whether there is no answer.
        ids: Those of earlier rows.
        contexts: Cleaned by what they were.
    """
    further = dict(zip(row.columns[len(COLUMNS) :], row.values[len(COLUMNS) :], strict=True))
    name, impossible = str(further.get("id", len(ids) + 1)), further.get(_IMPOSSIBLE)
    text, context, answers = row.values[: len(COLUMNS)]
    problem, spans = "", _spans(answers, row.place)
    if name in ids:
        problem = "with an id that another has"
    elif not isinstance(text, str) or not text.strip():
        problem = "without a text"
    elif not isinstance(context, str) or not context.strip():
        problem = "without a context"
    elif impossible is not None and (impossible == "True") == bool(spans):
        problem = "with answers, and without one by is_impossible" if spans else "without an answer"
    ids.add(name)
    if problem:
        raise UnusableRowError(problem, name=name)
    if context not in contexts:
        contexts[context] = row.cleaner.clean(context)
    right = tuple(_answer(*span, contexts[context], name) for span in spans)
    return name, row.cleaner.clean(text), contexts[context], right


def _spans(answers: Any, place: str) -> list[tuple[Any, Any]]:
    """Return texts and starts of a mapping of lists, a mapping of one answer, or a list of mappings."""
    if isinstance(answers, list):
        return [(_get(answer, "text", place), _get(answer, "answer_start", place)) for answer in answers]
    if not isinstance(answers, Mapping):
        raise TaskError(f"{place}: expected answers with text and answer_start, got {str(answers)[:40]!r}")
    texts, starts = (_get(answers, key, f"{place}: answers") for key in _SPAN)
    if isinstance(texts, str):
        return [(texts, starts)]
    texts, starts = (_listed(values, f"{place}: {key}") for key, values in zip(_SPAN, (texts, starts), strict=True))
    if len(texts) != len(starts):
        raise TaskError(f"{place}: expected as many texts as starts, got {len(texts)} and {len(starts)}")
    return list(zip(texts, starts, strict=True))


def _answer(text: Any, start: Any, context: str, name: str) -> Answer:
    if not isinstance(text, str) or isinstance(start, bool) or not hasattr(start, "__index__"):
        raise UnusableRowError("with an answer that is no text and whole number", name=name)
    answer = Answer(text=Cleaner().clean(text), start=int(start))
    if not is_in(answer, context):
        raise UnusableRowError("whose answer is not in the context at answer_start", name=name)
    return answer


def _splits(parts: Mapping[str, Sequence[Question]], notes: list[str], warnings: list[str]) -> dict[str, Questions]:
    if not any(answers for *_, answers in parts["train"]):
        raise TaskError("no question of the train split has an answer: expected at least one")
    splits, remarks = {}, []
    for role in SPLITS:
        ids, texts, contexts, answers = (tuple(side) for side in zip(*parts[role], strict=True))
        splits[role] = Questions(ids=ids, questions=texts, contexts=contexts, answers=answers)
        without = sum(not spans for spans in answers)
        unanswerable = f", {without:,} without an answer" if without else ""
        remarks.append(f"{len(ids):,} about {counted(len(set(contexts)), 'context')}{unanswerable} in {role}")
    notes.append(f"read as {QUESTION_ANSWERING.name}; questions: {'; '.join(remarks)}")
    return splits
