"""Queries, documents and relevance from folders, tables and a stand-in for the Hub."""

from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest

from layerprobe.errors import TaskError
from layerprobe.kinds.retrieval_loading import Collection, load_retrieval, searched
from layerprobe.tasks.values import Task
from tests.toy_retrieval import items_of, write_jsonl

CORPUS = [
    {"_id": "d1", "title": "Apples", "text": "grow on trees"},
    {"_id": "d2", "title": "", "text": "Pears are green"},
    {"_id": "d3", "title": "Plums", "text": "are 한국어"},
    {"_id": "d4", "text": "Cherries\x00 are red", "metadata": {"url": "x"}},
]
QUERIES = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(6)]
QRELS = [("q0", "d1", 1), ("q1", "d2", 2), ("q2", "d3", 1), ("q2", "d4", 3), ("q3", "d4", 1), ("q4", "d1", 0)]
TEXTS = {"d1": "Apples grow on trees", "d2": "Pears are green", "d3": "Plums are 한국어", "d4": "Cherries  are red"}
HEADER = ("query-id", "corpus-id", "score")


def write_tsv(path: Path, rows: list[tuple[Any, ...]], header: tuple[str, ...] = HEADER) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in ([header] if header else []) + rows))
    return path


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "corpus.jsonl", CORPUS)
    write_jsonl(tmp_path / "queries.jsonl", QUERIES)
    write_tsv(tmp_path / "qrels" / "test.tsv", QRELS)
    return tmp_path


def pairs(task: Task) -> set[tuple[str, str, float]]:
    """Query id, document id and gain, of documents that are told by their texts."""
    items, ids = items_of(task), {text: name for name, text in TEXTS.items()}
    return {
        (name, ids.get(items.documents[document], items.documents[document]), gain)
        for name, relevant in zip(items.ids, items.relevance, strict=True)
        for document, gain in relevant
    }


def test_a_folder_in_the_layout_of_beir(beir: Path) -> None:
    task = load_retrieval(beir)
    assert task.name == str(beir)
    assert items_of(task).ids == ("q0", "q1", "q2", "q3")
    assert items_of(task).queries[2] == "question 2"
    assert items_of(task).documents == tuple(TEXTS.values())[::-1], "expected the highest id first"
    assert pairs(task) == {each for each in QRELS if each[2]}
    assert task.notes == (
        "read 4 queries, 4 documents and 5 relevant pairs",
        "left out 2 of 6 queries without a relevant document",
    )
    assert task.warnings == (f"{beir / 'corpus.jsonl'}: replaced control characters by spaces in 1 text",)


def test_other_formats_and_places_give_the_same_task(beir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    pandas.DataFrame([{"id": e["_id"], "title": e.get("title"), "text": e["text"]} for e in CORPUS]).to_parquet(
        other / "corpus.parquet"
    )
    pandas.DataFrame(QUERIES).to_csv(other / "queries.csv", index=False)
    pandas.DataFrame(QRELS, columns=["qid", "docid", "rel"]).to_csv(other / "qrels.tsv", sep="\t", index=False)
    assert load_retrieval(other).digest == load_retrieval(str(beir)).digest


@pytest.mark.parametrize("rows", [QRELS, [(query, 0, document, gain) for query, document, gain in QRELS]])
def test_judgements_without_a_header(beir: Path, rows: list[tuple[Any, ...]]) -> None:
    expected = load_retrieval(beir).digest
    write_tsv(beir / "qrels" / "test.tsv", rows, header=())
    assert load_retrieval(beir).digest == expected


def test_relevance_begins_where_it_is_asked_for(beir: Path) -> None:
    write_tsv(beir / "qrels" / "test.tsv", [(f"q{i}", "d1", 1 + i % 3) for i in range(6)])
    assert items_of(load_retrieval(beir, relevant_from=2)).ids == ("q1", "q2", "q4", "q5")
    assert {gain for *_, gain in pairs(load_retrieval(beir, relevant_from=2))} == {2, 3}


def test_what_cannot_be_scored_is_left_out_and_counted(beir: Path) -> None:
    write_jsonl(beir / "corpus.jsonl", [*CORPUS, {"_id": "q0", "text": "question  0"}, {"_id": "d5", "text": " "}])
    write_jsonl(beir / "queries.jsonl", [*QUERIES, {"_id": "q6", "text": ""}])
    extra = [("q0", "q0", 1), ("q0", "d5", 1), ("q0", "d9", 1), ("q9", "d1", 1), ("q6", "d1", 1), ("q1", "d2", 1)]
    write_tsv(beir / "qrels" / "test.tsv", [*QRELS, *extra])
    task = load_retrieval(beir)
    assert pairs(task) == {each for each in QRELS if each[2]}, "expected the higher of two gains"
    assert items_of(task).documents[0] == "question  0"
    assert task.warnings[1:] == (
        f"{beir / 'corpus.jsonl'}: replaced control characters by spaces in 1 text",
        f"{beir / 'queries.jsonl'}: left out queries that cannot be used, 1 with an empty text (line 7)",
        "4 judgements left out: the query or the document is unknown or empty",
        "1 judgement left out: the document has the id and the text of its query",
    )
    dropped = "left out documents that cannot be used, 1 with an empty text (line 6)"
    assert task.warnings[0] == f"{beir / 'corpus.jsonl'}: {dropped}"


@pytest.mark.parametrize("shift", [0, 1])
def test_queries_and_documents_may_both_be_numbered_from_0(beir: Path, shift: int) -> None:
    write_jsonl(beir / "corpus.jsonl", [{"_id": str(i), "text": f"answer {i}"} for i in range(30)])
    write_jsonl(beir / "queries.jsonl", [{"_id": str(i), "text": f"question {i}"} for i in range(30)])
    write_tsv(beir / "qrels" / "test.tsv", [(i, (i + shift) % 30, 1) for i in range(30)])
    task = load_retrieval(beir)
    assert pairs(task) == {(str(i), f"answer {(i + shift) % 30}", 1.0) for i in range(30)}
    assert items_of(task).own == (-1,) * 30
    assert task.warnings == (
        "30 documents with the id of a query but another text, or judged relevant to it: ranked like all others, "
        "unlike in BEIR's evaluation",
    )


def test_the_query_itself_may_have_more_text_or_other_spaces() -> None:
    queries = {"a": "one two", "b": "one two", "c": "three", "d": "four", "e": "five"}
    documents = {"b": "a title one  two", "a": "one\ntwo", "c": "thirty", "d": "four and more"}
    judged = [("a", "b", 1.0), ("b", "a", 1.0), ("c", "a", 1.0), ("d", "d", 1.0), ("e", "d", 1.0)]
    items = searched("toy", Collection(queries=queries, documents=documents), judged)[0]
    assert items.documents == tuple(documents[name] for name in "dcba")
    assert items.own == (3, 2, -1, -1, -1), "c has another text, d is judged relevant, e has no document"


ROWS = [("a", "x", 5), ("b", "y", 4), ("a", "y", 1), ("c", "x", 2), ("d", "z", 3), ("e", "w", 0)]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        (("query", "document", "relevance"), None),
        (("Question", "passage", "score"), None),
        (("one", "two", "three"), "one,two,three"),
        ((), "0,1,2"),
    ],
)
def test_a_table(tmp_path: Path, header: tuple[str, ...], columns: Any) -> None:
    task = load_retrieval(write_tsv(tmp_path / "pairs.tsv", ROWS, header=header), columns=columns)
    texts = dict(zip(items_of(task).ids, items_of(task).queries, strict=True))
    assert tuple(texts.values()) == ("a", "b", "c", "d")
    assert items_of(task).documents == ("w", "z", "y", "x"), (
        "expected documents that are relevant to nothing among them"
    )
    assert {(texts[query], document, gain) for query, document, gain in pairs(task)} == set(ROWS[:-1])


Splits = dict[str, list[dict[str, Any]]]
JUDGED = [dict(zip(HEADER, row, strict=True)) for row in QRELS]
PLAIN = [{"_id": each["_id"], "title": each.get("title", ""), "text": each["text"]} for each in CORPUS]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Splits]:
    """Data sets by repository and configuration."""
    found: dict[tuple[str, str], Splits] = {}

    def names(repository: str) -> list[str]:
        return [config for owner, config in found if owner == repository]

    def load(repository: str, config: str | None = None) -> datasets.DatasetDict:
        splits = found[repository, config or "default"]
        return datasets.DatasetDict({key: datasets.Dataset.from_list(rows) for key, rows in splits.items()})

    monkeypatch.setattr(datasets, "get_dataset_config_names", names)
    monkeypatch.setattr(datasets, "load_dataset", load)
    return found


@pytest.mark.parametrize(
    ("name", "corpus", "queries", "qrels"),
    [
        ("org/a", ("org/a", "corpus"), ("org/a", "queries"), ("org/a", "default")),
        ("org/a", ("org/a", "corpus"), ("org/a", "queries"), ("org/a", "qrels")),
        ("org/a", ("org/a", "corpus"), ("org/a", "queries"), ("org/a-qrels", "default")),
        ("org/a:de", ("org/a", "de-corpus"), ("org/a", "de-queries"), ("org/a", "de-qrels")),
        ("org/a:de", ("org/a", "corpus-de"), ("org/a", "queries-de"), ("org/a", "qrels-de")),
    ],
)
def test_layouts_of_the_hub(
    hub: dict[tuple[str, str], Splits],
    beir: Path,
    name: str,
    corpus: tuple[str, str],
    queries: tuple[str, str],
    qrels: tuple[str, str],
) -> None:
    hub[corpus], hub[queries] = {"corpus": PLAIN}, {"queries": QUERIES}
    hub[qrels] = {"train": JUDGED[:1], "test": JUDGED}
    task = load_retrieval(name)
    assert (task.name, task.digest) == (name, load_retrieval(beir).digest)
    with pytest.raises(TaskError, match="no judgements for the split dev, only for train, test: choose"):
        load_retrieval(name, split="dev")


def test_a_hub_data_set_of_pairs(hub: dict[tuple[str, str], Splits]) -> None:
    hub["org/pairs", "default"] = {"train": [{"query": query, "answer": text} for query, text, _ in ROWS]}
    assert items_of(load_retrieval("org/pairs")).documents == ("w", "z", "y", "x")
    hub["org/pairs", "default"]["test"] = [{"query": f"q{i}", "answer": f"a{i}"} for i in range(5)]
    assert items_of(load_retrieval("org/pairs")).documents == ("a4", "a3", "a2", "a1", "a0")
