"""The peak memory of a piece of work. Knows devices and /proc, no models."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from abc import ABC, abstractmethod
from pathlib import Path

import torch

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs, sets the kernel's VmHWM to the present VmRSS (proc(5), since Linux 4.0)."""


class MemoryGauge(ABC):
    """Measures how far memory rises above what was in use when it was made."""

    how: str
    """What is measured, in plain words."""

    @abstractmethod
    def restart(self) -> None:
        """Forget the peak so far."""

    @abstractmethod
    def peak(self) -> int | None:
        """Return the bytes of the peak since `restart`, above those in use when the gauge was made."""


def gauge_for(device: torch.device) -> MemoryGauge:
    """Return a gauge that starts at what is in use on the device now."""
    if device.type == "cuda":
        return CudaGauge(device)
    return ResidentGauge() if device.type == "cpu" and ResidentGauge.works() else NoGauge(device)


class CudaGauge(MemoryGauge):
    """Allocations of torch on a CUDA device."""

    how = "peak of torch's allocations on the device (max_memory_allocated), less those before the model was made"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = torch.cuda.memory_allocated(device)

    def restart(self) -> None:
        """Forget the peak so far."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Return the bytes of the peak since `restart`, above those in use when the gauge was made."""
        return torch.cuda.max_memory_allocated(self._device) - self._before


class ResidentGauge(MemoryGauge):
    """Resident memory of this process, by the kernel's own high-water mark."""

    how = "rise of the process's resident memory (VmHWM, reset for each shape), freed heap returned before"

    def __init__(self) -> None:
        _trim()
        self._before = _status("VmRSS")

    @staticmethod
    def works() -> bool:
        """Return whether this kernel lets the high-water mark be reset, and the C library give memory back."""
        try:
            CLEAR_REFS.write_text(RESET_PEAK)
            return sys.platform == "linux" and _status("VmHWM") > 0 and _trim() is not None
        except (OSError, ValueError):
            return False

    def restart(self) -> None:
        """Forget the peak so far."""
        _trim()
        CLEAR_REFS.write_text(RESET_PEAK)

    def peak(self) -> int:
        """Return the bytes of the peak since `restart`, above those in use when the gauge was made."""
        return _status("VmHWM") - self._before


class NoGauge(MemoryGauge):
    """Says that it does not know."""

    def __init__(self, device: torch.device) -> None:
        self.how = f"not measured: there is no reliable way on {device.type} here"

    def restart(self) -> None:
        """Do nothing."""

    def peak(self) -> None:
        """Return None."""


def _status(name: str) -> int:
    line = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if line is None:
        raise ValueError(f"expected {name} in {STATUS}")
    return int(line[1]) * 1024


def _trim() -> int | None:
    """Give what was freed back to the system: used again, it would hide what comes next. None where that fails."""
    with contextlib.suppress(OSError, AttributeError):  # a C library other than glibc
        return int(ctypes.CDLL(None).malloc_trim(0))
    return None
