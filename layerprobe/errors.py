"""Every exception a user can meet. A message says what was expected, what came and what to do.

An argument is named by `option`: as an option where a command runs, as a keyword where Python is called.
"""

import re
import shlex
from contextvars import ContextVar

ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)
"""Whether a command of the command line is what runs."""
_IN_PYTHON = {"keep_blocks": "blocks", "split_seed": "seed"}
"""Arguments that are called otherwise in Python."""


def option(name: str, value: str | bool | None = None, **more: str) -> str:
    """Return how an argument is given, for a message: an option of the command line, or a keyword in Python.

    Args:
        name: Of the argument, such as cache_dir.
        value: What it is to be; None for whatever the user likes.
        more: Further arguments with their values.
    """
    if ON_COMMAND_LINE.get():
        flag = f"--{'no-' * (value is False)}{name.replace('_', '-')}"
        if isinstance(value, str):
            flag += f" '{value}'" if "," in value and shlex.quote(value) == value else f" {shlex.quote(value)}"
        return " ".join([flag, *(option(key, other) for key, other in more.items())])
    given = f"{_IN_PYTHON.get(name, name)}={'...' if value is None else repr(value)}"
    return ", ".join([given, *(option(key, other) for key, other in more.items())])


def another_folder() -> str:
    """Return the advice to choose another folder for what is kept."""
    return f"choose another folder with {option('cache_dir')} or LAYERPROBE_CACHE"


LONGEST = 1200
"""Characters of a message; of a word a third."""
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that command a terminal, or turn the direction of its text."""


def printable(text: str) -> str:
    r"""Return a text without characters that command a terminal or turn its direction: they are written as escapes.

    Examples:
        >>> print(printable("a\x1b[2Jb"))
        a\x1b[2Jb
    """
    return COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    r"""Return a printable text in one line, such as the name of a file that has line breaks.

    Examples:
        >>> print(one_line("a\n\tb\x1b[31m"))
        a b\x1b[31m
    """
    return printable(re.sub(r"[\t\n\r]+", " ", text))


def shortened(text: str, most: int) -> str:
    """Return a text, of which the middle is left out where it has more characters than `most`."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-(most // 4) :]}"


def as_message(text: str) -> str:
    """Return a text in one line, escaped and shortened in the middle, whatever a file that it quotes has put into it.

    Examples:
        >>> as_message("no key a" + "b" * 5000 + ": name it")[-30:]
        'bbbbbbbbbbbbbbbbbbbbb: name it'
    """
    words = printable(text.strip()).split()
    return shortened(" ".join(shortened(word, LONGEST // 3) for word in words), LONGEST)


class LayerProbeError(Exception):
    """Root of all expected failures; the command line prints it as one line and exits with 1."""

    def __init__(self, message: str = "") -> None:
        super().__init__(as_message(message))


class ModelError(LayerProbeError):
    """A model cannot be found, loaded or truncated."""


class UnsupportedArchitectureError(ModelError):
    """A model whose blocks cannot be cut off one by one."""


class DataError(LayerProbeError, ValueError):
    """Texts, files or scores that cannot be used."""


class TaskError(DataError):
    """A task's file, columns, scores or splits are not what they should be."""


class MissingPackageError(ModelError, DataError):
    """A package that an extra of layerprobe brings is not installed."""


class DegenerateLayerError(DataError):
    """A layer for which a similarity is not defined: constant, not finite, or too few rows."""


class MisalignedSamplesError(DataError):
    """Two sets of embeddings do not belong to the same texts."""


class StoreError(LayerProbeError):
    """A store on disk cannot be read or written."""


class DamagedStoreError(StoreError):
    """A file of a store is missing, cut short or altered."""


class FormatError(StoreError, DataError):
    """A file was written by an older or a newer layerprobe."""


class WorkerError(LayerProbeError):
    """A process that shares the work cannot do it; one on another machine may."""


class LostWorkerError(WorkerError):
    """Every process that tried a job was killed, or one raised what nobody expected."""


class TrainingError(LayerProbeError):
    """Fine-tuning or pretraining failed."""


class InsufficientMemoryError(TrainingError):
    """Training does not fit the memory that is free now; later, or elsewhere, it may."""


UNRELIABLE = "Do not rely on these numbers."
"""How a warning ends without which a verdict would mislead: pages never fold it."""


def unreliable(warning: str) -> str:
    """Return a warning as one without which a verdict would mislead."""
    return f"{warning}. {UNRELIABLE}"


def is_unreliable(warning: str) -> bool:
    """Return whether a verdict would mislead without a warning, also one that was read from a file."""
    return warning.endswith(UNRELIABLE)
