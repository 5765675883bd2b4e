"""The peak memory of a piece of work. Knows devices and /proc, no models."""

import contextlib
import ctypes
import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs, sets the kernel's VmHWM to the present VmRSS (proc(5), since Linux 4.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGauge:
    """Measures how far memory rises above what was in use when it was made."""

    how: str
    """What is measured, in plain words."""
    before: int = 0
    """Bytes in use when it was made."""
    restart: Callable[[], None]
    """Forgets the peak so far."""
    highest: Callable[[], int] | None = None
    """Returns the bytes at the peak since `restart`; None where there is no way to know them."""

    def peak(self) -> int | None:
        """Return the bytes of the peak since `restart`, above those in use when the gauge was made."""
        return None if self.highest is None else self.highest() - self.before


def gauge_for(device: torch.device) -> MemoryGauge:
    """Return a gauge that starts at what is in use on the device now."""
    if device.type == "cuda":
        return MemoryGauge(
            how="peak of torch's allocations on the device (max_memory_allocated), less those before the model was "
            "made",
            before=torch.cuda.memory_allocated(device),
            restart=functools.partial(torch.cuda.reset_peak_memory_stats, device),
            highest=functools.partial(torch.cuda.max_memory_allocated, device),
        )
    if device.type == "cpu" and resident_peak_works():
        _trim()
        return MemoryGauge(
            how="rise of the process's resident memory (VmHWM, reset for each shape), freed heap returned before",
            before=_status("VmRSS"),
            restart=_reset_resident_peak,
            highest=functools.partial(_status, "VmHWM"),
        )
    return MemoryGauge(how=f"not measured: there is no reliable way on {device.type} here", restart=lambda: None)


def resident_peak_works() -> bool:
    """Return whether this kernel lets the high-water mark be reset, and the C library give memory back."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
        return sys.platform == "linux" and _status("VmHWM") > 0 and _trim() is not None
    except (OSError, ValueError):
        return False


def _reset_resident_peak() -> None:
    _trim()
    CLEAR_REFS.write_text(RESET_PEAK)


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
