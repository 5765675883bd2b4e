"""A registry of named things from layerprobe and from the entry points of other packages.

Knows names and their targets; imports nothing before it is used.
"""

import logging
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from layerprobe.errors import DataError
from layerprobe.names import nearest

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Named things, loaded on first use.

    Another package adds an entry in its `pyproject.toml`:

        [project.entry-points."layerprobe.readings"]
        "token count" = "toy_package.readings:token_count"

    Args:
        group: Name of the group of entry points, such as layerprobe.readings.
        kind: Type of the registered things.
        what: Noun for one of them in messages, such as reading.
        shipped: `module:attribute` of each thing in layerprobe by name; or `module:attribute` of such a
            mapping, where importers of the registry must not know them.
    """

    def __init__(self, group: str, kind: type[T], *, what: str, shipped: Mapping[str, str] | str) -> None:
        self.group, self.kind, self.what = group, kind, what
        self._rows = shipped
        self._loaded: dict[str, T] = {}
        self._broken = set[str]()
        self._unlisted = set[str]()

    @cached_property
    def shipped(self) -> dict[str, EntryPoint]:
        """Things that come with layerprobe, by name."""
        rows = pkgutil.resolve_name(self._rows) if isinstance(self._rows, str) else self._rows
        return {name: EntryPoint(name=name, value=value, group=self.group) for name, value in rows.items()}

    def add(self, rows: Mapping[str, str], *, listed: bool = True) -> None:
        """Add things of layerprobe unknown to importers of the registry; unlisted ones are reached by name alone."""
        self._unlisted.update(() if listed else rows)
        self.shipped.update(
            {name: EntryPoint(name=name, value=value, group=self.group) for name, value in rows.items()}
        )
        self.__dict__.pop("_entries", None)

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        entries = dict(self.shipped)
        for entry in sorted(entry_points(group=self.group), key=lambda entry: entry.name):
            if entries.setdefault(entry.name, entry) != entry:
                logger.warning(
                    "the %s %r of %s is ignored: this name is already registered", self.what, entry.name, entry.value
                )
        return entries

    def __iter__(self) -> Iterator[str]:
        return iter(name for name in self._entries if name not in self._unlisted)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> T:
        """Return the thing registered under a name."""
        if name not in self._loaded:
            self.check(name)
            self._loaded[name] = self._load(self._entries[name])
        return self._loaded[name]

    def usable(self) -> dict[str, T]:
        """Return all entries; those of other packages that cannot be loaded are skipped with a warning."""
        for name in self:
            try:
                self[name]
            except DataError as error:
                if name not in self._broken:
                    logger.warning("%s: skipped", error)
                self._broken.add(name)
        return {name: self._loaded[name] for name in self if name in self._loaded}

    def check(self, name: str) -> None:
        """Raise unless a name is registered; loads nothing."""
        if name not in self._entries:
            raise DataError(
                f"expected a {self.what}, one of {', '.join(self)}, got {name!r}{nearest(name, self._entries)}"
            )

    def reload(self) -> None:
        """Forget loaded things and discovered packages."""
        self._loaded.clear()
        self.__dict__.pop("_entries", None)

    def _load(self, entry: EntryPoint) -> T:
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:
            if entry.name in self.shipped:
                raise
            reason = f"it ends the process ({error})" if isinstance(error, SystemExit) else error
            raise DataError(f"the {self.what} {entry.name!r} of {entry.value} cannot be loaded: {reason}") from error
        if not isinstance(value, self.kind):
            raise DataError(
                f"expected {entry.value} to be a {self.kind.__name__}, the {self.what} {entry.name!r}, "
                f"got a {type(value).__name__}"
            )
        return value
