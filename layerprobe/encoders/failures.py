"""Errors of third-party code in one line: models, tokenizers, torch, the hub. Knows names and errors, no models."""

import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.utils.tqdm import enable_progress_bars

from layerprobe.encoders.model import split_name
from layerprobe.errors import LayerProbeError, ModelError, option
from layerprobe.files.inputs import DATA, is_path, similar_file
from layerprobe.names import without_password
from layerprobe.process import while_needed

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


WEIGHT_FILES = ("model*.safetensors", "pytorch_model*.bin")
NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"
NO_NETWORK = {"ConnectError", "ConnectionError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectTimeout"}


@contextlib.contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Turn errors of transformers and of the hub into one line with advice."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # damaged files raise all kinds of errors, from SafetensorError to TypeError
        raise ModelError(explanation(name, error)) from error


def explanation(name: str, error: BaseException) -> str:
    """Return one line on why a model, by its name or folder, cannot be loaded, and what to do."""
    source, revision = split_name(name)
    folder = Path(source)
    kinds = class_names(error)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", source)
            hides = " (it hides the Hub's model of that name)" if hub_id else ""
            return f"the folder {name} has no config.json{hides}: expected a Hugging Face checkpoint"
        if not any(file for pattern in (*WEIGHT_FILES, "*.index.json") for file in folder.glob(pattern)):
            return f"the folder {name} has no weights: expected model.safetensors or pytorch_model.bin in it"
    elif is_path(source):
        kind = "file" if source.lower().endswith(DATA) else "folder"
        advice = "expected a folder with a checkpoint, or a hub id such as org/name"
        return f"there is no {kind} {name}: {advice}{similar_file(source)}"
    elif "RevisionNotFoundError" in kinds:
        return f"{source} has no revision {revision}: expected a branch, tag or commit of the hub repository"
    elif "GatedRepoError" in kinds:
        return f"{source} is gated: ask for access on its hub page, then set HF_TOKEN or run `hf auth login`"
    elif "RepositoryNotFoundError" in kinds:
        return f"there is no model {source} on the hub, and no folder of that name: check the spelling, or set HF_TOKEN"
    elif kinds & NO_NETWORK:
        offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        reason = f"the hub cannot be reached{offline}"
        if "FileMetadataError" in kinds:
            address = without_password(constants.ENDPOINT)
            reason = f"the answer at {address} does not come from the hub (a proxy, or a login page)"
        return f"{source} is not in the local hub cache and {reason}: connect once, or give a local folder"
    elif "HfHubHTTPError" in kinds:
        return (
            f"{source} cannot be loaded: {first_sentence(error)}: try again later, or set HF_HUB_OFFLINE=1, which "
            "uses downloaded files"
        )
    if "UnpicklingError" in kinds:
        return f"refusing to load the weights of {name}: the file contains more than tensors, or is damaged"
    if "trust_remote_code" in str(error):
        return f"{name} comes with its own code: review it, then allow it with {option('trust_remote_code', True)}"
    return f"{name} cannot be loaded: {first_sentence(error)}"


@while_needed
@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress load reports, whose important parts become errors, and bars, except for downloads on terminals.

    Also skip background requests to the hub for safetensors: the published ELECTRA has none.
    """
    logging_: Any = transformers.utils.logging
    level, bars = logging_.get_verbosity(), logging_.is_progress_bar_enabled()
    before = os.environ.get(NO_CONVERSION)
    try:
        logging_.set_verbosity_error()
        terminal = False
        with contextlib.suppress(AttributeError, ValueError):  # stderr may be replaced by something else, or closed
            terminal = sys.stderr.isatty()
        logging_.disable_progress_bar()
        if terminal:
            enable_progress_bars()
        os.environ[NO_CONVERSION] = "1"
        yield
    finally:
        os.environ.pop(NO_CONVERSION, None)
        if before is not None:
            os.environ[NO_CONVERSION] = before
        logging_.set_verbosity(level)
        if bars:
            logging_.enable_progress_bar()
