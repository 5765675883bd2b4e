"""Choice of the device and the precision of models. Knows no models."""

import platform
import re
from pathlib import Path

import torch
import transformers

from layerprobe.encoders.failures import first_sentence
from layerprobe.errors import ModelError, option
from layerprobe.versions import __version__

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_INFO = Path("/proc/cpuinfo")
LIBRARIES = {"layerprobe": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
"""Libraries whose versions are part of stored results' keys: another version may compute something else."""


def resolve_device(device: str) -> torch.device:
    """Return the device that `device` names; auto selects CUDA, then MPS, then the CPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        if device != "cuda":
            return torch.device(device)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"expected an available device, got {device!r}: torch finds no GPU with CUDA; use cpu or auto")
    if device.startswith("cuda") and getattr(torch.cuda, "_is_in_bad_fork", bool)():
        raise ModelError(
            "this process was forked from one that uses the GPU and cannot use it: start processes with spawn "
            f"(multiprocessing.get_context('spawn')), or use {option('device', 'cpu')}"
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
    """Return the device for sums over a device's tensors: they need float64, which MPS does not have."""
    return torch.device("cpu") if device.type == "mps" else device


def autocast_dtype(dtype: str, device: torch.device) -> torch.dtype | None:
    """Return the reduced precision that `dtype` requests on a device; None for float32."""
    if dtype == "auto":
        return torch.bfloat16 if _computes_bfloat16(device) else None
    if dtype not in DTYPES:
        raise ModelError(f"expected dtype auto, {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]


def _computes_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies in bfloat16 natively; processors that emulate it are faster in float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # torch 2.8 has no public names; the first also accepts Intel and AMD processors that emulate it
    if device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    arm = platform.machine().lower() in ("aarch64", "arm64")
    return arm or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def dtype_name(dtype: str, device: torch.device) -> str:
    """Return the dtype of the forward pass, with `auto` resolved for a device."""
    return str(autocast_dtype(dtype, device) or "float32").removeprefix("torch.")


def processor() -> str:
    """Return the name of the CPU."""
    named = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(), re.MULTILINE) if CPU_INFO.is_file() else None
    return named[1] if named else platform.processor() or platform.machine()


def computed_on(device: str, dtype: str) -> str:
    """Return the kind of device and the precision, on which results of training depend besides the model.

    Devices draw dropout differently.
    """
    place = resolve_device(device)
    return f"{place.type} {dtype_name(dtype, place)}"
