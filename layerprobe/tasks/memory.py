"""Tables of what is in memory: DataFrames, data sets, lists. Knows neither files nor what a column means.

None of the libraries is imported: an object of theirs is only there where its module is.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from layerprobe.errors import TaskError
from layerprobe.tasks.discovery import roles_of, split_role
from layerprobe.tasks.hub import split_table
from layerprobe.tasks.tables import Table, check_size, table_of_columns

EXPECTED = "a file, a folder, the name of a data set, a DataFrame, a Dataset, a mapping of columns, or a list of rows"


def tables_of(data: object, name: str) -> dict[str, Table]:
    """Return the tables of data by train, validation and test; what is no mapping of splits counts as train."""
    return {role: table_of(part, label) for role, (label, part) in splits_of(data, name).items()}


def splits_of(data: object, name: str) -> dict[str, tuple[str, Any]]:
    """Return data by train, validation and test, each with its name; what is no mapping of splits counts as train."""
    if not isinstance(data, Mapping) or not data or not all(_is_table(part) for part in data.values()):
        return {"train": (name, data)}
    if all(map(_is_list_of_lists, data.values())) and not any(split_role(str(key)) for key in data):
        return {"train": (name, data)}  # columns of lists
    return {role: (f"{name} {key}", data[key]) for role, key in roles_of(data, name).items()}


def table_of(data: object, name: str) -> Table:
    """Return data as a table; a missing value is an empty cell.

    Args:
        data: A DataFrame, a Dataset, a mapping of columns, or a sequence: of mappings, of rows, or of texts.
        name: For messages.
    """
    if is_data_set(data):
        return split_table(name, data)
    columns = columns_of(data, name)
    if columns is not None:
        check_lengths(columns, name)
        check_size(name, cells=sum(map(len, columns.values())))
        table = table_of_columns(name, {column: list(map(_present, values)) for column, values in columns.items()})
    else:
        table = _table_of_rows(_items(data), name)
    if not table.rows:
        raise TaskError(f"{name} is empty: expected at least one row")
    return table


def check_lengths(columns: Mapping[str, Sequence[Any]], name: str) -> None:
    """Raise TaskError unless columns are of one length."""
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{column} {length}" for column, length in list(lengths.items())[:5])
        raise TaskError(f"{name}: expected columns of one length, got {listed}")


def _is_table(data: object) -> bool:
    """Return whether data is a table, and not a column of one."""
    if is_data_set(data) or _is_frame(data) or isinstance(data, Mapping):
        return True
    if hasattr(data, "to_pydict") or hasattr(data, "to_dicts"):  # of Arrow and polars
        return True
    return isinstance(data, (list, tuple)) and bool(data) and isinstance(data[0], (Mapping, list, tuple))


def _is_list_of_lists(data: object) -> bool:
    return isinstance(data, (list, tuple)) and bool(data) and isinstance(data[0], (list, tuple))


def is_data_set(data: object) -> bool:
    """Return whether data is a `datasets.Dataset`."""
    return "datasets" in sys.modules and isinstance(data, sys.modules["datasets"].Dataset)


def _is_frame(data: object) -> bool:
    return "pandas" in sys.modules and isinstance(data, sys.modules["pandas"].DataFrame)


def columns_of(data: Any, name: str) -> dict[str, Sequence[Any]] | None:
    """Return the columns of what has some; None of a sequence."""
    if _is_frame(data):
        names = [str(column) for column in data.columns]
        if twice := [column for column in names if names.count(column) > 1]:
            raise TaskError(f"{name} has several columns {twice[0][:40]!r}: rename them")
        columns = {column: data.iloc[:, i].tolist() for i, column in enumerate(names)}
        return _texts_of_index(data.index, columns) | columns
    if callable(to_columns := getattr(data, "to_pydict", None)):  # of Arrow
        data = to_columns()
    if isinstance(data, Mapping):
        return {str(column): _items(values) for column, values in data.items()}
    if not isinstance(data, (list, tuple)) and hasattr(data, "to_dicts"):  # of polars
        return _columns_of(data.to_dicts())
    items = _items(data)
    if items and all(isinstance(item, Mapping) for item in items):
        return _columns_of(items)
    return {"text": items} if all(isinstance(item, str) or _present(item) is None for item in items) else None


def _texts_of_index(index: Any, columns: Collection[str]) -> dict[str, list[Any]]:
    """Return the levels of an index that have a name, which no column has, and texts, as columns."""
    levels = {str(name): index.get_level_values(i).tolist() for i, name in enumerate(index.names) if name is not None}
    of_texts = {name for name, cells in levels.items() if any(isinstance(cell, str) for cell in cells)}
    return {name: levels[name] for name in levels if name in of_texts - set(columns)}


def _columns_of(records: Sequence[Mapping[Any, Any]]) -> dict[str, Sequence[Any]]:
    names = dict.fromkeys(key for record in records for key in record)
    return {str(key): [record.get(key) for record in records] for key in names}


def _table_of_rows(rows: Sequence[Any], name: str) -> Table:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, (list, tuple)) or len(row) != len(rows[0]):
            expected = f"a row of {len(rows[0])} cells as in row 1" if number > 1 else "a row, a mapping or a text"
            raise TaskError(f"{name}, row {number}: expected {expected}, got {str(row)[:40]!r}")
    check_size(name, cells=sum(map(len, rows)))
    table = table_of_columns(
        name, {str(i): list(map(_present, cells)) for i, cells in enumerate(zip(*rows, strict=True))}
    )
    return replace(table, header=None, headless=True)


def _items(data: Any) -> Sequence[Any]:
    """Return the items of a list or tuple, or of what gives a list, as arrays and Series do."""
    if not isinstance(data, (list, tuple)) and callable(to_list := getattr(data, "tolist", None)):
        data = to_list()
    if not isinstance(data, (list, tuple)):
        raise TaskError(f"expected {EXPECTED}, got a {type(data).__name__}")
    return data


def _present(value: Any) -> Any:
    """Return a value, None where it is missing: NaN, NaT and NA are unequal to themselves, or say nothing of it."""
    try:
        return None if value is None or bool(value != value) else value
    except TypeError:
        return None
    except ValueError:  # an array in a cell
        return value
