"""A collection that a tiny model learns to search: a query is three letters of its documents."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layerprobe.kinds.retrieval import RetrievalItems
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task
from tests.toy_task import LETTERS


def collection(folder: Path, *, queries: int = 48, documents: int = 30, splits: tuple[int, ...] = (28, 10, 10)) -> Path:
    """Write a folder in the layout of BEIR, with two relevant documents for most queries."""
    rng = random.Random(0)
    texts = [" ".join(rng.sample(LETTERS, 4 + i % 5)) for i in range(documents)]
    asked, judged = list[str](), []
    for query in range(queries):
        relevant = sorted({query % documents, (7 * query) % documents})
        text = " ".join(rng.sample(texts[relevant[0]].split(), 3))
        while text in asked:
            text = " ".join(rng.sample(texts[relevant[0]].split(), 3))
        asked.append(text)
        judged.append([(query, document, 1 + (document % 3 == 0)) for document in relevant])
    (folder / "qrels").mkdir(parents=True)
    write_jsonl(
        folder / "corpus.jsonl", [{"_id": f"d{i:02}", "title": "", "text": text} for i, text in enumerate(texts)]
    )
    write_jsonl(folder / "queries.jsonl", [{"_id": f"q{i}", "text": text} for i, text in enumerate(asked)])
    begin = 0
    names = ("train", "dev", "test") if len(splits) == 3 else ("test",)
    for name, size in zip(names, splits, strict=True):
        rows = [f"q{q}\td{d:02}\t{gain}" for each in judged[begin : begin + size] for q, d, gain in each]
        (folder / "qrels" / f"{name}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
        begin += size
    return folder


def toy_retrieval(folder: Path) -> Task:
    """A task of 28, 10 and 10 queries and 30 documents."""
    return load_task(collection(folder / "toy"))


def items_of(task: Task, split: Any = "test") -> RetrievalItems:
    items = task.split(split)
    assert isinstance(items, RetrievalItems)
    return items


def write_jsonl(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
