"""Where data come from: files and folders of splits, data sets of the Hub, and values in memory, as grids of cells.

Knows no meaning of columns. No library is imported for data in memory: an object of a library implies that its module
is loaded.
"""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from layerprobe.errors import TaskError, option
from layerprobe.files.inputs import RECORD, from_home, is_path, open_regular, similar_file
from layerprobe.files.serialisation import parse_json
from layerprobe.names import without_password
from layerprobe.tasks.cells import class_cells
from layerprobe.tasks.formats import SUFFIXES, Grid, check_size, grid_of_columns

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from datasets import Dataset, DatasetDict

logger = logging.getLogger(__name__)

_ROLES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "development", "val", "valid", "validation", "trial"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_EITHER = ("eval", "evaluation")
_ROLE_WORD = re.compile(rf"(?<![a-z])({'|'.join(_ROLES)})(?![a-z])")
_SHOWN = 12
Key = TypeVar("Key")


def split_roles(names: Sequence[str]) -> list[str | None]:
    """Return train, validation or test for names in one place with such a word, None for others.

    eval is test, or the missing one of test and validation.

    Examples:
        >>> split_roles(["en-train", "eval", "retrain"]), split_roles(["train", "eval", "SICK_test_annotated"])
        (['train', 'test', None], ['train', 'validation', 'test'])
    """
    words = [_ROLE_WORD.search(name.lower()) for name in names]
    certain = {_ROLES[word[1]] for word in words if word is not None and word[1] not in _EITHER}
    either = next((role for role in ("test", "validation") if role not in certain), None)
    return [None if word is None else either if word[1] in _EITHER else _ROLES[word[1]] for word in words]


def roles_of(keys: Iterable[Key], name: object, *, advice: str = "leave one of each") -> dict[str, Key]:
    """Return the keys of splits by train, validation and test; a single one counts as train.

    A key that is only the role takes precedence, such as test over test_hard.
    """
    keys = list(keys)
    if len(keys) == 1:
        return {"train": keys[0]}
    by_name: dict[str, list[Key]] = {}
    named_roles = split_roles(list(map(str, keys)))
    for key, role in zip(keys, named_roles, strict=True):
        if role is not None:
            by_name.setdefault(role, []).append(key)
    if "train" not in by_name:
        raise TaskError(f"{name} has the splits {', '.join(map(str, keys))}: expected train, validation and test")
    roles = {}
    for role, named in by_name.items():
        exact = [key for key in named if _ROLE_WORD.fullmatch(str(key).lower())]
        if len(exact or named) > 1:
            raise TaskError(f"{name} has several {role} splits, {', '.join(map(str, exact or named))}: {advice}")
        roles[role] = (exact or named)[0]
    _warn_of_others(name, [str(key) for key, role in zip(keys, named_roles, strict=True) if role is None])
    return roles


def sibling_splits(
    train: Path, roles: Sequence[str] = ("validation", "test"), *, suffixes: Sequence[str] = SUFFIXES
) -> dict[str, Path]:
    """Return the files of `roles` beside a train file with corresponding names.

    `en-test.csv` belongs to `en-train.csv`; if it is missing, so does a single `en-test-annotated.csv`.
    """
    if split_roles([train.stem]) != ["train"]:
        return {}
    before, after = _around(train)
    files = [path for path in data_files(train.parent, suffixes) if path.suffix == train.suffix]
    alike = [path for path in files if _ROLE_WORD.search(path.stem.lower()) and _around(path)[0] == before]
    of_roles = list(zip(split_roles([path.stem for path in alike]), alike, strict=True))
    siblings = {}
    for role in roles:
        candidates = [path for part, path in of_roles if part == role]
        exact = [path for path in candidates if _around(path)[1] == after]
        if len(exact) > 1:
            names = " and ".join(path.name for path in exact)
            raise TaskError(f"{names} could both be the {role} split of {train}: pass {option(role, 'FILE')}")
        if len(exact or candidates) == 1:
            siblings[role] = (exact or candidates)[0]
    return siblings


def folder_splits(folder: Path, *, suffixes: Sequence[str] = SUFFIXES) -> dict[str, Path]:
    """Return the split files of a folder, a single file as train; raise TaskError if they are ambiguous."""
    files = data_files(folder, suffixes)
    if not files:
        raise TaskError(f"{folder} has no data file: expected one of {', '.join(suffixes)}")
    if len(files) == 1:
        return {"train": files[0]}
    roles = list(zip(split_roles([path.stem for path in files]), files, strict=True))
    splits = {role: path for role, path in roles if role is not None}
    if "train" not in splits or len(splits) < sum(role is not None for role, _ in roles):
        names = ", ".join(path.name for path in files[:_SHOWN])
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        raise TaskError(
            f"cannot tell which files of {folder} are the splits: pass the train file of {names}{more}"
            f" (and {option('validation', 'FILE')}, {option('test', 'FILE')} if their names do not match)"
        )
    like_train = [path for role, path in roles if role is None and path.suffix == splits["train"].suffix]
    _warn_of_others(folder, [path.name for path in like_train])
    return splits


def split_files(
    path: Path, given: Collection[str] = (), *, suffixes: Sequence[str] = SUFFIXES
) -> tuple[dict[str, Path], list[str]]:
    """Return files by split, from a folder or a train file with those beside it, and notes on their origin.

    Splits in `given` are not searched for.
    """
    if path.is_dir():
        files = {role: file for role, file in folder_splits(path, suffixes=suffixes).items() if role not in given}
        return files, [f"found in {path}: {', '.join(f'{file.name} as {role}' for role, file in files.items())}"]
    missing = [role for role in ("validation", "test") if role not in given]
    siblings = sibling_splits(path, missing, suffixes=suffixes) if path.exists() else {}
    notes = [f"used {file} as the {role} split, by its name beside {path.name}" for role, file in siblings.items()]
    return {"train": path, **siblings}, notes


def _warn_of_others(name: object, others: Sequence[str]) -> None:
    if others:
        listed = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
        logger.warning("%s: left out %s; its splits are those named train, validation and test", name, listed)


def data_files(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """Return the files of a folder with a known format, sorted by name; raise TaskError if it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file())
    except OSError as error:
        raise TaskError(f"{folder} cannot be read: {error.strerror or error}") from error


def first_columns(path: Path) -> set[str]:
    """Return the columns of a Parquet file, or of the first row of a JSONL file; empty if it cannot be read."""
    try:
        if path.suffix.lower() == ".parquet":
            from pyarrow.parquet import read_schema

            with open_regular(path) as file:
                return set(read_schema(file).names)
        with open_regular(path) as file:
            lines = iter(lambda: file.readline(RECORD.value), b"")
            first = parse_json(next(line for line in lines if line.strip()).decode("utf-8-sig"))
    except Exception:  # its problem is reported when it is read
        return set()
    return set(first) if isinstance(first, dict) else set()


def _around(path: Path) -> tuple[str, str]:
    """Return the parts of a file name before and after the word for the split."""
    before, _, after = _ROLE_WORD.split(path.stem.lower(), maxsplit=1)
    return before, after


ALIASES = {"stsb": "sentence-transformers/stsb"}


def is_on_hub(source: str | Path) -> bool:
    """Return whether a source is not a file, and looks like `name`, `org/name` or `org/name:config`.

    Examples:
        >>> is_on_hub("mteb/stsbenchmark-sts"), is_on_hub("../data")
        (True, False)
    """
    if from_home(source).exists() or is_path(str(source)):
        return False
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?", str(source)) is not None


def hub_grids(name: str) -> dict[str, Grid]:
    """Return a hub data set by train, validation and test; a single split counts as train."""
    repository, _, config = name.partition(":")
    splits = load_hub(ALIASES.get(repository, repository), config or None, name)
    advice = "download its files with `hf download --repo-type dataset`, and give the ones to use"
    roles = roles_of(splits, repr(name), advice=advice)
    return {role: split_grid(f"{name} {role}", splits[key]) for role, key in roles.items()}


def hub_split(name: str, config: str | None, wanted: tuple[str, ...]) -> Grid:
    """Return the first wanted split of a hub data set, or the only one."""
    splits = load_hub(name.partition(":")[0], config, name)
    split = next((key for key in wanted if key in splits), next(iter(splits)) if len(splits) == 1 else None)
    if split is None:
        raise TaskError(
            f"{name!r} has the splits {', '.join(splits)}: expected {wanted[-1]}; choose one with {option('split')}"
        )
    return split_grid(f"{name} {split}", splits[split])


def hub_configs(repository: str, name: str) -> list[str]:
    """Return the configurations of a hub data set; TaskError, with `name`, if it cannot be loaded."""
    with _hub(name) as datasets:
        names: list[str] = datasets.get_dataset_config_names(repository)
    return names


@contextlib.contextmanager
def _hub(name: str) -> Iterator[Any]:
    """Yield `datasets`, and turn its errors into one line with advice."""
    import datasets

    try:
        yield datasets
    except Exception as error:
        # datasets, huggingface_hub and their HTTP client raise unrelated errors, and change them.
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            reason = "HF_HUB_OFFLINE is set, so only downloaded data sets are found; unset it or pass a file"
        else:
            reason = without_password(str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"{reason}: check the name, the network and HF_TOKEN, or pass a file"
        raise TaskError(
            f"cannot load {name!r}, which is not a file, from the Hub: {reason}{similar_file(name)}"
        ) from error


def load_hub(repository: str, config: str | None, name: str) -> Mapping[str, Any]:
    """Return the splits of a hub data set; TaskError, with `name`, if it cannot be loaded."""
    with _hub(name) as datasets:
        loaded: Mapping[str, Any] = datasets.load_dataset(repository, config)
    return loaded


def split_grid(name: str, split: Any) -> Grid:
    """Return a split of a data set as a table; more than two classes by name, and -1 (no label) as missing."""
    whole = split.data  # even if the split is only some of its rows
    size = whole.nbytes * split.num_rows // max(1, whole.num_rows)
    check_size(name, cells=split.num_rows * len(split.features), unpacked=size)
    if images := [column for column, feature in split.features.items() if type(feature).__name__ == "Image"]:
        raise TaskError(
            f"{name} has images in {images[0]!r}: download its Parquet files with `hf download --repo-type dataset`, "
            "and give their folder"
        )
    columns: dict[str, list[Any]] = split.to_dict()
    for column, feature in split.features.items():
        if names := getattr(feature, "names", None):
            columns[column] = class_cells(columns[column], names)
        elif names := getattr(
            getattr(feature, "feature", None), "names", None
        ):  # lists of labels; -1 and less, such as -100, mean none
            columns[column] = [
                None if cells is None else [None if cell is None or cell < 0 else names[cell] for cell in cells]
                for cells in columns[column]
            ]
    table = grid_of_columns(name, columns)
    if not table.rows:
        raise TaskError(f"{table.name} is empty: expected at least one row")
    return table


Data: TypeAlias = "str | Path | Mapping[str, Any] | Sequence[Any] | pd.DataFrame | pa.Table | Dataset | DatasetDict"
"""Data: a file, a folder, the name of a data set, or a table, columns, rows or texts in memory."""


EXPECTED = "a file, a folder, the name of a data set, a DataFrame, a Dataset, a mapping of columns, or a list of rows"


def grids_of(data: object, name: str) -> dict[str, Grid]:
    """Return data by train, validation and test; data without splits counts as train."""
    if not isinstance(data, Mapping) or not data or not all(map(_is_table, data.values())):
        return {"train": grid_of(data, name)}
    if all(map(_is_list_of_lists, data.values())) and not any(split_roles(list(map(str, data)))):
        return {"train": grid_of(data, name)}  # columns of lists
    return {role: grid_of(data[key], f"{name} {key}") for role, key in roles_of(data, name).items()}


def grid_of(data: object, name: str) -> Grid:
    """Return data as a table; a missing value is an empty cell.

    Args:
        data: A DataFrame, a Dataset, a mapping of columns, or a sequence: of mappings, of rows, or of texts.
        name: Name of the data, for messages.
    """
    if is_data_set(data):
        return split_grid(name, data)
    columns = _columns(data, name)
    if columns is not None:
        lengths = {column: len(values) for column, values in columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{column} {length}" for column, length in list(lengths.items())[:5])
            raise TaskError(f"{name}: expected columns of equal length, got {listed}")
        check_size(name, cells=sum(lengths.values()))
        table = grid_of_columns(name, {column: list(map(_present, values)) for column, values in columns.items()})
    else:
        table = _grid_of_rows(_items(data), name)
    if not table.rows:
        raise TaskError(f"{name} is empty: expected at least one row")
    return table


def _is_table(data: object) -> bool:
    """Return whether data is a table, not a column."""
    if is_data_set(data) or _is_frame(data) or isinstance(data, Mapping):
        return True
    if hasattr(data, "to_pydict") or hasattr(data, "to_dicts"):  # Arrow and polars
        return True
    return isinstance(data, (list, tuple)) and bool(data) and isinstance(data[0], (Mapping, list, tuple))


def _is_list_of_lists(data: object) -> bool:
    return isinstance(data, (list, tuple)) and bool(data) and isinstance(data[0], (list, tuple))


def is_data_set(data: object) -> bool:
    """Return whether data is a `datasets.Dataset`."""
    return "datasets" in sys.modules and isinstance(data, sys.modules["datasets"].Dataset)


def _is_frame(data: object) -> bool:
    return "pandas" in sys.modules and isinstance(data, sys.modules["pandas"].DataFrame)


def _columns(data: Any, name: str) -> dict[str, Sequence[Any]] | None:
    """Return the columns of data; None for a sequence."""
    if _is_frame(data):
        names = [str(column) for column in data.columns]
        if twice := [column for column in names if names.count(column) > 1]:
            raise TaskError(f"{name} has several columns {twice[0][:40]!r}: rename them")
        return {column: data.iloc[:, i].tolist() for i, column in enumerate(names)}
    if callable(to_columns := getattr(data, "to_pydict", None)):  # Arrow
        data = to_columns()
    if isinstance(data, Mapping):
        return {str(column): _items(values) for column, values in data.items()}
    if not isinstance(data, (list, tuple)) and hasattr(data, "to_dicts"):  # polars
        return _record_columns(data.to_dicts())
    items = _items(data)
    if items and all(isinstance(item, Mapping) for item in items):
        return _record_columns(items)
    return {"text": items} if all(isinstance(item, str) or _present(item) is None for item in items) else None


def _record_columns(records: Sequence[Mapping[Any, Any]]) -> dict[str, Sequence[Any]]:
    names = dict.fromkeys(key for record in records for key in record)
    return {str(key): [record.get(key) for record in records] for key in names}


def _grid_of_rows(rows: Sequence[Any], name: str) -> Grid:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, (list, tuple)) or len(row) != len(rows[0]):
            expected = f"a row of {len(rows[0])} cells as in row 1" if number > 1 else "a row, a mapping or a text"
            raise TaskError(f"{name}, row {number}: expected {expected}, got {str(row)[:40]!r}")
    check_size(name, cells=sum(map(len, rows)))
    table = grid_of_columns(
        name, {str(i): list(map(_present, cells)) for i, cells in enumerate(zip(*rows, strict=True))}
    )
    return replace(table, header=None, headless=True)


def _items(data: Any) -> Sequence[Any]:
    """Return the items of a list or tuple, or of an object with `tolist`, such as an array or a Series."""
    if not isinstance(data, (list, tuple)) and callable(to_list := getattr(data, "tolist", None)):
        data = to_list()
    if not isinstance(data, (list, tuple)):
        raise TaskError(f"expected {EXPECTED}, got a {type(data).__name__}")
    return data


def _present(value: Any) -> Any:
    """Return a value, or None if it is missing: NaN, NaT and NA are not equal to themselves."""
    try:
        return None if value is None or bool(value != value) else value
    except TypeError:
        return None
    except ValueError:  # an array in a cell
        return value
