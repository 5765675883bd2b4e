"""Targets of samples, from arrays, files or tasks; a model embeds the items of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_choice, check_present
from layerprobe.comparison.arrays import NAMED, Layer, Rows, arrays_of, opened
from layerprobe.context import EMBEDDED, part
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.files.inputs import from_home, text_lines
from layerprobe.metrics.names import split_title
from layerprobe.names import nearest, some
from layerprobe.probing.linear import FEATURES
from layerprobe.probing.probes import SCORED_AS, Folds, Problem
from layerprobe.probing.values import ProbeSettings, TargetKind
from layerprobe.scoring.probes import Probe
from layerprobe.similarity.checks import as_array
from layerprobe.stats.crossed import Links, joined
from layerprobe.tasks.cells import is_number, spelled_alike
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.formats import open_parquet, read_grid
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Items, Task, TextSplit

if TYPE_CHECKING:
    from layerprobe.encoders.identity import ModelLike
    from layerprobe.extraction.embeddings import Embeddings

CLASSES = 20
"""Largest number of different whole numbers that are treated as classes."""
COLUMNS = ("target", "targets", "label", "labels", "score", "scores", "class", "classes", "value", "y")
"""Usual names of target columns; the first one in a file is used."""
LAYOUTS: tuple[tuple[TargetKind, tuple[str, ...]], ...] = (
    ("pairs", ("first", "second", "score")),
    ("queries", ("query", "document", "gain")),
    ("queries", ("query", "document")),
)
"""Columns in files of pairs and queries."""


def as_targets(
    given: object, n: int, *, kind: TargetKind | None = None, column: str | None = None, n_layers: int | None = None
) -> Problem:
    """Return the problem for the targets of n rows of embeddings, without folds.

    Args:
        given: (n,) scores or classes, (n, labels) of 0 and 1, (m, 3) pairs of rows with their score or queries with
            documents and their gain; or a file: .npy, .csv, .tsv, .jsonl, .parquet with named columns, .txt with a line
            line, .npz or .safetensors with named arrays of one axis.
        n: Number of rows of the embeddings.
        kind: Kind of targets, if ambiguous: by default text and up to 20 whole numbers are classes, other numbers
            scores, matrices of 0 and 1 labels; columns first, second, score are pairs, query, document queries. Text
            among more numbers raises an error, unless the kind is classes.
        column: Column of a file; several, separated by commas, are labels.
        n_layers: Number of layers of the embeddings, to recognise arrays with layers first.
    """
    if kind is not None:
        check_choice(kind, TargetKind, name="kind")
    if isinstance(given, str | Path):
        values, read_kind = _read(Path(given), column)
        kind = kind or read_kind
    else:
        values = as_array(given, name="targets")  # type: ignore[arg-type]
    if values.ndim == 0 or values.size == 0:
        raise DataError("expected targets, got none")
    if kind in ("pairs", "queries"):
        return _pairs(values, n) if kind == "pairs" else _queries(values, n)
    if len(values) != n:
        raise MisalignedSamplesError(
            f"expected a target for each of the {n:,} rows of embeddings, got {len(values):,}: "
            + (
                f"are these {n:,} layers of {n_layers:,} samples? Then pass array.swapaxes(0, 1), with axes "
                "(samples, layers, features)"
                if len(values) == n_layers
                else "use the same rows for both"
            )
        )
    if values.dtype == object:
        check_present(values[:, 0] if values.ndim == 2 else values, name="a target")
        types = {type(value) for value in values.flat}
        if all(issubclass(one, Real | Decimal) for one in types) and (bool not in types or len(types) == 1):
            values = values.astype(np.float64)  # except True among numbers, which only Python treats as 1
    if kind == "labels" and values.ndim == 1:
        values = values[:, None]
    elif kind != "labels" and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2:
        return _labels(values, kind)
    if values.ndim != 1:
        raise DataError(f"expected targets of one or two axes, got {values.shape}")
    if values.dtype.kind not in "fiub":
        numbers = [is_number(str(value)) for value in values] if kind != "classes" else []
        if kind == "scores" or 2 * sum(numbers) > len(values) > sum(numbers):
            row = numbers.index(False) if False in numbers else 0
            raise DataError(
                f"expected scores as numbers, got {str(values[row])!r} in row {row}, counted from 0: remove it from "
                "both, or set the kind of targets to classes"
            )
        return _classes(values)
    _check_finite(values, "target")
    different, whole = len(np.unique(values)), not np.mod(values, 1).any()
    few = values.dtype.kind == "b" or (different <= CLASSES and whole)
    other = "for {}, set the kind of targets"
    if kind == "classes" or (kind is None and few):
        note = f"targets are treated as {different} classes; {other.format('scores')}"
        taken = values.astype(np.int64) if few and np.abs(values).max() < 2**53 else values
        return _classes(taken, () if kind or values.dtype.kind == "b" else (note,))
    if different == 1:
        raise DataError(f"expected scores that differ, got {values[0]:g} for all {n:,} samples")
    note = f"targets are treated as scores: {different} whole numbers; {other.format('classes')}"
    remarks = (note,) if kind is None and whole else ()
    return Problem(kind="scores", targets=values.astype(np.float64), remarks=remarks)


def as_groups(given: object, n: int) -> Folds | None:
    """Return (n,) group numbers of rows, from an array, a file or `FILE:COLUMN`; None without groups."""
    if given is None:
        return None
    if isinstance(given, str | Path):
        path, _, column = str(given).rpartition(":")
        if from_home(given).exists() or not path:
            path, column = str(given), ""
        values, _ = _read(Path(path), column, "group")
    else:
        values = as_array(given, name="groups")  # type: ignore[arg-type]
    if values.ndim != 1 or len(values) != n:
        raise MisalignedSamplesError(f"expected a group for each of the {n:,} rows, got {values.shape}")
    check_present(values, name="a group")
    return np.unique(values, return_inverse=True)[1]


def _labels(values: NDArray[Any], kind: TargetKind | None) -> Problem:
    if kind not in (None, "labels") or not np.isin(values, (0, 1)).all():
        kinds = ", ".join(get_args(TargetKind))
        raise DataError(
            f"expected a matrix of 0 and 1, one column per label, got {values.shape} of others: set kind to {kinds}"
        )
    counts = values.sum(axis=0)
    if len(wrong := np.flatnonzero((counts == 0) | (counts == len(values)))):
        raise DataError(
            f"expected samples with and without each label, got label {wrong[0]} for "
            f"{'all' if counts[wrong[0]] else 'none'}: remove it"
        )
    return Problem(kind="labels", targets=values.astype(np.intp), names=np.arange(2))


def _classes(values: NDArray[Any], notes: tuple[str, ...] = ()) -> Problem:
    values = values.astype(str) if values.dtype == object else values
    names, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise DataError(f"expected at least two classes, got {str(names[0])!r} for all {len(values):,} samples")
    if values.dtype.kind == "U":
        notes += spelled_alike(dict(zip(names.tolist(), counts.tolist(), strict=True)))
    return Problem(kind="classes", targets=numbers, remarks=notes, names=names)


def _rows(values: NDArray[Any], n: int, what: str, widths: Sequence[int]) -> NDArray[np.float64]:
    if values.ndim != 2 or values.shape[1] not in widths:
        raise DataError(f"expected {what} in each row, got an array of shape {values.shape}")
    try:
        table = values.astype(np.float64)
    except ValueError:
        raise DataError(f"expected {what} as numbers, got {some(values[0].tolist())}") from None
    _check_finite(table, "row")
    rows = table[:, :2]
    if np.mod(rows, 1).any() or rows.min() < 0 or rows.max() >= n:
        raise DataError(f"expected row numbers of the {n:,} embeddings, from 0, got {rows.min():g} to {rows.max():g}")
    return table


def _pairs(values: NDArray[Any], n: int) -> Problem:
    table = _rows(values, n, "the numbers of two rows and their score", (3,))
    if np.ptp(table[:, 2]) == 0:
        raise DataError(f"expected scores that differ, got {table[0, 2]:g} for all {len(table):,} pairs")
    return Problem(kind="pairs", targets=table[:, 2], rows=table[:, :2].astype(np.intp))


def _queries(values: NDArray[Any], n: int) -> Problem:
    table = _rows(values, n, "the numbers of a query and a relevant document, and a gain or none", (2, 3))
    gains = table[:, 2] if table.shape[1] == 3 else np.ones(len(table))
    if gains.min() <= 0:
        raise DataError(f"expected gains above 0, got {gains.min():g}: remove irrelevant documents")
    queries = np.unique(table[:, 0]).astype(np.intp)
    documents = np.setdiff1d(np.arange(n), queries)
    if not np.isin(table[:, 1], documents).all():
        raise DataError("expected documents that are not queries, got a row that is both")
    place = np.searchsorted(documents, table[:, 1])
    gold = np.array([{} for _ in queries], dtype=object)
    for query, document, gain in zip(np.searchsorted(queries, table[:, 0]), place, gains, strict=True):
        gold[query][int(document)] = float(gain)
    return Problem(kind="queries", targets=gold, rows=queries, documents=documents)


def _check_finite(values: NDArray[Any], what: str) -> None:
    bad = ~np.isfinite(values.astype(np.float64)).reshape(len(values), -1).all(axis=1)
    if bad.any():
        raise DataError(f"expected finite targets, got NaN or infinity in {what} {bad.argmax()}: remove it from both")


# ---- files ----------------------------------------------------------------------------------------------


def _read(path: Path, column: str | None, what: str = "target") -> tuple[NDArray[Any], TargetKind | None]:
    """Return the values of a file, and the kind of targets if the columns show it; groups are always text."""
    as_values = _numbers if what == "target" else _present
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: expected a {what} for each row")
        if path.suffix == ".npy":
            return np.array(opened(path)), None
        if path.suffix == ".txt":
            return as_values([line.rstrip("\r\n") for _, line in text_lines(path)]), None
        if path.suffix in NAMED:
            arrays = [array for array in arrays_of(path) if len(array.shape) == 1]
            columns = {array.name: as_array(array.read(slice(None)), name=array.name).tolist() for array in arrays}
        elif path.suffix in (".parquet", ".pq"):
            columns = _parquet(path)
        else:
            grid = read_grid(path).with_header()
            if not grid.rows:
                raise DataError(f"{path} has only one line: expected a row of targets for each sample")
            columns = dict(zip(grid.header or (), zip(*grid.rows, strict=True), strict=True))
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise DataError(f"cannot read {path}: {reason}") from error
    for kind, layout in LAYOUTS:
        if not column and set(layout) <= set(columns):
            return np.stack([_numbers(columns[name]) for name in layout], axis=1), kind
    usual = (*(COLUMNS if what == "target" else (what,)), *(columns if len(columns) == 1 else ()))
    names = column.split(",") if column else [name for name in usual if name in columns][:1]
    if not names:
        raise DataError(f"expected a column of {what}s, such as {usual[0]}, in {path}, got {some(list(columns), 12)}")
    for name in names:
        if name not in columns:
            guess = nearest(name, columns)
            raise DataError(f"expected column {name!r} in {path}, got {some(list(columns), 12)}{guess}")
    if len(names) == 1:
        return as_values(columns[names[0]]), None
    return np.stack([_numbers(columns[name]) for name in names], axis=1), "labels"


def _parquet(path: Path) -> dict[str, Sequence[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_parquet(path) as file:
        names = [f.name for f in pq.read_schema(file) if not pa.types.is_nested(f.type)]
        file.seek(0)
        return pq.read_table(file, columns=names).to_pydict()


def _numbers(cells: Sequence[Any]) -> NDArray[Any]:
    """Return cells as numbers if all are numbers, else as text."""
    text = _present(cells)
    if not all(isinstance(cell, Real) or is_number(string) for cell, string in zip(cells, text, strict=True)):
        return text
    return np.array([float(cell) for cell in cells])


def _present(cells: Sequence[Any]) -> NDArray[Any]:
    """Return cells as text; raise DataError if one is empty."""
    missing = [row for row, cell in enumerate(cells) if cell is None or cell == ""]
    if missing:
        raise DataError(
            f"expected a value in every row, got none in row {missing[0]}, counted from 0: remove it from both"
        )
    return np.array([str(cell) for cell in cells])


# ---- items of a task, embedded by a model ----------------------------------------------------------------------------


def embedded_task(
    model: ModelLike, task: Task, settings: ProbeSettings, splits: Any
) -> tuple[list[Layer], Problem, dict[str, Any]]:
    """Embed the items of a task at every layer, or load the embeddings.

    Kinds with a probe of whole embeddings are cross-validated on all their items; scored pairs and queries
    are compared by cosines; `layerprobe.scoring.score.score` handles other kinds.

    Returns:
        The layers, the targets with folds, and fields of the result.
    """
    from layerprobe.encoders.identity import resolve
    from layerprobe.extraction.embeddings import extract_items, left_out_layers

    task = checked_task(task)
    kind = KINDS[task.kind]
    by_rows = kind.zero_shot == "probe" or (kind.zero_shot == "cosine" and kind.threshold is None)
    if not (by_rows or task.kind == SCORED_AS["queries"]):
        raise DataError(f"expected a task whose items are rows of embeddings, got kind {task.kind}: use score")
    checkpoint = resolve(model, items=task.readable)
    # the whole task for cross-validation, else its own split
    split: TextSplit = "all" if kind.zero_shot == "probe" else task.scored
    with part(start=0, share=EMBEDDED, whole=1):
        items, embeddings = extract_items(checkpoint, task.split(split), task=task)
    layers, problem = _posed(items, embeddings, task)
    links = links_of(items)
    groups = None
    notes: tuple[str, ...] = (f"scored on {split_title(split)}",)
    if kind.zero_shot == "probe" and splits is None:
        groups, about_groups = _kept_together(items, links, settings.folds)
        notes += about_groups
    first, n_layers = embeddings.first_layer, embeddings.n_layers
    reasons = left_out_layers(embeddings.model.name, embeddings.pooling, range(first, n_layers), n_layers)
    about = {
        "name": checkpoint.label,
        "task": task.name,
        "model": embeddings.model,
        "cautions": embeddings.cautions,
        "n_groups": None,
        "notes": notes,
        "left_out": {f"layer {number}": reasons[0].partition(": ")[2] for number in range(first)},
    }
    return layers, replace(problem.folded(groups, settings, splits), links=links), about


def _posed(items: Any, embeddings: Embeddings, task: Task) -> tuple[list[Layer], Problem]:
    """Return the layers for predicting the items of a task, and the targets."""
    kind = KINDS[task.kind]
    of: dict[str, Any] = {"scored_as": task.kind}
    stored = {  # probes detect constant last layers
        layer: embeddings.stored.rows(layer) for layer in range(embeddings.first_layer, embeddings.n_layers)
    }
    layers = [Layer(name=f"layer {i}", shape=rows.shape, read=rows.__getitem__) for i, rows in stored.items()]
    if task.kind == SCORED_AS["queries"]:
        rows, documents = (embeddings.rows(texts) for texts in (items.query_texts, items.document_texts))
        itself = np.array(items.own, dtype=np.int64)
        return layers, Problem(kind="queries", targets=items.gold, rows=rows, documents=documents, itself=itself, **of)
    sides = [embeddings.rows(side) for side in items.sides]
    if kind.zero_shot == "cosine":
        return layers, Problem(kind="pairs", targets=np.array(items.gold), rows=np.stack(sides, axis=1), **of)
    probe = kind.learning().probe
    layers = [_features(layer, probe, sides) for layer in layers]
    pairs = next((name for name, features in FEATURES.items() if features is probe.features), None)
    of["pairs"] = pairs if len(sides) > 1 else ""
    if kind.labelled:
        numbers = np.array(items.gold, dtype=np.intp)
        return layers, Problem(kind="classes", targets=numbers, names=np.array(task.labels), **of)
    return layers, Problem(kind="scores", targets=np.array(items.gold, dtype=np.float64), **of)


def _kept_together(items: Items, links: Links | None, folds: int) -> tuple[NDArray[np.intp] | None, tuple[str, ...]]:
    """Return (n,) group numbers for the folds, which keep items with a common text together, and notes about them.

    If that would put most items into one fold, or make too few sets, only copies of an item are kept together, as in
    `layerprobe.tasks.splitting`.
    """
    if links is None:
        return None, ()
    sets = joined(*links.sides)
    sizes = np.bincount(sets)
    if sizes.max() <= len(sets) / 2 and len(sizes) >= folds:
        return sets, ()
    numbers: dict[tuple[str, ...], int] = {}
    copies = np.array([numbers.setdefault(item, len(numbers)) for item in items.alike], dtype=np.intp)
    linked = f"{sizes.max():,} of {len(sets):,} items are linked by shared texts"
    return copies, (f"{linked}: only copies of an item stay in one fold, so folds share texts",)


def _features(layer: Layer, probe: Probe, sides: list[NDArray[np.int64]]) -> Layer:
    """Return the features of items for the probe: the embedding, or features from two embeddings."""

    def read(rows: Rows) -> NDArray[Any]:
        first, *second = (layer.rows(side[rows]) for side in sides)
        return probe.features(first, second[0] if second else None)

    return Layer(name=layer.name, shape=(len(sides[0]), read(slice(0, 1)).shape[1]), read=read)
