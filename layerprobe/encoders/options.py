"""How models are resolved and loaded, and how texts are embedded. Knows settings and the store, no stage."""

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

import torch
import transformers

from layerprobe.encoders.backends.backend import TORCH, check_backend
from layerprobe.encoders.blockwise import FIRST_BLOCKS, BlockByBlock, open_block_by_block
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.first_use import FirstUse, look
from layerprobe.encoders.loading import Checkpoint, autocast_dtype, load_encoder, resolve_device
from layerprobe.encoders.values import Pooling, check_attn
from layerprobe.errors import DataError, StoreError
from layerprobe.files.serialisation import digest
from layerprobe.store.key import StoreDtype
from layerprobe.store.store import Store
from layerprobe.versions import FIRST_USE_VERSION, __version__

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How models are loaded and texts are embedded."""

    pooling: Pooling | None = None
    """mean, cls, max or last: how token states become one embedding. By default as a configuration of
    sentence-transformers beside the model says; else last for a model that reads from left to right, and mean."""
    max_length: int | None = None
    """Tokens a text at most; the model's own limit, at most 512, by default."""
    prompt: str | None = None
    """Put before every text; by default that of a configuration of sentence-transformers beside the model, else
    none."""
    dtype: str = "float32"
    """float32, bfloat16, float16, or auto: bfloat16 where the hardware has it."""
    norm: str = "final"
    """final or raw: whether pre-norm models get their final norm at every layer."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    attn: str = "auto"
    """auto, or an attention implementation of transformers."""
    backend: str = TORCH
    """What computes embeddings on a CPU: one of `BACKENDS`, or auto, the fastest of those that equal torch for the
    model. What is in the store is the same entry whatever it was, as it is whatever the device: they differ by
    rounding. Fine-tuning, and what token states are like, are always torch's."""
    batch_tokens: int | None = None
    """Tokens that go through the model at once, padding included, in extraction and in fine-tuning, where the examples
    of a step stay the protocol's; by device by default. Results do not depend on it beyond rounding and the draws of
    dropout, for which runs with it are kept apart from those without."""
    trust_remote_code: bool = False
    """Run model code that comes with a checkpoint."""
    cache_dir: Path | None = None
    """Where the store is; LAYERPROBE_CACHE or the user's cache folder by default."""
    store_dtype: StoreDtype = "float32"
    """float32, or float16: in which embeddings are kept, at half the size and with 11 bits of a number."""

    def __post_init__(self) -> None:
        if self.pooling is not None and self.pooling not in get_args(Pooling):
            raise DataError(f"expected pooling by one of {', '.join(get_args(Pooling))}, got {self.pooling!r}")
        check_backend(self.backend)
        check_attn(self.attn)
        if self.store_dtype not in get_args(StoreDtype):
            raise DataError(f"expected embeddings in {' or '.join(get_args(StoreDtype))}, got {self.store_dtype!r}")
        if self.max_length is not None and self.max_length < 2:
            raise DataError(f"expected room for at least two tokens a text, got max_length={self.max_length}")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise DataError(f"expected at least one token a batch, got batch_tokens={self.batch_tokens}")


DEFAULT_OPTIONS = Options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Options):
    """Options that say how texts become embeddings of one model."""

    pooling: Pooling = "mean"
    """mean, cls, max or last: how token states become one embedding."""
    prompt: str = ""
    """Put before every text."""
    query_prompt: str = ""
    """Put before queries in its place, where their task has no prompt of its own for them."""
    document_prompt: str = ""
    """Likewise before documents."""


def settled(checkpoint: Checkpoint, options: Options) -> Settled:
    """Return options in which the model says what the user does not: how to pool, and the prompts."""
    if isinstance(options, Settled):
        return options
    recipe, said = checkpoint.recipe, {f.name: getattr(options, f.name) for f in fields(options)}
    said["pooling"] = recipe.pooling if options.pooling is None else options.pooling
    said["prompt"] = recipe.prompt if options.prompt is None else options.prompt
    configured = recipe.retrieval_prompts if options.prompt is None else None
    query, document = configured or (said["prompt"],) * 2
    return Settled(**said, query_prompt=query, document_prompt=document)


def changed(options: Options) -> dict[str, str]:
    """Return the settings that differ from their defaults, without where things are kept."""
    return {
        f.name: str(getattr(options, f.name))
        for f in fields(options)
        if f.name != "cache_dir" and getattr(options, f.name) != f.default
    }


def load(checkpoint: Checkpoint, options: Options) -> Encoder:
    """Load the weights of a checkpoint; where it is first used, its layers are held against truncated models.

    Raises:
        ModelError: If it cannot be loaded.
        UnsupportedArchitectureError: If its layers are not those of its truncations.
    """
    return first_use(checkpoint, options)[1] or _loaded(checkpoint, options)


def first_use(checkpoint: Checkpoint, options: Options) -> tuple[FirstUse, Encoder | None]:
    """Return what was found when a model was first used, from the store or now; with the encoder if it is loaded now.

    It is kept by all that it depends on: the model, the attention, the kind of device, and the libraries' versions.

    Raises:
        ModelError, UnsupportedArchitectureError: As `load`.
    """
    store, key = Store(options.cache_dir), _use_key(checkpoint, options)
    encoder = None
    found = store.load_result("first-use", key, FirstUse)
    if found is None:
        encoder = _loaded(checkpoint, options)
        found = look(encoder)
        try:
            store.save_result("first-use", key, found)
        except StoreError as error:
            logger.warning("%s is looked at whenever it is used: %s", checkpoint.label, error)
    found.check(checkpoint.label)
    return found, encoder


def kept_use(checkpoint: Checkpoint, options: Options) -> FirstUse | None:
    """Return what was found when a model, or at least its first blocks, were first used; None where neither was."""
    store = Store(options.cache_dir)
    found = store.load_result("first-use", _use_key(checkpoint, options), FirstUse)
    if found is None:
        found = store.load_result("first-use", _use_key(checkpoint, options, blocks=FIRST_BLOCKS), FirstUse)
    return found


def open_blocks(checkpoint: Checkpoint, options: Options) -> tuple[FirstUse, BlockByBlock]:
    """Return a model of which one block at a time is in memory, and what was found of its first blocks, which is kept.

    Raises:
        ModelError: If it cannot be loaded, or has no safetensors.
        UnsupportedArchitectureError: If its layers are not those of its truncations, or a block alone gives others.
    """
    blocks, few = open_block_by_block(
        checkpoint, device=options.device, dtype=options.dtype, norm=options.norm, attn=options.attn
    )
    found = look(few)
    found.check(checkpoint.label)
    Store(options.cache_dir).save_result("first-use", _use_key(checkpoint, options, blocks=FIRST_BLOCKS), found)
    return found, blocks


def _use_key(checkpoint: Checkpoint, options: Options, **more: int) -> str:
    folder = checkpoint.revision.startswith("sha256:")
    return digest(
        {
            "model": "" if folder else checkpoint.source,
            **checkpoint.identity,
            "attn": options.attn,
            "device": resolve_device(options.device).type,
            "version": FIRST_USE_VERSION,
            "layerprobe": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **more,
        }
    )


def _loaded(checkpoint: Checkpoint, options: Options) -> Encoder:
    return load_encoder(checkpoint, device=options.device, dtype=options.dtype, norm=options.norm, attn=options.attn)


def dtype_name(options: Options) -> str:
    """Return what the forward pass computes in, `auto` resolved."""
    return str(autocast_dtype(options.dtype, resolve_device(options.device)) or "float32").removeprefix("torch.")


def computed_on(options: Options) -> str:
    """Return the kind of device and the precision, on which the numbers of training depend beside the model.

    Dropout is another on another device.
    """
    return f"{resolve_device(options.device).type} {dtype_name(options)}"
