"""Every exception a user can meet. A message says what was expected, what came and what to do.

Messages are written with the options of the command line; where Python is called, they have its keywords.
"""

import re
from contextvars import ContextVar

ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)
"""Whether a command of the command line is what runs."""
_SWITCHES = {
    *("overwrite", "skip_empty", "skip_broken", "keep_overlaps", "front", "save_models", "public", "blockwise"),
    *("fine_tuning", "end_token", "trust_remote_code", "scan"),
}
_IN_PYTHON = {"keep_blocks": "blocks", "split_seed": "seed", "queries": "query_prompt"}
_OPTION = re.compile(
    r"`[^`]*`|(?<![^\s(])--(?P<no>no-)?(?P<name>[a-z][a-z0-9-]*)(?: \((?P<both>\w+=\w*)\))?"
    r"(?P<value>(?: |=)(?:'[^']*'|[a-z]+=\S*|\w+,[\w,]+|\w*\d\w*|cpu|torch|raw|zscore|rbf|debiased|None|openvino|onnx"
    r"|retrieval|triplets|FILE))?(?!\w)"
)


def in_python(message: str) -> str:
    """Return a message with keywords in the place of options; commands in backticks stay.

    Examples:
        >>> in_python("choose another folder with --cache-dir, or replace it with --overwrite")
        'choose another folder with cache_dir=..., or replace it with overwrite=True'
        >>> in_python("choose --kind retrieval, or go on with --skip-empty (skip_empty=True)")
        "choose kind='retrieval', or go on with skip_empty=True"
        >>> in_python("remove hub/models--org--name, or the row '--device'")
        "remove hub/models--org--name, or the row '--device'"
    """

    def keyword(match: re.Match[str]) -> str:
        if match["name"] is None or match["both"]:
            return match["both"] or match[0]
        name = match["name"].replace("-", "_")
        name, value = _IN_PYTHON.get(name, name), (match["value"] or "")[1:]
        if value.endswith("="):
            value += "..."
        if not value:
            return f"{name}={not match['no']}" if name in _SWITCHES else f"{name}=..."
        return f"{name}={value}" if value[0] in "'N" or value.isdecimal() else f"{name}={value!r}"

    return re.sub(r"(=[^ ,]+|='[^']*') (?=\w+=['.])", r"\1, ", _OPTION.sub(keyword, message))


class LayerProbeError(Exception):
    """Root of all expected failures; the command line prints it as one line and exits with 1."""

    def __str__(self) -> str:
        message = super().__str__()
        return message if ON_COMMAND_LINE.get() else in_python(message)


class ModelError(LayerProbeError):
    """A model cannot be found, loaded or truncated."""


class UnsupportedArchitectureError(ModelError):
    """A model whose blocks cannot be cut off one by one."""


class DataError(LayerProbeError, ValueError):
    """Texts, files or scores that cannot be used."""


class CallError(DataError, TypeError):
    """A function was called with arguments that it does not take."""


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


class StoreVersionError(StoreError):
    """A store was written by a newer layerprobe."""


class HubError(LayerProbeError):
    """Something cannot be uploaded to the Hugging Face Hub."""


class WorkerError(LayerProbeError):
    """A process that shares the work cannot do it; one on another machine may."""


class LostWorkerError(WorkerError):
    """Every process that tried a job was killed, or one raised what nobody expected."""


class TrainingError(LayerProbeError):
    """Fine-tuning or pretraining failed."""

    def __init__(self, message: str, *, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step
        """The step at which it failed, from 1; None where it is not known."""


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
