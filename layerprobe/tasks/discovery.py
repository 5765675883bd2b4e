"""Which files of a folder are the train, validation and test split. Knows file names, not what is in them."""

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from layerprobe.errors import TaskError, option
from layerprobe.tasks.tables import SUFFIXES

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


def split_role(name: str) -> str | None:
    """Return train, validation or test where a name has such a word.

    Examples:
        >>> split_role("en-dev"), split_role("SICK_test_annotated"), split_role("retrain")
        ('validation', 'test', None)
    """
    word = _ROLE_WORD.search(name.lower())
    return None if word is None else _ROLES[word[1]]


def split_roles(names: Sequence[str]) -> list[str | None]:
    """Return the roles of names that stand together: eval is test, or what is missing of test and validation beside it.

    Examples:
        >>> split_roles(["train", "eval"]), split_roles(["train", "eval", "test"])
        (['train', 'test'], ['train', 'validation', 'test'])
    """
    words = [_ROLE_WORD.search(name.lower()) for name in names]
    certain = {_ROLES[word[1]] for word in words if word is not None and word[1] not in _EITHER}
    either = next((role for role in ("test", "validation") if role not in certain), None)
    return [None if word is None else either if word[1] in _EITHER else _ROLES[word[1]] for word in words]


def roles_of(keys: Iterable[Key], name: object, *, advice: str = "leave one of each") -> dict[str, Key]:
    """Return the keys of splits by train, validation and test; a lone one counts as train.

    A key that says no more than the role goes before others, as test before test_hard.
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
    """Return the files of `roles` that lie beside a train file and are named like it.

    `en-test.csv` belongs to `en-train.csv`; where it is missing, so does a lone `en-test-annotated.csv`.
    """
    if split_role(train.stem) != "train":
        return {}
    before, after = _around(train)
    files = [path for path in data_files(train.parent, suffixes) if path.suffix == train.suffix]
    alike = [path for path in files if split_role(path.stem) is not None and _around(path)[0] == before]
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
    """Return the split files of a folder, a lone file as train; raise TaskError if it is not clear which is which."""
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
            f" (and {option('validation', 'FILE')}, {option('test', 'FILE')} where they are not named like it)"
        )
    like_train = [path for role, path in roles if role is None and path.suffix == splits["train"].suffix]
    _warn_of_others(folder, [path.name for path in like_train])
    return splits


def split_files(
    path: Path, given: Collection[str] = (), *, suffixes: Sequence[str] = SUFFIXES
) -> tuple[dict[str, Path], list[str]]:
    """Return the files of a folder, or a train file and those named like it, by split, and how they were found.

    Splits that were `given` are not looked for.
    """
    if path.is_dir():
        files = {role: file for role, file in folder_splits(path, suffixes=suffixes).items() if role not in given}
        return files, [f"found in {path}: {', '.join(f'{file.name} as {role}' for role, file in files.items())}"]
    missing = [role for role in ("validation", "test") if role not in given]
    siblings = sibling_splits(path, missing, suffixes=suffixes) if path.exists() else {}
    notes = [f"took {file} as the {role} split, named like {path.name}" for role, file in siblings.items()]
    return {"train": path, **siblings}, notes


def _warn_of_others(name: object, others: Sequence[str]) -> None:
    if others:
        listed = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
        logger.warning("%s: left out %s; its splits are those named train, validation and test", name, listed)


def data_files(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """Return the files of a folder whose format is known, by name; raise TaskError if it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.is_file())
    except OSError as error:
        raise TaskError(f"{folder} cannot be read: {error.strerror or error}") from error


def _around(path: Path) -> tuple[str, str]:
    """What stands before and after the word that names the split."""
    before, _, after = _ROLE_WORD.split(path.stem.lower(), maxsplit=1)
    return before, after
