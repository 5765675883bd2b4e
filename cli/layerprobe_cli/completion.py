"""What the shell completes beside options: registered names, and tasks. Loads nothing before it is asked."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def names_of(place: str) -> Callable[[str], list[str]]:
    """Return what completes the names in a registry, or those that a function returns: `module:attribute`."""

    def complete(incomplete: str) -> list[str]:
        module, _, name = place.partition(":")
        names = getattr(import_module(module), name)
        return [choice for choice in (names() if callable(names) else names) if choice.startswith(incomplete)]

    return complete


def tasks(incomplete: str) -> list[str]:
    """Return the tasks that have a name, and the data files and folders on the way to one."""
    from layerprobe.tasks.sources import ALIASES
    from layerprobe.tasks.tables import CONLL_SUFFIXES, SUFFIXES

    typed, _, start = incomplete.rpartition("/")
    folder = Path(f"{typed}/" if "/" in incomplete else ".").expanduser()
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") or start)
    except OSError:
        entries = []
    way = f"{typed}/" if "/" in incomplete else ""
    paths = [f"{way}{entry.name}/" for entry in entries if entry.is_dir()]
    paths += [
        f"{way}{entry.name}"
        for entry in entries
        if entry.suffix.lower() in (*SUFFIXES, *CONLL_SUFFIXES) and entry.is_file()
    ]
    return [choice for choice in (*ALIASES, *paths) if choice.startswith(incomplete)]
