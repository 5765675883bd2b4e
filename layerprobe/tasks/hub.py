"""Tables from data sets of the Hugging Face Hub. Knows `datasets`, not what a column means."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from layerprobe.errors import TaskError
from layerprobe.tasks.discovery import split_role
from layerprobe.tasks.tables import Table, table_of_columns

ALIASES = {"stsb": "sentence-transformers/stsb"}


def is_hub_name(source: str) -> bool:
    """Return whether a source looks like `name`, `org/name` or `org/name:config`.

    Example:
        >>> is_hub_name("mteb/stsbenchmark-sts"), is_hub_name("../data")
        (True, False)
    """
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?", source) is not None


def hub_tables(name: str) -> dict[str, Table]:
    """Return the tables of a hub data set by train, validation and test; a lone split counts as train.

    Raises:
        TaskError: If it cannot be loaded, or has several splits and none is train.
    """
    repository, _, config = name.partition(":")
    splits = _load(ALIASES.get(repository, repository), config or None, name)
    tables = {role: table_of_columns(f"{name} {key}", _columns(split)) for role, key, split in _by_role(name, splits)}
    if empty := [table.name for table in tables.values() if not table.rows]:
        raise TaskError(f"{empty[0]} is empty: expected at least one row")
    return tables


def hub_retrieval_tables(name: str, split: str) -> dict[str, Table]:
    """Return the tables corpus, queries and qrels of a hub data set, or one that is named `pairs`.

    The configurations are `corpus`, `queries` and `qrels` or `default`, with `-de` or `de-` about them for `name:de`;
    BEIR has the judgements in a repository of their own, `name-qrels`. A data set without them is one of pairs.

    Raises:
        TaskError: If it cannot be loaded, or does not have the split.
    """
    repository, _, part = name.partition(":")
    known = _configurations(repository, name)
    wanted = {
        "corpus": _of_part(["corpus"], part),
        "queries": _of_part(["queries"], part),
        "qrels": [*_of_part(["qrels", "default"], part), part],
    }
    configs = {
        table: next(config for config in names if config in known)
        for table, names in wanted.items()
        if not known.isdisjoint(names)
    }
    if "corpus" not in configs or "queries" not in configs:
        return {"pairs": _one_split(name, _load(repository, part or None, name), (split,))}
    tables = {}
    for table in ("corpus", "queries"):
        tables[table] = _one_split(name, _load(repository, configs[table], name), (table, configs[table], split))
    judged, config = (repository, configs["qrels"]) if "qrels" in configs else (f"{repository}-qrels", None)
    tables["qrels"] = _one_split(name, _load(judged, config, name), (split,))
    return tables


def _of_part(names: list[str], part: str) -> list[str]:
    return [config for name in names for config in (f"{part}-{name}", f"{name}-{part}")] if part else names


def _one_split(name: str, splits: Mapping[str, Any], wanted: tuple[str, ...]) -> Table:
    """Return the first split that is wanted, or the only one."""
    split = next((key for key in wanted if key in splits), next(iter(splits)) if len(splits) == 1 else None)
    if split is None:
        raise TaskError(f"{name!r} has the splits {', '.join(splits)}: expected {wanted[-1]}; choose one with --split")
    table = table_of_columns(f"{name} {split}", _columns(splits[split]))
    if not table.rows:
        raise TaskError(f"{table.name} is empty: expected at least one row")
    return table


def _configurations(repository: str, name: str) -> set[str]:
    import datasets

    with _hub_errors(name):
        return set(datasets.get_dataset_config_names(repository))


@contextlib.contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn what `datasets` raises into one line with advice."""
    try:
        yield
    except Exception as error:
        # datasets, huggingface_hub and the HTTP client under them raise unrelated kinds, and change them.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TaskError(f"cannot load {name!r}, which is no file, from the Hub: {reason}: {_advice()}") from error


def _load(repository: str, config: str | None, name: str) -> Mapping[str, Any]:
    import datasets

    with _hub_errors(name):
        loaded: Mapping[str, Any] = datasets.load_dataset(repository, config)
    return loaded


def _columns(split: Any) -> dict[str, list[Any]]:
    """Return the columns of a split; more than two classes by name, and -1, which stands for no label, as None."""
    columns: dict[str, list[Any]] = split.to_dict()
    for column, feature in split.features.items():
        names = getattr(feature, "names", None)
        if names:
            shown = names if len(names) > 2 else range(len(names))
            columns[column] = [None if value is None or value < 0 else shown[value] for value in columns[column]]
    return columns


def _advice() -> str:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set, so only downloaded data sets are found; unset it or pass a file"
    return "check the name, the network and HF_TOKEN, or pass a file"


def _by_role(name: str, splits: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    if len(splits) == 1:
        return [("train", key, split) for key, split in splits.items()]
    by_role = {role: (role, key, split) for key, split in splits.items() if (role := split_role(key)) is not None}
    if "train" not in by_role:
        raise TaskError(f"{name!r} has the splits {', '.join(splits)}: expected train, validation and test")
    return list(by_role.values())
