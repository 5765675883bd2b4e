"""Queries and documents as a task to train on, loaded. Knows folders, hub data sets and tables of examples."""

import dataclasses
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from layerprobe.errors import TaskError
from layerprobe.files.atomic import from_home
from layerprobe.kinds.retrieval.items import RetrievalItems
from layerprobe.kinds.retrieval.kind import RETRIEVAL
from layerprobe.kinds.retrieval.loading import Collection, collection_of, folder_tables, judgements_of, searched
from layerprobe.kinds.retrieval.values import RetrievalTask
from layerprobe.tasks.columns import training_columns
from layerprobe.tasks.discovery import data_files, split_role
from layerprobe.tasks.examples import MIN_EXAMPLES, SPLITS
from layerprobe.tasks.hub import hub_retrieval_tables, is_on_hub
from layerprobe.tasks.loading import TaskSource, source_tables
from layerprobe.tasks.scores import parse_score
from layerprobe.tasks.splitting import split_by_ratio
from layerprobe.tasks.tables import Table, read_table
from layerprobe.tasks.texts import Cleaner, EmptyCells, check_empty, count
from layerprobe.tasks.values import Task

MOST_NEGATIVES = 100
_SHOWN = 5

Judgements = list[tuple[str, str, float]]
"""Query id, document id and gain."""
Trained = Mapping[str, list[tuple[str, ...]]]
"""By query id, the document ids of a positive and its hard negatives."""


def load_retrieval_task(source: TaskSource) -> Task:
    """Load queries with documents in three splits from what `load_task` takes.

    A folder in the layout of BEIR has a file of judgements for each split, `qrels/train`, `dev` and `test`; splits
    that are missing are drawn from the train file, or from the only one, by query. Anything else is a table of
    examples: query (or anchor), positive (or document), maybe columns of hard negatives, and maybe the relevance; its
    documents are those of all its splits. Judgements above 0 are gains in nDCG; all of them are positives alike.

    Raises:
        TaskError: If a file, a column, an id or a gain is not what it should be, a query has no relevant document, or
            a split is too small.
    """
    path = from_home(source.source) if isinstance(source.source, (str, Path)) else None
    if path is not None and path.is_dir() and not _is_of_tables(path):
        collection, splits, notes, warnings = _of_folder(path, source)
    elif isinstance(source.source, (str, Path)) and is_on_hub(source.source):
        collection, splits, notes, warnings = _of_hub(str(source.source))
    else:
        return _of_tables(source)
    return _task(source, collection, splits, {}, notes, warnings)


def _is_of_tables(folder: Path) -> bool:
    return not {"corpus", "queries"} & {file.stem for file in data_files(folder)}


def _of_folder(folder: Path, source: TaskSource) -> tuple[Collection, dict[str, Judgements], list[str], list[str]]:
    qrels = folder / "qrels"
    found = [(split_role(file.stem), file) for file in (data_files(qrels) if qrels.is_dir() else [])]
    files = {role: file for role, file in found if role is not None}
    if len(files) < sum(role is not None for role, _ in found):
        raise TaskError(f"{qrels} has several files of one split: leave one each of train, dev and test")
    given = {role: from_home(str(file)) for role in SPLITS[1:] if (file := getattr(source, role)) is not None}
    whole = len(found) == 1 and not given
    if whole:
        files = {"train": found[0][1]}
    files |= given
    if found and "train" not in files:
        names = ", ".join(file.name for _, file in found)
        raise TaskError(f"{qrels} has no judgements to train on, got {names}: expected train.tsv, or a lone file")
    tables = folder_tables(folder, files["train"].stem if files else "train")
    collection = collection_of(tables)
    read = {role: read_table(file) for role, file in files.items() if role != "train"}
    splits = {"train": collection.judgements, **{role: judgements_of(table) for role, table in read.items()}}
    every = [*tables.values(), *read.values()]
    notes = [note for table in every for note in table.notes]
    notes += [] if whole else [f"judgements: {', '.join(f'{file.name} as {role}' for role, file in files.items())}"]
    return collection, splits, notes, [warning for table in every for warning in table.warnings]


def _of_hub(name: str) -> tuple[Collection, dict[str, Judgements], list[str], list[str]]:
    found: dict[str, dict[str, Table]] = {}
    for role, split in (("train", "train"), ("validation", "dev"), ("validation", "validation"), ("test", "test")):
        try:
            found.setdefault(role, hub_retrieval_tables(name, split))
        except TaskError:
            if split == "test" and not found:
                raise
    first = next(iter(found.values()))
    if "pairs" in first:
        raise TaskError(f"{name!r} has no corpus and queries: load it as a table, by datasets.load_dataset")
    collection = collection_of(first)
    splits = {role: judgements_of(tables["qrels"]) for role, tables in found.items()}
    if "train" not in splits:
        splits = {"train": list(chain.from_iterable(splits.values()))}
    return collection, splits, [], []


def _of_tables(source: TaskSource) -> Task:
    tables, notes = source_tables(source)
    warnings = [warning for table in tables.values() for warning in table.warnings]
    queries, documents = dict[str, str](), dict[str, str]()
    splits: dict[str, Judgements] = {}
    trained: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    empties, changed = [], list[str]()
    for role, table in tables.items():
        table, columns, gain = training_columns(table, source.columns, negatives=(0, MOST_NEGATIVES))
        cleaner, empty = Cleaner(), EmptyCells(table.name, table.unit)
        judgements, examples = splits.setdefault(role, []), trained.setdefault(role, {})
        for i, row in enumerate(table.rows):
            texts = [cleaner.clean(row[column]) for column in columns]
            for column, text in zip(columns, texts, strict=True):
                if not text.strip():
                    empty.add(table.column(column), table.numbers[i])
            if not all(text.strip() for text in texts):
                continue
            query = queries.setdefault(texts[0], f"query {len(queries) + 1}")
            ids = tuple(documents.setdefault(text, f"document {len(documents) + 1}") for text in texts[1:])
            value = 1.0 if gain is None else parse_score(row[gain], table.place(i))
            judgements.append((query, ids[0], value))
            if value > 0 and ids not in examples.setdefault(query, []):
                examples[query].append(ids)
        empties.append(empty)
        changed += cleaner.warnings(table.name, "example")
    warnings += [*check_empty(empties, skip=source.skip_empty), *changed]
    collection = Collection(
        queries={name: text for text, name in queries.items()},
        documents={name: text for text, name in documents.items()},
        judgements=[],
        warnings=(),
    )
    return _task(source, collection, splits, trained, notes, warnings)


def _task(
    source: TaskSource,
    collection: Collection,
    splits: Mapping[str, Judgements],
    trained: Mapping[str, Trained],
    notes: Iterable[str],
    warnings: Iterable[str],
) -> Task:
    """Return a task of judgements by split, whose missing splits are drawn from the train split."""
    tasks = {
        role: searched(source.name, dataclasses.replace(collection, judgements=judgements, warnings=()))
        for role, judgements in splits.items()
    }
    warnings = [*warnings, *collection.warnings, *dict.fromkeys(chain(*(task.warnings for task in tasks.values())))]
    notes = list(notes)
    judged = {query for task in tasks.values() for query in task.query_ids}
    if alone := [query for query in collection.queries if query not in judged]:
        names = ", ".join(repr(name[:40]) for name in alone[:_SHOWN]) + (", ..." if len(alone) > _SHOWN else "")
        said = f"{len(alone):,} of {count(len(collection.queries), 'query')}"
        if not source.skip_empty:
            raise TaskError(
                f"{said} have no relevant document ({names}): judge or drop them, or go on without them with "
                "--skip-empty (skip_empty=True)"
            )
        warnings.append(f"left out {said} without a relevant document ({names})")
    items = {role: _items(task, trained.get(role), source) for role, task in tasks.items()}
    drawn = [role for role in SPLITS if role == "train" or role not in items]
    if drawn != ["train"]:
        whole = items["train"]
        ratios = [ratio for role, ratio in zip(SPLITS, source.split_ratios, strict=True) if role in drawn]
        parts = split_by_ratio([(query, "") for query in whole.queries], ratios, seed=source.seed)
        items |= {role: whole.take(part) for role, part in zip(drawn, parts, strict=True)}
        sizes = ", ".join(f"{len(items[role])} {role}" for role in drawn)
        notes.append(f"split {len(whole)} queries at random with seed {source.seed} into {sizes}")
    for role in SPLITS:
        if len(items[role]) < MIN_EXAMPLES:
            raise TaskError(f"the {role} split has {len(items[role])} queries, expected at least {MIN_EXAMPLES}")
    examples = ", ".join(f"{len(items[role].examples):,} {role}" for role in SPLITS)
    notes.append(f"read {len(collection.documents):,} documents and, as pairs of a query and a positive, {examples}")
    gains = {gain for each in items.values() for query in each.relevance for _, gain in query}
    if len(gains) > 1:
        notes.append(
            f"graded relevance, {min(gains):g} to {max(gains):g}: the gains of nDCG; in training all count alike"
        )
    both = set(items["train"].queries) & set(items["test"].queries)
    if both:
        warnings.append(f"{len(both):,} of {len(items['test']):,} queries of the test split are in the train split too")
    return Task(
        name=source.name,
        kind=RETRIEVAL.name,
        train=items["train"],
        validation=items["validation"],
        test=items["test"],
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _items(task: RetrievalTask, trained: Trained | None, source: TaskSource) -> RetrievalItems:
    """Return the items of a split, the documents in the order of ties."""
    order = sorted(range(len(task.documents)), key=task.document_ids.__getitem__, reverse=True)
    place = {document: i for i, document in enumerate(order)}
    number = {task.document_ids[document]: i for document, i in place.items()}
    relevance: list[list[tuple[int, float]]] = [[] for _ in task.queries]
    for query, document, gain in task.relevance:
        relevance[query].append((place[document], gain))
    examples: list[tuple[tuple[int, ...], ...]]
    if trained is None:
        examples = [tuple((document,) for document, _ in each) for each in relevance]
    else:
        examples = [
            tuple(tuple(number[document] for document in example) for example in trained[name])
            for name in task.query_ids
        ]
    return RetrievalItems(
        queries=task.queries,
        documents=tuple(task.documents[i] for i in order),
        relevance=tuple(map(tuple, relevance)),
        trained=tuple(examples),
        own=tuple(place.get(document, -1) for document in task.own),
        query_prompt=source.query_prompt,
        document_prompt=source.document_prompt,
    )
