"""Every exception that users can meet. A message says what was expected, what was found and what to do.

`option` names an argument: as an option on the command line, as a keyword in Python.
"""

import re
import shlex
from contextvars import ContextVar

ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)
"""Whether a command of the command line is running."""
_IN_PYTHON = {"keep_blocks": "blocks", "split_seed": "seed"}
"""Arguments with another name in Python."""


def option(name: str, value: str | bool | None = None, **more: str) -> str:
    """Return an argument as a message names it: an option of the command line, or a keyword in Python.

    Args:
        name: Name of the argument, such as cache_dir.
        value: Suggested value; None leaves it open.
        more: Further arguments with their values.
    """
    if ON_COMMAND_LINE.get():
        flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
        if isinstance(value, str):
            flag += f" '{value}'" if "," in value and shlex.quote(value) == value else f" {shlex.quote(value)}"
        return " ".join([flag, *(option(key, other) for key, other in more.items())])
    given = f"{_IN_PYTHON.get(name, name)}={'...' if value is None else repr(value)}"
    return ", ".join([given, *(option(key, other) for key, other in more.items())])


def another_folder() -> str:
    """Return the advice to choose another cache folder."""
    return f"choose another folder with {option('cache_dir')} or LAYERPROBE_CACHE"


LONGEST = 1200
"""Longest message, in characters; a single word may have a third of them."""
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal or change the direction of its text."""


def printable(text: str) -> str:
    r"""Return a text with characters that control a terminal or its text direction escaped.

    Examples:
        >>> print(printable("a\x1b[2Jb"))
        a\x1b[2Jb
    """
    return COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    r"""Return a printable text on one line; file names can contain line breaks.

    Examples:
        >>> print(one_line("a\n\tb\x1b[31m"))
        a b\x1b[31m
    """
    return printable(re.sub(r"[\t\n\r]+", " ", text))


def shortened(text: str, most: int) -> str:
    """Return a text of at most about `most` characters; longer ones lose their middle."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-(most // 4) :]}"


def to_message(text: str) -> str:
    """Return a text on one line, escaped and shortened in the middle, even if it quotes a file.

    Examples:
        >>> to_message("no key a" + "b" * 5000 + ": name it")[-30:]
        'bbbbbbbbbbbbbbbbbbbbb: name it'
    """
    words = printable(text.strip()).split()
    return shortened(" ".join(shortened(word, LONGEST // 3) for word in words), LONGEST)


class LayerProbeError(Exception):
    """Root of all expected failures; the command line prints it as one line and exits with 1."""

    def __init__(self, message: str = "") -> None:
        super().__init__(to_message(message))


class ModelError(LayerProbeError):
    """A model cannot be found, loaded or truncated."""


class UnsupportedArchitectureError(ModelError):
    """A model whose blocks cannot be removed one by one."""


class DataError(LayerProbeError, ValueError):
    """Texts, files or scores are unusable."""


class TaskError(DataError):
    """A task's file, columns, scores or splits are invalid."""


class MissingPackageError(ModelError, DataError):
    """A package from an extra of layerprobe is not installed."""


class DegenerateLayerError(DataError):
    """A layer has no defined similarity: it is constant, not finite, or has too few rows."""


class MisalignedSamplesError(DataError):
    """Two sets of embeddings do not belong to the same texts."""


class StoreError(LayerProbeError):
    """A store on disk cannot be read or written."""


class DamagedStoreError(StoreError):
    """A file of a store is missing, truncated or altered."""


class FormatError(StoreError, DataError):
    """A file was written by an older or newer layerprobe."""


class WorkerError(LayerProbeError):
    """A worker process cannot do its job; one on another machine may."""


class LostWorkerError(WorkerError):
    """Every process that tried a job was killed, or one raised an unexpected error."""


class TrainingError(LayerProbeError):
    """Fine-tuning or pretraining failed."""


class InsufficientMemoryError(TrainingError):
    """Training does not fit into free memory; it may fit later, or elsewhere."""


UNRELIABLE = "Do not rely on these numbers."
"""Last sentence of a warning without which a verdict would mislead: pages never fold such warnings."""


def unreliable(warning: str) -> str:
    """Mark a warning as one without which a verdict would mislead."""
    return f"{warning}. {UNRELIABLE}"


def is_unreliable(warning: str) -> bool:
    """Return whether a verdict would mislead without a warning, which may come from a file."""
    return warning.endswith(UNRELIABLE)
