"""Queries, documents and relevance, loaded. Knows the layouts of folders, hub data sets and tables of pairs."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from layerprobe.errors import TaskError
from layerprobe.files.atomic import from_home
from layerprobe.kinds.retrieval.values import RetrievalTask, same_text
from layerprobe.tasks.columns import Columns, judgement_columns, query_columns, record_columns
from layerprobe.tasks.discovery import data_files
from layerprobe.tasks.examples import MIN_EXAMPLES
from layerprobe.tasks.hub import hub_retrieval_tables, is_on_hub
from layerprobe.tasks.scores import parse_score
from layerprobe.tasks.tables import Table, read_table
from layerprobe.tasks.texts import Cleaner, count


def load_retrieval(
    source: str | Path,
    *,
    columns: Columns | None = None,
    split: str = "test",
    relevant_from: float | None = None,
) -> RetrievalTask:
    """Load queries, documents and which documents are relevant to which query.

    A folder is in the layout of BEIR: `corpus` and `queries` with the columns _id, title (of documents, where there
    is one, put before the text) and text, and `qrels/test` with query-id, corpus-id and score; JSONL, CSV, TSV or
    Parquet. A hub data set has the same as configurations. Anything else is a table of queries with documents: all
    of its documents are searched for every query. Texts are cleaned as in `load_task`; the warnings count what was
    left out.

    Args:
        source: A folder, the hub name of a data set with `:part` where it has several, or a table.
        columns: Of a table: query, document and relevance, or query and document, all of them relevant; names, or
            indices from 0, in a list or joined by commas. By default usual names are known.
        split: Which judgements of a folder or hub data set.
        relevant_from: Judgements below this are not relevant; by default all above 0 are. A judgement is the gain.

    Returns:
        The task; queries without a relevant document are left out and counted.

    Raises:
        TaskError: If a file, the data set, a column, an id or a score is not what it should be, or too little is left.
    """
    if relevant_from is not None and not math.isfinite(relevant_from):
        raise TaskError(f"expected a finite relevance to begin at, got {relevant_from}")
    path = from_home(source)
    if path.is_dir():
        if columns is not None:
            raise TaskError(f"expected no columns with the folder {path}: its files have _id, text, query-id, ...")
        tables = folder_tables(path, split)
    elif is_on_hub(source):
        tables = hub_retrieval_tables(str(source), split)
    else:
        tables = {"pairs": read_table(path)}
    texts = _of_pairs(tables["pairs"], columns) if "pairs" in tables else collection_of(tables)
    task = searched(str(source), texts, relevant_from)
    notes = tuple(note for table in tables.values() for note in table.notes)
    warnings = tuple(warning for table in tables.values() for warning in table.warnings)
    return dataclasses.replace(task, notes=(*notes, *task.notes), warnings=(*warnings, *task.warnings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What a source has, as it has it."""

    queries: dict[str, str]
    """Text by id."""
    documents: dict[str, str]
    """Text by id."""
    judgements: list[tuple[str, str, float]]
    """Query id, document id and gain."""
    warnings: tuple[str, ...]


def folder_tables(folder: Path, split: str) -> dict[str, Table]:
    """Return the corpus, the queries and the judgements of a split in a folder; TaskError where one is missing."""
    files, qrels = data_files(folder), folder / "qrels"
    judged = _only(data_files(qrels) if qrels.is_dir() else [], split) or _only(files, "qrels")
    names = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": f"qrels/{split}.tsv"}
    chosen = {"corpus": _only(files, "corpus"), "queries": _only(files, "queries"), "qrels": judged}
    if missing := [names[table] for table, file in chosen.items() if file is None]:
        raise TaskError(
            f"{folder} has no {' and no '.join(missing)}: expected corpus.jsonl, queries.jsonl and qrels/{split}.tsv "
            "in the layout of BEIR, or a table of queries with documents; choose other judgements with --split"
        )
    return {table: read_table(file) for table, file in chosen.items() if file is not None}


def _only(files: Iterable[Path], stem: str) -> Path | None:
    named = [file for file in files if file.stem == stem]
    if len(named) > 1:
        raise TaskError(f"{' and '.join(file.name for file in named)} could both be {stem}: leave one of them")
    return named[0] if named else None


def collection_of(tables: Mapping[str, Table]) -> Collection:
    """Return the texts and judgements of a corpus, queries and qrels; TaskError if one is not what it should be."""
    documents, document_warnings = _records(tables["corpus"], "document")
    queries, query_warnings = _records(tables["queries"], "text")
    judgements = judgements_of(tables["qrels"])
    warnings = document_warnings + query_warnings
    return Collection(queries=queries, documents=documents, judgements=judgements, warnings=warnings)


def judgements_of(table: Table) -> list[tuple[str, str, float]]:
    """Return the query id, document id and gain of every judgement; TaskError if a column or a gain is not known."""
    table, (query, document, gain) = judgement_columns(table)
    return [
        (row[query].strip(), row[document].strip(), parse_score(row[gain], table.place(i)))
        for i, row in enumerate(table.rows)
    ]


def _records(table: Table, unit: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return texts by id, and what was changed."""
    table = table.with_header()
    number, title, text = record_columns(table)
    cleaner, texts, places = Cleaner(), dict[str, str](), dict[str, str]()
    for i, row in enumerate(table.rows):
        name, place = row[number].strip(), table.place(i)
        if not name:
            raise TaskError(f"{place}: expected an id, got none")
        if name in places:
            raise TaskError(f"{place}: the id {name[:40]!r} is that of {places[name]} too: expected distinct ids")
        places[name] = place
        whole = cleaner.clean(" ".join(filter(None, ("" if title is None else row[title].strip(), row[text]))))
        if cleaner.keeps(whole):
            texts[name] = whole
    return texts, cleaner.warnings(table.name, unit)


def _of_pairs(table: Table, columns: Columns | None) -> Collection:
    """Number the distinct queries and documents of a table from 1."""
    table, (query, document, *gain) = query_columns(table, columns)
    cleaner, judgements = Cleaner(), []
    queries, documents = dict[str, str](), dict[str, str]()
    for i, row in enumerate(table.rows):
        question, text = cleaner.clean(row[query]), cleaner.clean(row[document])
        if cleaner.keeps(question, text):
            query_id = queries.setdefault(question, f"query {len(queries) + 1}")
            document_id = documents.setdefault(text, f"document {len(documents) + 1}")
            judgements.append((query_id, document_id, parse_score(row[gain[0]], table.place(i)) if gain else 1.0))
    return Collection(
        queries={name: text for text, name in queries.items()},
        documents={name: text for text, name in documents.items()},
        judgements=judgements,
        warnings=cleaner.warnings(table.name, "pair"),
    )


def searched(name: str, source: Collection, relevant_from: float | None = None) -> RetrievalTask:
    """Keep what can be scored, and count the rest; TaskError where too little is left."""
    queries, documents = source.queries, source.documents
    gains: dict[tuple[str, str], float] = {}
    unknown = own = 0
    for query, document, gain in source.judgements:
        if gain <= 0 or (relevant_from is not None and gain < relevant_from):
            continue
        if query not in queries or document not in documents:
            unknown += 1
        elif query == document and same_text(queries[query], documents[document]):
            own += 1
        else:
            gains[query, document] = max(gain, gains.get((query, document), gain))
    relevant = {query for query, _ in gains}
    kept = {query: i for i, query in enumerate(query for query in queries if query in relevant)}
    place = {document: i for i, document in enumerate(documents)}
    if len(kept) < MIN_EXAMPLES or len(place) < MIN_EXAMPLES:
        reasons = [f"{count(unknown, 'judgement')} of unknown ids"] if unknown else []
        reasons += [f"{count(own, 'judgement')} of a document with the id and the text of its query"] if own else []
        raise TaskError(
            f"{name} has {len(kept)} queries with a relevant document and {count(len(place), 'document')}, "
            f"expected at least {MIN_EXAMPLES} of each: {' and '.join(reasons) or 'give more, or check the relevance'}"
        )
    read = f"{len(kept):,} queries, {count(len(place), 'document')} and {count(len(gains), 'pair')}"
    notes = [f"read {read} of them that belong together"]
    if left := len(queries) - len(kept):
        notes.append(f"left out {left:,} of {len(queries):,} queries without a relevant document")
    task = RetrievalTask(
        name=name,
        query_ids=tuple(kept),
        queries=tuple(queries[query] for query in kept),
        document_ids=tuple(place),
        documents=tuple(documents.values()),
        relevance=tuple((kept[query], place[document], gain) for (query, document), gain in gains.items()),
        notes=tuple(notes),
    )
    return dataclasses.replace(task, warnings=(*source.warnings, *_left_out(unknown, own, task)))


def _left_out(unknown: int, own: int, task: RetrievalTask) -> Iterator[str]:
    """Yield warnings of judgements that do not count, and of documents that BEIR's own evaluation would not rank."""
    if unknown:
        yield f"{count(unknown, 'judgement')} left out: the query or the document is unknown or empty"
    if own:
        yield f"{count(own, 'judgement')} left out: the document has the id and the text of its query"
    if equal := len({*task.query_ids} & {*task.document_ids}) - sum(document >= 0 for document in task.own):
        yield (
            f"{count(equal, 'document')} with the id of a query but another text, or judged relevant to it: ranked "
            "like all others, which BEIR's evaluation does not do"
        )
