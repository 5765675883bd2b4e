"""Loads models by their options, with the check on first use. Knows settings and the store, no stage."""

import logging
import platform
import re
from pathlib import Path

import torch
import transformers

from layerprobe.encoders.blockwise import FIRST_BLOCKS, BlockByBlock, open_block_by_block
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.first_use import FirstUse, look
from layerprobe.encoders.loading import Checkpoint, autocast_dtype, load_encoder, resolve_device
from layerprobe.encoders.model import Options
from layerprobe.errors import StoreError
from layerprobe.files.serialisation import digest
from layerprobe.store.store import Store
from layerprobe.versions import FIRST_USE_VERSION, __version__

logger = logging.getLogger(__name__)

CPU_INFO = Path("/proc/cpuinfo")


def load(checkpoint: Checkpoint) -> Encoder:
    """Load the weights of a checkpoint; where it is first used, its layers are compared with truncated models."""
    return first_use(checkpoint)[1] or _loaded(checkpoint)


def first_use(checkpoint: Checkpoint) -> tuple[FirstUse, Encoder | None]:
    """Return the first-use check of a model, stored or made now; with the encoder if that was loaded for it.

    It is kept by all that it depends on: the model, the attention, the kind of device, and the libraries' versions.
    """
    options = checkpoint.options
    store, key = Store(options.cache_dir), _use_key(checkpoint)
    encoder = None
    first_use = store.load_result("first-use", key, FirstUse)
    if first_use is None:
        encoder = _loaded(checkpoint)
        first_use = look(encoder)
        try:
            store.save_result("first-use", key, first_use)
        except StoreError as error:
            logger.warning("%s is looked at whenever it is used: %s", checkpoint.label, error)
    first_use.check(checkpoint.label)
    return first_use, encoder


def kept_use(checkpoint: Checkpoint) -> FirstUse | None:
    """Return the stored first-use check of a model or its first blocks; None without one."""
    options = checkpoint.options
    store = Store(options.cache_dir)
    first_use = store.load_result("first-use", _use_key(checkpoint), FirstUse)
    if first_use is None:
        first_use = store.load_result("first-use", _use_key(checkpoint, blocks=FIRST_BLOCKS), FirstUse)
    return first_use


def open_blocks(checkpoint: Checkpoint) -> tuple[FirstUse, BlockByBlock]:
    """Return a model that holds one block at a time in memory, and the check of its first blocks."""
    options = checkpoint.options
    blocks, few = open_block_by_block(
        checkpoint, device=options.device, dtype=dtype_name(options), norm=options.norm, attn=options.attn
    )
    first_use = look(few)
    first_use.check(checkpoint.label)
    Store(options.cache_dir).save_result("first-use", _use_key(checkpoint, blocks=FIRST_BLOCKS), first_use)
    return first_use, blocks


def _use_key(checkpoint: Checkpoint, **more: int) -> str:
    options = checkpoint.options
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


def _loaded(checkpoint: Checkpoint) -> Encoder:
    options = checkpoint.options
    dtype = dtype_name(options)
    return load_encoder(checkpoint, device=options.device, dtype=dtype, norm=options.norm, attn=options.attn)


def dtype_name(options: Options) -> str:
    """Return the dtype of the forward pass; `auto` on a CPU is decided by timing, once per store."""
    device = resolve_device(options.device)
    if options.dtype != "auto" or device.type != "cpu":
        return _dtype_name(options.dtype, device)
    store, key = Store(options.cache_dir), digest([processor(), torch.__version__])
    name = store.load_result("auto-dtype", key, str)
    if name is None:
        name = _dtype_name("auto", device)
        try:
            store.save_result("auto-dtype", key, name)
        except StoreError as error:
            logger.warning("whether bfloat16 is faster is measured by every process: %s", error)
    return name


def processor() -> str:
    """Return the name of the CPU."""
    named = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE) if CPU_INFO.is_file() else None
    return named[1] if named else platform.processor() or platform.machine()


def _dtype_name(dtype: str, device: torch.device) -> str:
    return str(autocast_dtype(dtype, device) or "float32").removeprefix("torch.")


def computed_on(options: Options) -> str:
    """Return the kind of device and the precision, on which the numbers of training depend besides the model.

    Dropout is another on another device.
    """
    return f"{resolve_device(options.device).type} {dtype_name(options)}"
