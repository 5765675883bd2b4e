"""Loads questions in the layouts of SQuAD as splits. Knows files, the Hub and data in memory.

JSON has articles with paragraphs, each a context with its questions (`qas`); a table, as on the Hub, has a row a
question: id, question, context and answers, which are lists of `text` and of `answer_start`. SQuAD 2.0 also has
questions without an answer: `is_impossible` in JSON, empty lists in tables. Its plausible answers are not read.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerprobe.errors import TaskError
from layerprobe.files.atomic import from_home
from layerprobe.files.inputs import BYTES, open_regular, read_document
from layerprobe.files.serialisation import parse_json
from layerprobe.kinds.answers.kind import QUESTION_ANSWERING, Answer, Questions, is_in
from layerprobe.names import counted, some
from layerprobe.tasks.discovery import data_files, roles_of, split_files
from layerprobe.tasks.hub import hub_splits, is_on_hub
from layerprobe.tasks.loading import TaskSource, checked_splits
from layerprobe.tasks.memory import check_lengths
from layerprobe.tasks.splitting import SPLITS
from layerprobe.tasks.tables import check_size, columns_in, read_json_lines
from layerprobe.tasks.texts import Cleaner
from layerprobe.tasks.values import Task

KIND = QUESTION_ANSWERING.name
SUFFIXES = (".json", ".jsonl", ".parquet")
COLUMNS = ("question", "context", "answers")
_HEAD = 2**20


def is_squad(path: Path) -> bool:
    """Return whether a file, or one of a folder, has questions in the layout of SQuAD; what cannot be read has none."""
    try:
        if path.is_dir():
            return any(map(is_squad, data_files(path, SUFFIXES)))
        if path.suffix.lower() == ".parquet":
            from pyarrow.parquet import read_schema

            return set(COLUMNS) <= set(read_schema(path).names)
        if path.suffix.lower() not in SUFFIXES:
            return False
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except Exception:  # whatever is wrong with it is said where it is read
        return False
    if path.suffix.lower() == ".jsonl":
        head = head.lstrip().partition(b"\n")[0]
        return all(b'"%s"' % column.encode() in head for column in COLUMNS)
    return b'"paragraphs"' in head or all(b'"%s"' % column.encode() in head for column in COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A question as the source has it."""

    place: str
    """File and what it is called there."""
    id: str
    question: Any
    context: Any
    answers: Any
    """[(text, start)]"""
    impossible: bool


def load_questions(source: TaskSource) -> Task:
    """Load questions about contexts, in three splits.

    A file named `...train...` brings the dev and test file beside it that is named like it. Splits that are
    missing are drawn at random from the train file; the questions about one context stay together. Every split has at
    least 4 questions, and the train split one with an answer.
    """
    if source.columns is not None or source.format.set_fields:
        named = "columns" if source.columns is not None else source.format.set_fields[0]
        raise TaskError(f"expected no {named} for {KIND}: {', '.join(COLUMNS)} are read by name, JSON is UTF-8")
    records, notes = _records(source)
    warnings: list[str] = []
    splits = {role: _questions(name, rows, source.skip_empty, warnings) for role, (name, rows) in records.items()}
    keys = [(context, "") for context in splits["train"].contexts]
    splits, drawn = checked_splits(source, splits, keys, unit="question", together="the questions about one context")
    if not any(splits["train"].answers):
        raise TaskError(f"no question of the train split of {source.name} has an answer: expected at least one")
    train, validation, test = (splits[role] for role in SPLITS)
    return Task(
        name=source.name,
        kind=KIND,
        train=train,
        validation=validation,
        test=test,
        notes=(*notes, *drawn, _said(splits)),
        warnings=tuple(warnings),
    )


def _said(splits: Mapping[str, Questions]) -> str:
    parts = []
    for role in SPLITS:
        items = splits[role]
        without = sum(not answers for answers in items.answers)
        unanswerable = f", {without:,} without an answer" if without else ""
        parts.append(f"{len(items):,} about {counted(len(set(items.contexts)), 'context')}{unanswerable} in {role}")
    return f"read as {KIND}; questions: {'; '.join(parts)}"


# ---- sources --------------------------------------------------------------------------------------------


def _records(source: TaskSource) -> tuple[dict[str, tuple[str, list[_Record]]], list[str]]:
    """Return name and records by split, and where they come from; what was given goes before files beside it."""
    names = {role: f"{source.name} {role}" for role in source.other_splits}
    read = {role: (names[role], _read(data, names[role])) for role, data in source.other_splits.items()}
    data = source.source
    if not isinstance(data, (str, Path)):
        splits = _splits_in_memory(data, source.name)
        named = {role: f"{source.name} {key}" if len(splits) > 1 else source.name for role, (key, _) in splits.items()}
        return {role: (named[role], _read(data, named[role])) for role, (_, data) in splits.items()} | read, []
    if is_on_hub(data):
        on_hub = {role: (f"{data} {role}", split) for role, split in hub_splits(str(data)).items()}
        return {role: (name, _read(split, name)) for role, (name, split) in on_hub.items()} | read, []
    files, notes = split_files(from_home(data), read, suffixes=SUFFIXES)
    return {role: (str(file), _read(file, str(file))) for role, file in files.items()} | read, notes


def _splits_in_memory(data: Any, name: str) -> dict[str, tuple[str, Any]]:
    if isinstance(data, Mapping) and "data" not in data and not set(COLUMNS) <= set(data):
        return {role: (str(key), data[key]) for role, key in roles_of(data, name).items()}
    return {"train": ("", data)}


def _read(data: Any, name: str) -> list[_Record]:
    """Return the records of a file or of what is in memory; raise TaskError unless it is in a layout of SQuAD."""
    if isinstance(data, (str, Path)):
        data = _parsed(from_home(data))
    elif isinstance(data, Mapping) and set(COLUMNS) <= set(data):
        check_lengths(data, name)
        data = [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    elif "datasets" in sys.modules and isinstance(data, sys.modules["datasets"].Dataset):
        data = data.to_list()
    elif callable(to_records := getattr(data, "to_dict", None)):
        data = to_records("records")
    check_size(name, cells=len(data) if isinstance(data, Sequence) else 0)
    records = list(_of_articles(data, name) if isinstance(data, Mapping) and "data" in data else _of_rows(data, name))
    if not records:
        raise TaskError(f"{name} has no questions: expected at least one")
    return records


def _parsed(path: Path) -> Any:
    if not path.is_file():
        raise TaskError(f"{path} does not exist: expected a file of questions")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise TaskError(
            f"{path} has the extension {path.suffix!r}: expected one of {', '.join(SUFFIXES)} for {KIND}, in a layout "
            f"of SQuAD with {', '.join(COLUMNS)}, got a file{columns_in(path)}"
        )
    try:
        if suffix == ".jsonl":
            return [record for _, record in read_json_lines(path)]
        if suffix == ".json":
            return parse_json(read_document(path, BYTES).decode("utf-8-sig"))
        import pandas

        return pandas.read_parquet(path).to_dict("records")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from error
    except TaskError:
        raise
    except Exception as error:  # of JSON, of UTF-8, or whatever bytes lead pyarrow to
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TaskError(f"{path} cannot be read as {suffix[1:].upper()}: {reason}") from error


def _of_articles(data: Mapping[str, Any], name: str) -> Iterator[_Record]:
    articles = data["data"]
    if isinstance(articles, list) and articles and isinstance(articles[0], dict) and "paragraphs" not in articles[0]:
        yield from _of_rows(articles, name)
        return
    second = False  # whether the file says of questions that they have no answer
    records = []
    for a, article in enumerate(_listed(articles, f"{name}: data")):
        for p, paragraph in enumerate(
            _listed(_get(article, "paragraphs", f"{name}: data[{a}]"), f"{name}: paragraphs")
        ):
            place = f"{name}: data[{a}].paragraphs[{p}]"
            for number, q in enumerate(_listed(_get(paragraph, "qas", place), f"{place}.qas")):
                records.append((f"{place}.qas[{number}]", _get(paragraph, "context", place), q))
                second = second or (isinstance(q, dict) and "is_impossible" in q)
    for number, (place, context, q) in enumerate(records):
        answers = [
            (_get(answer, "text", place), _get(answer, "answer_start", place))
            for answer in _listed(_get(q, "answers", place), f"{place}: answers")
        ]
        impossible = second and q.get("is_impossible") is True
        yield _Record(
            place=name,
            id=str(q.get("id", number)),
            question=_get(q, "question", place),
            context=context,
            answers=answers,
            impossible=impossible,
        )


def _of_rows(data: Any, name: str) -> Iterator[_Record]:
    for number, row in enumerate(_listed(data, name), 1):
        place = f"{name}, row {number}"
        answers = _plain(_get(row, "answers", place))
        if isinstance(answers, Mapping) and isinstance(answers.get("text"), str):
            answers = [answers]
        if isinstance(answers, Mapping):
            texts, starts = (
                _listed(_plain(_get(answers, key, f"{place}: answers")), f"{place}: {key}")
                for key in ("text", "answer_start")
            )
            if len(texts) != len(starts):
                raise TaskError(f"{place}: expected as many texts as starts, got {len(texts)} and {len(starts)}")
            answers = list(zip(texts, starts, strict=True))
        elif isinstance(answers, list):
            answers = [(_get(answer, "text", place), _get(answer, "answer_start", place)) for answer in answers]
        else:
            raise TaskError(f"{place}: expected answers with text and answer_start, got {str(answers)[:40]!r}")
        yield _Record(
            place=name,
            id=str(row.get("id", number)),
            question=_get(row, "question", place),
            context=_get(row, "context", place),
            answers=answers,
            impossible=not answers,
        )


def _plain(value: Any) -> Any:
    """Return arrays, as pandas reads them from Parquet, and tuples as lists, and anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value


def _listed(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise TaskError(
            f"{place}: expected a list, got {str(value)[:40]!r}: give JSON in the layout of SQuAD (data, paragraphs, "
            "qas), or rows with id, question, context and answers"
        )
    return value


def _get(value: Any, key: str, place: str) -> Any:
    if not isinstance(value, Mapping) or key not in value:
        got = f"the keys {', '.join(map(str, value))[:80]}" if isinstance(value, Mapping) else repr(str(value)[:40])
        raise TaskError(
            f"{place}: expected an object with {key!r}, got {got}: give JSON in the layout of SQuAD (data, paragraphs, "
            "qas), or rows with id, question, context and answers"
        )
    return value[key]


# ---- questions ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Problems:
    """Problems of questions, by kind."""

    ids: dict[str, list[str]] = field(default_factory=dict)

    def add(self, problem: str, id: str) -> None:
        self.ids.setdefault(problem, []).append(id)

    def __str__(self) -> str:
        parts = []
        for problem, ids in self.ids.items():
            parts.append(f"{counted(len(ids), 'question')} {problem} ({some([id[:40] for id in ids], 3)})")
        return "; ".join(parts)


def _questions(name: str, records: Sequence[_Record], skip: bool, warnings: list[str]) -> Questions:
    """Return the valid questions; raise TaskError for the others, unless they are skipped."""
    cleaner, problems, seen = Cleaner(), _Problems(), Counter[str]()
    usable: list[tuple[str, str, str, tuple[Answer, ...]]] = []
    contexts: dict[str, str] = {}
    for record in records:
        seen[record.id] += 1
        problem, cleaned = _checked(record, cleaner, contexts)
        if seen[record.id] > 1:
            problem = "with an id that another has"
        if problem is not None:
            problems.add(problem, record.id)
        else:
            usable.append((record.id, *cleaned))
    if problems.ids and not skip:
        raise TaskError(f"{name}: {problems}: mend them, or go on without them with --skip-empty (skip_empty=True)")
    if problems.ids:
        warnings.append(f"{name}: left out {problems}")
    warnings.extend(cleaner.warnings(name, "question"))
    ids, questions, texts, answers = zip(*usable, strict=True) if usable else ((), (), (), ())
    return Questions(ids=ids, questions=questions, contexts=texts, answers=answers)


def _checked(
    record: _Record, cleaner: Cleaner, contexts: dict[str, str]
) -> tuple[str | None, tuple[str, str, tuple[Answer, ...]]]:
    """Return a question's problem, None without one, and its texts and answers."""
    nothing: tuple[str, str, tuple[Answer, ...]] = ("", "", ())
    if not isinstance(record.question, str) or not record.question.strip():
        return "without a text", nothing
    if not isinstance(record.context, str) or not record.context.strip():
        return "without a context", nothing
    if record.context not in contexts:
        contexts[record.context] = cleaner.clean(record.context)
    context = contexts[record.context]
    if record.impossible != (not record.answers):
        wrong = "with answers, and without one by is_impossible" if record.impossible else "without an answer"
        return wrong, nothing
    answers = []
    for text, start in record.answers:
        if not isinstance(text, str) or isinstance(start, bool) or not hasattr(start, "__index__"):
            return "with an answer that is no text and whole number", nothing
        answer = Answer(text=Cleaner().clean(text), start=int(start))
        if not is_in(answer, context):
            return "whose answer is not in the context at answer_start", nothing
        answers.append(answer)
    return None, (cleaner.clean(record.question), context, tuple(answers))
