"""Data that are refused, and with which words: `python -m tests.tasks.refused` writes the answers anew, for review.

A line of `refused.txt` that begins with `$` is a call in the names of this module; the line below is its error.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas
from numpy import array
from pyarrow import table as arrow

from layerprobe.errors import ON_COMMAND_LINE, LayerProbeError
from layerprobe.kinds.answers import Answer, Questions
from layerprobe.kinds.retrieval import RetrievalItems
from layerprobe.kinds.retrieval_loading import load_retrieval
from layerprobe.kinds.sentences import load_word_similarity
from layerprobe.kinds.summaries import SummaryItems
from layerprobe.kinds.tokens import TaggedSentences, entity_scores
from layerprobe.kinds.triplets import Triplets
from layerprobe.tasks.cells import check_range, detect_range, parse_score
from layerprobe.tasks.evaluation import item_influences
from layerprobe.tasks.formats import Format, Grid, read_grid
from layerprobe.tasks.loading import load_task, load_texts
from layerprobe.tasks.rows import Columns, find_columns, layouts_of, text_columns
from layerprobe.tasks.splitting import folds_of, split_by_ratio
from layerprobe.tasks.values import Examples, Items, Task
from tests.images import digit_folder
from tests.toy_questions import squad_json, toy_questions
from tests.toy_retrieval import collection

__all__ = [
    "Format",
    "arrow",
    "digit_folder",
    "load_retrieval",
    "load_task",
    "load_texts",
    "load_word_similarity",
]
__all__ += ["Answer", "Examples", "Questions", "SummaryItems", "Triplets", "check_range", "detect_range", "parse_score"]
__all__ += ["TaggedSentences", "array", "entity_scores", "folds_of", "item_influences", "split_by_ratio"]
__all__ += ["pandas", "read_grid", "task_columns", "text_columns"]
SNAPSHOT = Path(__file__).with_name("refused.txt")
QA, NER, SUM = "question answering", "entities", "summarization"


def file(name: str, content: Any) -> Path:
    """Write a file: bytes, a text, lines of JSON, or JSON."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".json", ".jsonl") and not isinstance(content, str):
        content = "".join(json.dumps(row) + "\n" for row in content) if path.suffix == ".jsonl" else json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def csv(rows: Sequence[Sequence[Any]], name: str = "a.csv") -> Path:
    """Write rows with commas."""
    return file(name, "".join(",".join(map(str, row)) + "\n" for row in rows))


def scored(n: int, word: str = "text") -> list[tuple[str, str, float]]:
    """Return pairs with a score of 0, 1.25, 2.5 or 5."""
    return [(f"{word} {i}", f"other {word} {i}", (0, 1.25, 2.5, 5)[i % 4]) for i in range(n)]


def folder(**labels: str) -> Path:
    """Write pairs with the labels of train, dev and test, one a word."""
    for name, words in {"train": "yes no " * 4, "dev": "yes no " * 4, "test": "yes no " * 4, **labels}.items():
        rows = [(f"{name} {i}", f"{name} other {i}", label.strip("-")) for i, label in enumerate(words.split())]
        csv([("sentence1", "sentence2", "label"), *rows], f"splits/{name}.csv")
    return Path("splits")


def cells(*rows: str) -> Grid:
    """Return a table without a header, bars between its cells."""
    split = tuple(tuple(row.split("|")) for row in rows)
    return Grid(name="t.csv", header=None, rows=split, numbers=tuple(range(1, len(rows) + 1)))


def task_columns(grid: Grid, columns: Columns | None, kind: str | None) -> object:
    """Find the columns of texts and the target."""
    return find_columns(grid, columns, layouts_of(kind))


def beir(name: str = "", content: Any = "", *, queries: int = 48, splits: tuple[int, ...] = (48,)) -> Path:
    """Write a folder in the layout of BEIR, and one of its files anew."""
    path = collection(Path("beir"), queries=queries, splits=splits)
    if name:
        file(f"beir/{name}", content)
    return path


def questions(**changes: Any) -> list[dict[str, Any]]:
    """Return rows of 60 questions of which the fourth and the sixth are changed."""
    items = toy_questions(60, 0)
    rows = [
        {"id": id, "question": text, "context": context, "answers": {"text": ["z"], "answer_start": [answers[0].start]}}
        for id, text, context, answers in zip(items.ids, items.questions, items.contexts, items.answers, strict=True)
    ]
    return [row | (changes if i in (3, 5) else {}) for i, row in enumerate(rows)]


def squad(broken: str = "") -> dict[str, Any]:
    """Return questions as articles, one of whose answers lacks a key."""
    whole = squad_json(toy_questions(60, 0))
    whole["data"][0]["paragraphs"][1]["qas"][1]["answers"][0].pop(broken, None)
    return whole


def words(old: str = "", new: str = "", *, n: int = 60, name: str = "a.conll") -> Path:
    """Write sentences with tags, a word a line, one of them changed."""
    text = "".join(f"w{i}\tO\nAnn\tB-per\nLee\tI-per\n\n" for i in range(n))
    return file(name, text.replace(old, new, 1) if old else text)


def articles(*first: Any, n: int = 40) -> list[Any]:
    """Return documents with summaries after some others."""
    rows = ({"document": f"Cat {i} sat. It rained! Dogs slept at {i}?", "summary": f"Dogs at {i}."} for i in range(n))
    return [*first, *rows]


def triplets(n: int) -> list[dict[str, str]]:
    """Return anchors with a positive and a negative."""
    return [{"anchor": f"a {i}", "positive": f"p {i}", "negative": f"n {i}"} for i in range(n)]


def searched(**changes: Any) -> RetrievalItems:
    """Return three queries, the first of which is a document, two of which are changed."""
    fields: dict[str, Any] = {
        "queries": ("a", "b", "c"),
        "documents": ("d", "e", "f", "g"),
        "relevance": (((1, 1.0),), ((2, 1.0),), ((3, 2.0),)),
        "trained": ((), (), ()),
        "own": (0, -1, -1),
    }
    return RetrievalItems(**fields | changes)


def task(kind: str, items: Items, **fields: Any) -> Task:
    """Return a task of the same items in all splits."""
    return Task(name="t", kind=kind, train=items, validation=items, test=items, **fields)


def answered(call: str) -> str:
    """Return the error of a call, in an empty folder."""
    with TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        try:
            value = eval(call, dict(globals()))
        except LayerProbeError as error:
            return f"{type(error).__name__}: {error}".replace(f"{temporary}/", "")
    return f"nothing is refused: {value!r}"


def calls() -> list[str]:
    """Return the calls that the snapshot has."""
    return [line.removeprefix("$ ") for line in SNAPSHOT.read_text().splitlines() if line.startswith("$ ")]


def snapshot() -> str:
    """Return every call with its error."""
    return "".join(f"$ {call}\n{answered(call)}\n" for call in calls())


if __name__ == "__main__":
    ON_COMMAND_LINE.set(True)  # as in tests/conftest.py
    SNAPSHOT.write_text(snapshot())
