"""Which device models are run on, and in which precision. Knows no models."""

import platform
import re
from pathlib import Path

import torch
import transformers

from layerprobe.encoders.failures import first_sentence
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError, option
from layerprobe.versions import __version__

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_INFO = Path("/proc/cpuinfo")
LIBRARIES = {"layerprobe": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
"""By which what is kept of a model is known besides: another version may compute something else."""


def resolve_device(device: str) -> torch.device:
    """Return the device that `device` names; auto takes CUDA, then MPS, then the CPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        if device != "cuda":
            return torch.device(device)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"expected a device that is there, got {device!r}: torch finds no GPU with CUDA; take cpu or auto"
        )
    if device.startswith("cuda") and getattr(torch.cuda, "_is_in_bad_fork", bool)():
        raise ModelError(
            "this process was forked from one that uses the GPU, which it cannot use: start processes by spawn "
            f"(multiprocessing.get_context('spawn')), or take {option('device', 'cpu')}"
        )
    if device == "cuda":
        return torch.device(device)
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"expected a device such as auto, cpu, cuda or cuda:1, got {device!r}: {first_sentence(error)}"
        ) from error
    return place


def float64_device(device: torch.device) -> torch.device:
    """Return where sums can be made of what is on a device: they need float64, which MPS does not have."""
    return torch.device("cpu") if device.type == "mps" else device


def autocast_dtype(dtype: str, device: torch.device) -> torch.dtype | None:
    """Return the reduced precision that `dtype` asks for on a device; None for float32."""
    if dtype == "auto":
        return torch.bfloat16 if _computes_bfloat16(device) else None
    if dtype not in DTYPES:
        raise ModelError(f"expected dtype auto, {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]


def _computes_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies in bfloat16 itself; processors that emulate it are faster in float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # torch 2.8 has no public names; the first says yes of Intel and AMD processors that emulate it, too
    if device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    arm = platform.machine().lower() in ("aarch64", "arm64")
    return arm or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def dtype_name(dtype: str, device: torch.device) -> str:
    """Return the dtype of the forward pass: what `auto` comes to on a device."""
    return str(autocast_dtype(dtype, device) or "float32").removeprefix("torch.")


def processor() -> str:
    """Return the name of the CPU."""
    named = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE) if CPU_INFO.is_file() else None
    return named[1] if named else platform.processor() or platform.machine()


def computed_on(options: Model) -> str:
    """Return the kind of device and the precision, on which the numbers of training depend besides the model.

    Dropout is another on another device.
    """
    device = resolve_device(options.device)
    return f"{device.type} {dtype_name(options.dtype, device)}"
