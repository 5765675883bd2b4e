"""Errors of other people's code: models, tokenizers, torch, the hub. Knows errors, no models."""

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator

import torch

from layerprobe.errors import LayerProbeError, ModelError
from layerprobe.names import without_password

# What failed allocations say that are no torch.OutOfMemoryError: of a CPU, of CUDA outside torch's allocator, of MPS.
_NO_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",  # of cuBLAS, cuDNN, cuSPARSE and so on
    "MPS backend out of memory",
)
ADVICE = "take another model, or see the error's __cause__, which --traceback shows"


@contextlib.contextmanager
def model_errors(
    name: str, stage: str, *, advice: str = ADVICE, but: Callable[[Exception], bool] = lambda error: False
) -> Iterator[None]:
    """Turn what a model's own code raises into one line: the model, the stage, the reason, what to try.

    It stands around calls into that code alone, so that errors of ours stay what they are. Expected failures, and
    those of memory, which callers mend, pass as they came; so do those that `but` picks.
    """
    try:
        yield
    except LayerProbeError:
        raise
    except Exception as error:  # models raise anything
        if is_out_of_memory(error) or but(error):
            raise
        raise ModelError(f"{stage} of {name} failed: {first_sentence(error)}; {advice}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device, or the memory of the computer, had no room for a tensor."""
    typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return typed or (isinstance(error, RuntimeError) and any(message in str(error) for message in _NO_MEMORY))


def class_names(error: BaseException | None) -> set[str]:
    """Return the names of the classes of an error and of what it came from."""
    names = set()
    while error is not None:
        names.add(type(error).__name__)
        error = error.__cause__ or error.__context__
    return names


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error's text, on one line; where it has none, or one word, with its class."""
    sentence = re.split(r"\.\s", without_password(str(error)).strip())[0].rstrip(".")
    sentence = textwrap.shorten(sentence, 300, placeholder=" ...")
    if not sentence:
        return type(error).__name__
    return sentence if " " in sentence else f"{type(error).__name__}: {sentence}"
