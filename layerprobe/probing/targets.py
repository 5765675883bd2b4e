"""Targets of samples, from arrays or files."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_choice, check_present
from layerprobe.comparison.arrays import NAMED, arrays_of, opened
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.files.atomic import from_home
from layerprobe.files.inputs import text_lines
from layerprobe.names import nearest, some
from layerprobe.probing.probes import Problem
from layerprobe.probing.values import TargetKind
from layerprobe.similarity.checks import as_array
from layerprobe.tasks.cells import is_number, spelled_alike
from layerprobe.tasks.tables import open_parquet, read_table

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
Folds = NDArray[np.intp]


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
        if kind not in (None, "labels") or not np.isin(values, (0, 1)).all():
            kinds = ", ".join(get_args(TargetKind))
            raise DataError(
                f"expected a matrix of 0 and 1, one column per label, got {values.shape} of others: set kind to {kinds}"
            )
        counts = values.sum(axis=0)
        if len(wrong := np.flatnonzero((counts == 0) | (counts == n))):
            raise DataError(
                f"expected samples with and without each label, got label {wrong[0]} for "
                f"{'all' if counts[wrong[0]] else 'none'}: remove it"
            )
        return Problem(kind="labels", targets=values.astype(np.intp), names=np.arange(2))
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
    numbers: Folds = np.unique(values, return_inverse=True)[1]
    return numbers


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
            table = read_table(path).with_header()
            if not table.rows:
                raise DataError(f"{path} has only one line: expected a row of targets for each sample")
            columns = dict(zip(table.header or (), zip(*table.rows, strict=True), strict=True))
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
        columns: dict[str, Sequence[Any]] = pq.read_table(file, columns=names).to_pydict()
        return columns


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
