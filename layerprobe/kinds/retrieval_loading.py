"""Loading of queries with documents, for training or only for scoring. Knows folders, hub data sets and tables."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from layerprobe.errors import TaskError, option
from layerprobe.files.inputs import from_home
from layerprobe.kinds.retrieval import RETRIEVAL, Ranking, RetrievalItems
from layerprobe.metrics.names import Split
from layerprobe.names import counted, some
from layerprobe.tasks.cells import UnusableRowError, is_number, parse_score
from layerprobe.tasks.formats import Format, Grid, check_format, read_grid
from layerprobe.tasks.loading import checked_splits
from layerprobe.tasks.rows import (
    DOCUMENT_NAMES,
    ID_NAMES,
    NEGATIVE_NAMES,
    QUERY_NAMES,
    RELEVANCE_NAMES,
    TEXT_NAMES,
    ColumnLayout,
    Columns,
    Row,
    TaskSource,
    find_columns,
    items_of,
    plain_name,
    read_rows,
    with_named_header,
)
from layerprobe.tasks.sources import data_files, hub_configs, hub_split, is_on_hub, load_hub, split_grid, split_roles
from layerprobe.tasks.splitting import MIN_EXAMPLES, SPLITS
from layerprobe.tasks.values import Task, TaskSettings

Judgements = list[tuple[str, str, float]]
"""Query id, document id and gain."""
Gains = dict[tuple[str, str], float]
"""Gains above 0 by query id and document id."""
Prompts = tuple[str | None, str | None]
"""Prompts before queries and before documents."""
Trained = Mapping[str, list[tuple[str, ...]]]
"""Document ids of a positive and its hard negatives, by query id."""


Found = tuple[dict[str, Grid], dict[str, Callable[[], Grid]]]
"""Grids of corpus and queries, and readers of the judgements by the name of their file or split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The queries and documents of a source, with judgements."""

    queries: dict[str, str]
    """Text by id."""
    documents: dict[str, str]
    """Text by id."""
    judgements: Mapping[str, Judgements] = field(default_factory=dict)
    """Judgements by split."""
    trained: Mapping[str, Trained] = field(default_factory=dict)
    """Training examples by split, if these are not all judged pairs."""
    notes: tuple[str, ...] = ()
    """Notes on how the source was read."""
    warnings: tuple[str, ...] = ()
    """Changes in the texts and rows left out, with counts."""


def load_retrieval(
    source: str | Path,
    *,
    columns: Columns | None = None,
    split: str = "test",
    relevant_from: float | None = None,
    ranking: Ranking = "cosine",
    prompts: Prompts = (None, None),
) -> Task:
    """Load queries, documents and relevance judgements, for scoring without training.

    A folder is in the layout of BEIR: `corpus` and `queries` with the columns _id, title (optional, for documents;
    put before the text) and text, and `qrels/test` with query-id, corpus-id and score; JSONL, CSV, TSV or
    Parquet. A hub data set has the same as configurations. Anything else is a table of queries with documents, which
    are all searched for every query. Texts are cleaned as in `load_task`; the warnings count rows
    left out.

    Args:
        source: A folder, the hub name of a data set, with `:part` if it has several, or a table.
        columns: Columns of a table: query, document and relevance, or query and document (all relevant); names, or
            indices from 0, in a list or joined by commas. By default usual names are recognised.
        split: Split of the judgements of a folder or hub data set.
        relevant_from: Smallest relevant judgement; by default all above 0 are relevant. A judgement is the gain.
        ranking: Score that ranks documents: cosine, or dot, the inner product.
        prompts: Prompts before queries and before documents; by default those of the options or the model.

    Returns:
        The task, with a single split: validation if the judgements have such a name, for example dev, else test.
        Queries without a relevant document are left out and counted.
    """
    if relevant_from is not None and not math.isfinite(relevant_from):
        raise TaskError(f"expected a finite smallest relevance, got {relevant_from}")
    path, name = from_home(source), str(source)
    if (layout := _found(source, columns, None)) is None:
        config = name.partition(":")[2] or None
        table = hub_split(name, config, (split,)) if is_on_hub(source) else read_grid(path)
        settings = TaskSettings(source=name, columns=columns, skip_empty=True)  # type: ignore[arg-type]
        rows = TaskSource(data={"train": table}, name=name, settings=settings)
        collection = _collected_rows(rows, trained=False)
    else:
        texts, judged = layout
        by_stem = {Path(key).stem: read for key, read in judged.items()}
        if (read := by_stem.get(split, by_stem.get("qrels"))) is None:
            raise TaskError(
                f"{name} has no judgements for the split {split}, only for {', '.join(by_stem)}: choose one "
                f"with {option('split')}"
            )
        collection = _joined(texts, {"train": read()})
    searched_items, notes, left_out = searched(
        str(source), collection, collection.judgements["train"], relevant_from=relevant_from, prompts=prompts
    )
    items, none = replace(searched_items, ranking=ranking), searched_items.take([])
    validation = scored_split(split) == "validation"
    return Task(
        name=str(source),
        kind=RETRIEVAL.name,
        train=none,
        validation=items if validation else none,
        test=none if validation else items,
        notes=(*collection.notes, *notes),
        warnings=(*collection.warnings, *_left_out(left_out)),
    )


def scored_split(split: str) -> Split:
    """Return the split of judgements with this name: dev is validation, an unknown name is test."""
    (role,) = split_roles([split])
    return "validation" if role == "validation" else "test"


def load_retrieval_task(source: TaskSource) -> Task:
    """Load queries with documents in three splits from a source of `load_task`.

    A folder in the layout of BEIR has a file of judgements for each split, `qrels/train`, `dev` and `test`; missing
    splits are drawn from the train file, or from the only one, by query. Anything else is a table of examples: query
    (or anchor), positive (or document), optionally columns of hard negatives and the relevance; its
    documents are those of all its splits. Judgements above 0 are gains in nDCG; in training all are equal positives.
    """
    data, settings = source.data["train"], source.settings
    layout = _found(data, settings.columns, settings.format) if isinstance(data, (str, Path)) else None
    if layout is None:
        return _task(source, _collected_rows(source))
    texts, judged = layout
    files = {role: from_home(str(file)) for role, file in source.data.items() if role != "train"}
    tables = {role: functools.partial(read_grid, file) for role, file in files.items()}
    roles = [
        "train" if Path(name).stem == "qrels" else role
        for name, role in zip(judged, split_roles([*judged]), strict=True)
    ]
    if len(judged) == 1 and not tables:
        roles = ["train"]
    by_role = {role: name for name, role in zip(judged, roles, strict=True) if role is not None}
    if len(by_role) < sum(role is not None for role in roles):
        raise TaskError(f"{data} has several files of one split: leave one each of train, dev and test")
    readers = {role: judged[name] for role, name in by_role.items()} | tables
    if "train" not in readers:
        names = ", ".join(judged)
        raise TaskError(f"{data} has no judgements to train on, got {names}: expected train, or a single file")
    collection = _joined(texts, {role: read() for role, read in readers.items()})
    used = by_role | {role: file.name for role, file in files.items()}
    note = f"judgements: {', '.join(f'{name} as {role}' for role, name in used.items())}"
    return _task(source, replace(collection, notes=(*collection.notes, note)) if len(used) > 1 else collection)


def _found(source: str | Path, columns: Columns | None, format: Format | None) -> Found | None:
    """Return corpus, queries and judgements of a folder or a hub data set; None for a table of pairs."""
    folder = from_home(source)
    if is_on_hub(source):
        collection = _hub_collection(str(source))
    elif folder.is_dir() and {"corpus", "queries"} & {file.stem for file in data_files(folder)}:
        collection = _folder_grids(folder)
    else:
        collection = None
    if collection is not None:
        if columns is not None:
            raise TaskError(f"expected no columns with {source}: its files have _id, text, query-id, ...")
        check_format(source, format or Format(), ())
    return collection


def _hub_collection(name: str) -> Found | None:
    """Return corpus and queries of a hub data set, and readers of its judgements by split; None if it has none.

    The configurations are `corpus`, `queries` and `qrels` or `default`, with `-de` or `de-` added for `name:de`;
    BEIR has the judgements in a separate repository, `name-qrels`.
    """
    repository, _, part = name.partition(":")
    configurations = hub_configs(repository, name)
    configs: dict[str, str] = {}
    for table, usual in (("corpus", ["corpus"]), ("queries", ["queries"]), ("qrels", ["qrels", "default"])):
        names = [config for word in usual for config in (f"{part}-{word}", f"{word}-{part}")] if part else usual
        if known_names := [config for config in names if config in configurations]:
            configs[table] = known_names[0]
    if part in configurations:
        configs.setdefault("qrels", part)
    if "corpus" not in configs or "queries" not in configs:
        return None
    texts = {table: hub_split(name, configs[table], (table, configs[table])) for table in ("corpus", "queries")}
    judged, config = (repository, configs["qrels"]) if "qrels" in configs else (f"{repository}-qrels", None)
    splits = load_hub(judged, config, name)
    readers: dict[str, Callable[[], Grid]] = {
        key if len(splits) > 1 else "qrels": functools.partial(split_grid, f"{name} {key}", split)
        for key, split in splits.items()
    }
    return texts, readers


def _folder_grids(folder: Path) -> Found | None:
    files, qrels = data_files(folder), folder / "qrels"
    chosen = {table: _only(files, table) for table in ("corpus", "queries")}
    judged = data_files(qrels) if qrels.is_dir() else list(filter(None, [_only(files, "qrels")]))
    present = {table: read_grid(file) for table, file in chosen.items() if file is not None}
    if len(present) < 2 or not judged:
        missing = [*(f"{table}.jsonl" for table in chosen if table not in present), *([] if judged else ["qrels"])]
        raise TaskError(
            f"{folder} has no {' and no '.join(missing)}: expected corpus.jsonl, queries.jsonl and qrels/test.tsv "
            "in the layout of BEIR, or a table of queries with documents"
        )
    return present, {file.name: functools.partial(read_grid, file) for file in judged}


def _only(files: Iterable[Path], stem: str) -> Path | None:
    named = [file for file in files if file.stem == stem]
    if len(named) > 1:
        raise TaskError(f"{' and '.join(file.name for file in named)} could both be {stem}: leave one of them")
    return named[0] if named else None


def _joined(tables: Mapping[str, Grid], qrels: Mapping[str, Grid]) -> Collection:
    """Return the texts of a corpus and of queries with the judgements of each split."""
    documents, document_warnings = _records(tables["corpus"], "document")
    queries, query_warnings = _records(tables["queries"], "query")
    every = [tables["corpus"], tables["queries"], *qrels.values()]
    return Collection(
        queries=queries,
        documents=documents,
        judgements={role: _judgements(table) for role, table in qrels.items()},
        notes=tuple(note for table in every for note in table.notes),
        warnings=(
            *chain.from_iterable(table.warnings for table in qrels.values()),
            *document_warnings,
            *query_warnings,
        ),
    )


_TEXTS = {"query": QUERY_NAMES, "document": DOCUMENT_NAMES}
SCORED = (ColumnLayout(columns={**_TEXTS, "relevance": RELEVANCE_NAMES}), ColumnLayout(columns=_TEXTS))
TRAINED = tuple(ColumnLayout(columns=layout.columns, further=NEGATIVE_NAMES[0]) for layout in SCORED)
RECORD = ColumnLayout(columns={"_id": ID_NAMES, "text": TEXT_NAMES}, optional={"title": ("title",)}, requestable=False)
JUDGEMENT = ColumnLayout(
    columns={
        "query-id": ("queryid", "qid", "query"),
        "corpus-id": ("corpusid", "documentid", "docid", "passageid", "pid", "document"),
        "score": RELEVANCE_NAMES,
    },
    requestable=False,
)


def _collected_rows(source: TaskSource, *, trained: bool = True) -> Collection:
    """Return the distinct queries and documents of rows, numbered from 1, with their judgements.

    Of requested columns with hard negatives, a last one of numbers is the relevance.
    """
    layouts = TRAINED if trained else SCORED
    if trained and source.settings.columns is not None:
        layouts = TRAINED[1:]

    def example_of(row: Row) -> tuple[tuple[str, ...], float]:
        if len(row.values) > 2 and (not trained or plain_name(row.columns[2]) in RELEVANCE_NAMES):
            return row.texts(without=2), parse_score(row.values[2], row.place)
        return row.texts(), 1.0

    splits, notes, warnings = read_rows(source, layouts, example_of, item="example")
    examples = [example for part in splits.values() for example in part]
    if layouts == TRAINED[1:] and all(len(texts) > 2 and is_number(texts[-1]) for texts, _ in examples):
        splits = {role: [(texts[:-1], float(texts[-1])) for texts, _ in part] for role, part in splits.items()}
    queries, documents = dict[str, str](), dict[str, str]()
    judgements: dict[str, Judgements] = {role: [] for role in splits}
    by_query: dict[str, dict[str, list[tuple[str, ...]]]] = {role: {} for role in splits}
    for role, examples in splits.items():
        for (first, *others), gain in examples:
            query = queries.setdefault(first, f"query {len(queries) + 1}")
            ids = tuple(documents.setdefault(text, f"document {len(documents) + 1}") for text in others)
            judgements[role].append((query, ids[0], gain))
            if gain > 0 and ids not in by_query[role].setdefault(query, []):
                by_query[role][query].append(ids)
    return Collection(
        queries={name: text for text, name in queries.items()},
        documents={name: text for text, name in documents.items()},
        judgements=judgements,
        trained=by_query,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _task(source: TaskSource, collection: Collection) -> Task:
    """Return a task from judgements by split; missing splits are drawn from the train split."""
    prompts, left_out = (source.settings.query_prompt, source.settings.document_prompt), Counter[str]()
    splits: dict[str, RetrievalItems] = {}
    for role, judgements in collection.judgements.items():
        trained = collection.trained.get(role)
        splits[role], _, of_split = searched(source.name, collection, judgements, trained=trained, prompts=prompts)
        left_out += of_split
    notes, warnings = list(collection.notes), [*collection.warnings, *_left_out(left_out)]
    judged = {query for items in splits.values() for query in items.ids}
    if alone := [query for query in collection.queries if query not in judged]:
        names = some([repr(name[:40]) for name in alone])
        share = f"{len(alone):,} of {counted(len(collection.queries), 'query')}"
        if not source.settings.skip_empty:
            raise TaskError(
                f"{share} have no relevant document ({names}): judge or drop them, or skip them with "
                f"{option('skip_empty', True)}"
            )
        warnings.append(f"left out {share} without a relevant document ({names})")
    unnamed = {role: replace(items, ids=()) for role, items in splits.items()}
    items, drawn = checked_splits(source, unnamed, [(query, "") for query in unnamed["train"].queries], unit="query")
    examples = ", ".join(f"{len(items[role].examples):,} {role}" for role in SPLITS)
    notes += drawn
    notes.append(f"read {len(collection.documents):,} documents and, as pairs of a query and a positive, {examples}")
    gains = {gain for part in items.values() for query in part.relevance for _, gain in query}
    if len(gains) > 1:
        notes.append(
            f"graded relevance, {min(gains):g} to {max(gains):g}: the gains of nDCG; in training all are equal"
        )
    return Task(
        name=source.name,
        kind=RETRIEVAL.name,
        train=items["train"],
        validation=items["validation"],
        test=items["test"],
        one_piece=len(splits) == 1,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _judgements(grid: Grid) -> Judgements:
    """Return the query id, document id and gain of every judgement; TaskError for an unknown column or gain.

    Without header, three columns are in this order, and four as in trec_eval, which ignores the second.
    """
    grid = with_named_header(grid)
    by_place = {3: "0,1,2", 4: "0,2,3"}.get(grid.width) if grid.header is None else None
    grid, places = find_columns(grid, by_place, [JUDGEMENT], is_first=False)
    query, document, gain = (place for place in places if place is not None)
    return [
        (row[query].strip(), row[document].strip(), parse_score(row[gain], grid.place(i)))
        for i, row in enumerate(grid.rows)
    ]


def _records(grid: Grid, item: str) -> tuple[dict[str, str], list[str]]:
    """Return texts by id, and warnings about changes."""
    grid, columns = find_columns(grid.with_header(), None, [RECORD])
    places = dict[str, str]()

    def record_of(row: Row) -> tuple[str, str]:
        name, content, title = row.values
        name = name.strip()
        if not name:
            raise TaskError(f"{row.place}: expected an id, got none")
        if name in places:
            raise TaskError(f"{row.place}: the id {name[:40]!r} is also that of {places[name]}: expected distinct ids")
        places[name] = row.place
        whole = row.log.clean(" ".join(filter(None, ((title or "").strip(), content))))
        if not whole.strip():
            raise UnusableRowError("with an empty text")
        return name, whole

    (records,), _, warnings = items_of([(grid, columns)], record_of, item=item, skip=["skip_empty"])
    return dict(records), warnings


def searched(
    name: str,
    source: Collection,
    judgements: Judgements,
    *,
    relevant_from: float | None = None,
    trained: Trained | None = None,
    prompts: Prompts = (None, None),
) -> tuple[RetrievalItems, tuple[str, ...], Counter[str]]:
    """Return the queries that can be scored, notes, and counts of the rest; TaskError if too few are left.

    By default all relevant pairs are trained on.
    """
    gains, unknown, itself = _gains(source, judgements, relevant_from)
    judged = {query for query, _ in gains}
    queries = [query for query in source.queries if query in judged]
    n_queries, documents = len(source.queries), counted(len(source.documents), "document")
    if len(queries) < MIN_EXAMPLES or len(source.documents) < MIN_EXAMPLES:
        reasons = [f"{counted(unknown, 'judgement')} of unknown ids"] if unknown else []
        reasons += (
            [f"{counted(itself, 'judgement')} of a document with the id and the text of its query"] if itself else []
        )
        raise TaskError(
            f"{name} has {len(queries)} queries with a relevant document and {documents}, "
            f"expected at least {MIN_EXAMPLES} of each: {' and '.join(reasons) or 'give more, or check the relevance'}"
        )
    notes = [f"read {len(queries):,} queries, {documents} and {counted(len(gains), 'relevant pair')}"]
    if left := n_queries - len(queries):
        notes.append(f"left out {left:,} of {n_queries:,} queries without a relevant document")
    items = _items(source, queries, gains, trained, prompts)
    equal = sum(query in source.documents for query in queries) - sum(document >= 0 for document in items.own)
    return items, tuple(notes), Counter(unknown=unknown, itself=itself, equal=equal)


def _gains(source: Collection, judgements: Judgements, relevant_from: float | None) -> tuple[Gains, int, int]:
    """Return the gains that count, and the numbers of judgements with unknown ids and about the query itself."""
    gains: Gains = {}
    unknown = itself = 0
    for query, document, gain in judgements:
        if gain <= 0 or (relevant_from is not None and gain < relevant_from):
            continue
        if query not in source.queries or document not in source.documents:
            unknown += 1
        elif query == document and _words(source.queries[query]) == _words(source.documents[document]):
            itself += 1
        else:
            gains[query, document] = max(gain, gains.get((query, document), gain))
    return gains, unknown, itself


def _items(
    source: Collection, queries: Sequence[str], gains: Gains, trained: Trained | None, prompts: Prompts
) -> RetrievalItems:
    """Return the remaining queries as items, with documents in the order of ties: the highest id first."""
    order = sorted(source.documents, reverse=True)
    place = {document: i for i, document in enumerate(order)}
    relevant: dict[str, list[tuple[int, float]]] = {query: [] for query in queries}
    for (query, document), gain in gains.items():
        relevant[query].append((place[document], gain))
    examples: list[tuple[tuple[int, ...], ...]]
    if trained is None:
        examples = [tuple((document,) for document, _ in documents) for documents in relevant.values()]
    else:
        examples = [tuple(tuple(place[text] for text in example) for example in trained[query]) for query in queries]
    # the document with the id of a query is that query if it has its text: queries can be whole documents or titles
    pairs = [
        place[query]
        if query in place
        and (query, query) not in gains
        and _words(source.queries[query]) in _words(source.documents[query])
        else -1
        for query in queries
    ]
    return RetrievalItems(
        queries=tuple(source.queries[query] for query in queries),
        documents=tuple(source.documents[document] for document in order),
        relevance=tuple(map(tuple, relevant.values())),
        trained=tuple(examples),
        own=tuple(pairs),
        query_prompt=prompts[0],
        document_prompt=prompts[1],
        ids=tuple(queries),
    )


def _words(text: str) -> str:
    return " ".join(text.split())


_LEFT_OUT = {
    "unknown": ("judgement", "left out: the query or the document is unknown or empty"),
    "itself": ("judgement", "left out: the document has the id and the text of its query"),
    "equal": (
        "document",
        "with the id of a query but another text, or judged relevant to it: ranked like all others, unlike in BEIR's "
        "evaluation",
    ),
}


def _left_out(counts: Counter[str]) -> list[str]:
    """Return warnings about judgements that do not count, and documents that BEIR's evaluation would not rank."""
    return [f"{counted(counts[key], unit)} {what}" for key, (unit, what) in _LEFT_OUT.items() if counts[key]]
