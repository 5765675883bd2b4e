"""Tables from data sets of the Hugging Face Hub. Knows `datasets`, not what a column means."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerprobe.errors import TaskError, option
from layerprobe.files.atomic import from_home
from layerprobe.files.network import hub_trouble, hub_within_limits
from layerprobe.tasks.discovery import roles_of
from layerprobe.tasks.tables import CONLL_SUFFIXES, SUFFIXES, Table, check_size, table_of_columns
from layerprobe.tasks.targets import by_name

ALIASES = {"stsb": "sentence-transformers/stsb"}


def is_hub_name(source: str) -> bool:
    """Return whether a source looks like `name`, `org/name` or `org/name:config`.

    Examples:
        >>> is_hub_name("mteb/stsbenchmark-sts"), is_hub_name("../data")
        (True, False)
    """
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?", source) is not None


def is_on_hub(source: str | Path) -> bool:
    """Return whether a source is the name of a data set and no file."""
    path = from_home(source)
    return not path.exists() and path.suffix.lower() not in (*SUFFIXES, *CONLL_SUFFIXES) and is_hub_name(str(source))


def hub_tables(name: str) -> dict[str, Table]:
    """Return the tables of a hub data set by train, validation and test; a lone split counts as train."""
    repository, _, config = name.partition(":")
    splits = _load(ALIASES.get(repository, repository), config or None, name)
    advice = "download its files, with `hf download --repo-type dataset`, and give those to take"
    roles = roles_of(splits, repr(name), advice=advice)
    return {role: split_table(f"{name} {role}", splits[key]) for role, key in roles.items()}


def hub_retrieval_tables(name: str, split: str) -> dict[str, Table]:
    """Return the tables corpus, queries and qrels of a hub data set, or one that is named `pairs`.

    The configurations are `corpus`, `queries` and `qrels` or `default`, with `-de` or `de-` about them for `name:de`;
    BEIR has the judgements in a repository of their own, `name-qrels`. A data set without them is one of pairs.
    """
    repository, _, part = name.partition(":")
    with _hub(name) as datasets:
        configurations = datasets.get_dataset_config_names(repository)
    configs: dict[str, str] = {}
    for table, usual in (("corpus", ["corpus"]), ("queries", ["queries"]), ("qrels", ["qrels", "default"])):
        names = [config for word in usual for config in (f"{part}-{word}", f"{word}-{part}")] if part else usual
        if known_names := [config for config in names if config in configurations]:
            configs[table] = known_names[0]
    if part in configurations:
        configs.setdefault("qrels", part)
    if "corpus" not in configs or "queries" not in configs:
        return {"pairs": _one_split(name, _load(repository, part or None, name), (split,))}
    tables = {}
    for table in ("corpus", "queries"):
        tables[table] = _one_split(name, _load(repository, configs[table], name), (table, configs[table], split))
    judged, config = (repository, configs["qrels"]) if "qrels" in configs else (f"{repository}-qrels", None)
    return tables | {"qrels": _one_split(name, _load(judged, config, name), (split,))}


def _one_split(name: str, splits: Mapping[str, Any], names: tuple[str, ...]) -> Table:
    """Return the first split that is wanted, or the only one."""
    split = next((key for key in names if key in splits), next(iter(splits)) if len(splits) == 1 else None)
    if split is None:
        raise TaskError(
            f"{name!r} has the splits {', '.join(splits)}: expected {names[-1]}; choose one with {option('split')}"
        )
    return split_table(f"{name} {split}", splits[split])


@contextlib.contextmanager
def _hub(name: str) -> Iterator[Any]:
    """Yield `datasets`, and turn what it raises into one line with advice."""
    import datasets

    try:
        with hub_within_limits():
            yield datasets
    except Exception as error:
        # datasets, huggingface_hub and the HTTP client under them raise unrelated kinds, and change them.
        reason = hub_trouble() or (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "check the name, the network and HF_TOKEN, or pass a file"
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            advice = "HF_HUB_OFFLINE is set, so only downloaded data sets are found; unset it or pass a file"
        raise TaskError(f"cannot load {name!r}, which is no file, from the Hub: {reason}: {advice}") from error


def _load(repository: str, config: str | None, name: str) -> Mapping[str, Any]:
    with _hub(name) as datasets:
        loaded: Mapping[str, Any] = datasets.load_dataset(repository, config)
    return loaded


def split_table(name: str, split: Any) -> Table:
    """Return a split of a data set; more than two classes by name, and -1, no label, as a missing one."""
    whole = split.data  # also where the split is a few of its rows
    size = whole.nbytes * split.num_rows // max(1, whole.num_rows)
    check_size(name, cells=split.num_rows * len(split.features), unpacked=size)
    if images := [column for column, feature in split.features.items() if type(feature).__name__ == "Image"]:
        raise TaskError(
            f"{name} has images in {images[0]!r}: download its Parquet files, with `hf download --repo-type dataset`, "
            "and give their folder"
        )
    columns: dict[str, list[Any]] = split.to_dict()
    for column, feature in split.features.items():
        if names := getattr(feature, "names", None):
            columns[column] = by_name(columns[column], names)
        elif names := getattr(
            getattr(feature, "feature", None), "names", None
        ):  # of lists; -1 and less, as -100, say none
            columns[column] = [
                None if cells is None else [None if cell is None or cell < 0 else names[cell] for cell in cells]
                for cells in columns[column]
            ]
    table = table_of_columns(name, columns)
    if not table.rows:
        raise TaskError(f"{table.name} is empty: expected at least one row")
    return table
