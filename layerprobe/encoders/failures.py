"""Errors of third-party code: models, tokenizers, torch, the hub. Knows errors, no models."""

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator

import torch

from layerprobe.errors import LayerProbeError, ModelError
from layerprobe.names import without_password

# Failed allocations other than torch.OutOfMemoryError: on a CPU, on CUDA outside torch's allocator, on MPS.
_NO_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN, cuSPARSE and others
    "MPS backend out of memory",
)
ADVICE = "use another model, or see the error's __cause__ with --traceback"


@contextlib.contextmanager
def model_errors(
    name: str, stage: str, *, advice: str = ADVICE, but: Callable[[Exception], bool] = lambda error: False
) -> Iterator[None]:
    """Turn an error of a model's own code into one line: the model, the stage, the reason, and advice.

    It wraps only calls into that code, so that our own errors stay unchanged. Expected failures, and
    lack of memory, which callers handle, pass unchanged; so do errors selected by `but`.
    """
    try:
        yield
    except LayerProbeError:
        raise
    except Exception as error:  # models raise all kinds of errors
        if is_out_of_memory(error) or but(error):
            raise
        raise ModelError(f"{stage} of {name} failed: {first_sentence(error)}; {advice}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device, or the computer's memory, had no space for a tensor."""
    typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return typed or (isinstance(error, RuntimeError) and any(message in str(error) for message in _NO_MEMORY))


def class_names(error: BaseException | None) -> set[str]:
    """Return the class names of an error and of its causes."""
    names = set()
    while error is not None:
        names.add(type(error).__name__)
        error = error.__cause__ or error.__context__
    return names


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error's text, on one line; with its class if it has no text, or one word."""
    sentence = re.split(r"\.\s", without_password(str(error)).strip())[0].rstrip(".")
    sentence = textwrap.shorten(sentence, 300, placeholder=" ...")
    if not sentence:
        return type(error).__name__
    return sentence if " " in sentence else f"{type(error).__name__}: {sentence}"
