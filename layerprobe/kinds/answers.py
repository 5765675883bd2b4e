"""Question answering: the place of an answer in a context; its items, metrics, files and the kind.

The output for a question is (first character, one past the last one, score of the span, score of no answer); the
first two are offsets in its context. Spans are scored like in SQuAD, by exact match and F1 of words.

Files have the layouts of SQuAD: JSON has articles with paragraphs, each a context with its questions (`qas`); a table,
as on the Hub, has one row per question, whose answers are lists of `text` and `answer_start`. SQuAD 2.0 also has
questions without an answer: `is_impossible` in JSON, empty lists in tables. Its plausible answers are ignored.

Source: Rajpurkar, Zhang, Lopyrev and Liang 2016 (EMNLP), section 6.1; without an answer: Rajpurkar, Jia and Liang 2018
(ACL), section 5.
"""

import functools
import re
import string
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, TaskError
from layerprobe.files.inputs import BYTES, open_regular, read_document
from layerprobe.files.serialisation import parse_json
from layerprobe.metrics.scores import mean_influences
from layerprobe.names import counted
from layerprobe.stats.floors import NO_ANSWER, Floor
from layerprobe.tasks.cells import TableLog, UnusableRowError
from layerprobe.tasks.explored import ItemView, ReadOutputs
from layerprobe.tasks.formats import Format, Grid, check_format
from layerprobe.tasks.kind import Kind, learning_of
from layerprobe.tasks.loading import load_rows
from layerprobe.tasks.rows import ColumnLayout, Row, TaskSource
from layerprobe.tasks.sources import data_files, first_columns, grid_of
from layerprobe.tasks.splitting import SPLITS
from layerprobe.tasks.values import Items, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A span of a context."""

    text: str
    """Text, as in the context."""
    start: int
    """Number of characters of the context before it."""

    @property
    def end(self) -> int:
        """One past its last character."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Questions(Items):
    """Questions with their contexts and answers."""

    by_item = ("ids", "questions", "contexts", "answers")
    ids: tuple[str, ...]
    """Ids of the questions in the source."""
    questions: tuple[str, ...]
    """Texts of the questions."""
    contexts: tuple[str, ...]
    """(question,) paragraphs; several questions can share one."""
    answers: tuple[tuple[Answer, ...], ...]
    """(question,) answers: any of them is right, and the first is trained on; empty if the context has no answer."""

    def __repr__(self) -> str:
        return f"<Questions: {len(self):,} about {len(set(self.contexts)):,} contexts>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """Questions and contexts: questions about one paragraph share a text."""
        return self.questions, self.contexts

    @property
    def windowed(self) -> tuple[str, ...]:
        """Contexts."""
        return self.contexts

    @property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """Contexts, which splits can share."""
        return "context", self.contexts

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...]:
        """(question,) first character of the first answer and one past its last; None without an answer."""
        return tuple((answers[0].start, answers[0].end) if answers else None for answers in self.answers)

    @property
    def gold(self) -> "Questions":
        """The questions themselves; outputs are spans of their contexts."""
        return self

    def __getitem__(self, rows: Sequence[int]) -> "Questions":
        return self.take(rows)

    def prompted(self, prompt: str) -> "Questions":
        """Return them with the prompt before every question; contexts stay, since answers are offsets in them."""
        return replace(self, questions=tuple(prompt + question for question in self.questions))


Array = NDArray[np.float64]
Words = tuple[str, ...]

ALWAYS = sys.float_info.max
"""Threshold if every question has an answer: no difference between scores exceeds it."""
BEFORE = 150
"""Characters of a context shown before its answer."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@functools.lru_cache(maxsize=2**16)
def answer_words(text: str) -> Words:
    """Return the words for comparing answers: lower case, without punctuation and English articles.

    Articles of other languages stay, as in the official script, which also scores XQuAD.

    Examples:
        >>> answer_words("The  U.S. (of an A.)")
        ('us', 'of')
    """
    return tuple(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(predicted: Words, gold: Words) -> float:
    """Return token F1, 0 .. 1, counting repeated words; for texts without words, equality.

    Examples:
        >>> word_f1(("denver", "broncos"), ("the", "denver", "broncos", "team"))
        0.6666666666666666
        >>> word_f1((), ()), word_f1((), ("denver",))
        (1.0, 0.0)
    """
    if not predicted or not gold:
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold))


def answer_scores(outputs: Array, gold: Questions, threshold: float) -> dict[str, float]:
    """Return the mean F1 and the share of exact matches over questions.

    Args:
        outputs: (n, 4) outputs, see the module.
        gold: The same questions.
        threshold: A question is unanswered if the score of no answer exceeds that of the span by more than this.
    """
    return {name: float(np.mean(values)) for name, values in _question_scores(outputs, gold, threshold).items()}


def answer_threshold(outputs: Array, gold: Questions) -> float:
    """Return the threshold that maximises F1, as in SQuAD 2.0; `ALWAYS` if every question has an answer.

    It is the score of no answer minus that of the span, at the last answered question; the lowest of equals.
    If answering none is best, it is below all of them (0 in the official script).
    """
    unanswerable = np.array([not answers for answers in gold.answers])
    if not unanswerable.any():
        return ALWAYS
    differences = outputs[:, 3] - outputs[:, 2]
    gained = _question_scores(outputs, gold, ALWAYS)["f1"] - unanswerable
    order = np.argsort(differences, kind="stable")
    rising, sums = differences[order], np.cumsum(gained[order])
    last_of_equals = np.append(rising[1:] > rising[:-1], True)
    best = int(np.argmax(np.where(last_of_equals, sums, -np.inf)))
    return float(rising[best]) if sums[best] > 0 else float(rising[0]) - 1


def predicted_answers(outputs: Array, contexts: tuple[str, ...], threshold: float) -> list[str]:
    """Return the answer to each question; an empty text if unanswered."""
    answered = outputs[:, 3] - outputs[:, 2] <= threshold
    return [
        context[int(first) : int(end)] if answered else ""
        for context, (first, end), answered in zip(contexts, outputs[:, :2], answered, strict=True)
    ]


def question_view(task: Any, items: Questions) -> ItemView:
    """Return the view of questions: the answer and its F1."""

    def read(outputs: Array, threshold: float | None) -> ReadOutputs:
        cut = ALWAYS if threshold is None else threshold
        f1 = 100 * _question_scores(outputs, items, cut)["f1"]
        answers = predicted_answers(outputs, items.contexts, cut)
        return ReadOutputs(f1.tolist(), 100 - f1, [answer or "no answer" for answer in answers])

    starts = (max(0, (span or (0, 0))[0] - BEFORE) for span in items.spans)
    return ItemView(
        form="shares",
        texts={
            "Question": items.questions,
            "Context": [context[start:] for context, start in zip(items.contexts, starts, strict=True)],
        },
        gold=[" | ".join(dict.fromkeys(one.text for one in right)) or "no answer" for right in items.answers],
        output="answer",
        error="100 minus F1",
        limit=50.0,
        read=read,
        embedded=(items.questions,),
    )


def _question_scores(outputs: Array, gold: Questions, threshold: float) -> dict[str, Array]:
    predicted = map(answer_words, predicted_answers(outputs, gold.contexts, threshold))
    scores = np.array(
        [
            (max(word_f1(words, one) for one in right), float(words in right))
            for words, right in zip(predicted, _right_words(gold), strict=True)
        ]
    )
    return {"f1": scores[:, 0], "exact match": scores[:, 1]}


def _right_words(gold: Questions) -> list[tuple[Words, ...]]:
    """Return the words of each right answer to every question; empty words are right without an answer."""
    return [
        tuple(words for answer in answers if (words := answer_words(answer.text))) or ((),) for answers in gold.answers
    ]


SUFFIXES = (".json", ".jsonl", ".parquet")
COLUMNS = ("question", "context", "answers")
_HEAD = 2**20
_ADVICE = "give JSON in the layout of SQuAD (data, paragraphs, qas), or rows with id, question, context and answers"

Question = tuple[str, str, str, tuple[Answer, ...]]
"""Id, text, context and answers of a question."""


def is_squad(path: Path) -> bool:
    """Return whether a file, or one in a folder, has questions in the layout of SQuAD; unreadable ones have none."""
    try:
        if path.is_dir():
            return any(map(is_squad, data_files(path, SUFFIXES)))
        if path.suffix.lower() != ".json":
            return path.suffix.lower() in SUFFIXES and set(COLUMNS) <= first_columns(path)
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except Exception:  # its problem is reported when it is read
        return False
    return b'"paragraphs"' in head or all(b'"%s"' % column.encode() in head for column in COLUMNS)


def load_questions(source: TaskSource) -> Task:
    """Load questions about contexts, in three splits.

    With a file named `...train...`, the dev and test files beside it with the same name are loaded, too. Missing splits
    are drawn at random from the train file; questions about one context stay together. Every split has at
    least 4 questions, and the train split at least one with an answer.
    """
    contexts = dict[str, str]()
    return load_rows(
        replace(source, data={role: _unpacked(data, source.name) for role, data in source.data.items()}),
        QUESTION_ANSWERING,
        functools.partial(_question, contexts=contexts),
        _splits,
        key=lambda question: (question[2], ""),
        together="the questions about one context",
        layout=ColumnLayout(
            columns=QUESTION_ANSWERING.columns,
            optional={"id": ("id",), _IMPOSSIBLE: ("isimpossible",)},
            lists=True,
        ),
        readers={".json": _read},
    )


_IMPOSSIBLE = "is_impossible"
_SPAN = ("text", "answer_start")


def _read(path: Path, format: Format) -> Grid:
    check_format(path, format, ())
    try:
        data = parse_json(read_document(path, BYTES).decode("utf-8-sig"))
    except (DataError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} cannot be read as JSON: {str(error).partition(chr(10))[0]}") from error
    return grid_of(_listed(_unpacked(data, str(path)), str(path)), str(path))


def _unpacked(data: Any, name: str) -> Any:
    """Return the articles of a mapping in the layout of SQuAD as rows, and anything else unchanged."""
    if not isinstance(data, Mapping) or "data" not in data:
        return data
    articles = _listed(data["data"], f"{name}: data")
    if articles and isinstance(articles[0], dict) and "paragraphs" not in articles[0]:
        return articles
    rows = list(_rows(articles, name))
    second = any(_IMPOSSIBLE in row for row in rows)  # whether the file marks questions without an answer
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


def _question(row: Row, contexts: dict[str, str]) -> Question:
    """Return the question of a row; UnusableRowError if it is incomplete.

    Args:
        row: Question, context and answers, optionally the id and whether there is no answer.
        contexts: Cleaned contexts by original ones.
    """
    text, context, answers, id_cell, impossible = row.values
    name = str(len(row.log.names) + 1 if id_cell is None else id_cell)
    problem, spans = "", _spans(answers, row.place)
    if name in row.log.names:
        problem = "with a duplicate id"
    elif not isinstance(text, str) or not text.strip():
        problem = "without a text"
    elif not isinstance(context, str) or not context.strip():
        problem = "without a context"
    elif impossible is not None and (impossible == "True") == bool(spans):
        problem = "with answers although is_impossible" if spans else "without an answer"
    row.log.names.add(name)
    if problem:
        raise UnusableRowError(problem, name=name)
    if context not in contexts:
        contexts[context] = row.log.clean(context)
    right = tuple(_answer(*span, contexts[context], name) for span in spans)
    return name, row.log.clean(text), contexts[context], right


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
        raise UnusableRowError("with an answer that is not a text with a whole number", name=name)
    answer = Answer(text=TableLog().clean(text), start=int(start))
    if answer.start < 0 or not answer.text.strip() or context[answer.start : answer.end] != answer.text:
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


QUESTION_ANSWERING = Kind(
    name="question answering",
    view=question_view,
    pairs=True,
    labelled=False,
    item="question",
    columns={name: (name,) for name in COLUMNS},
    metrics=("f1", "exact match"),
    score=answer_scores,
    # the threshold counts as given
    influences=lambda *outputs: {name: mean_influences(values) for name, values in _question_scores(*outputs).items()},
    threshold=answer_threshold,
    learning=learning_of("question answering"),
    zero_shot="own",
    one_target=True,
    items=Questions,
    loader=load_questions,
    recognises=is_squad,
    floors=lambda items: dict.fromkeys(
        ("f1", "exact match"),
        Floor(value=100 * float(np.mean([() in right for right in _right_words(items)])), by=NO_ANSWER),
    ),
)
