"""The machine that a benchmark runs on, and its clock: what every row of research/performance.md names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from layerprobe.profiling.run import hardware


def native_bfloat16() -> bool:
    """Return whether the processor multiplies in bfloat16 itself; where it does not, libraries emulate it, slower."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"))


def bfloat16_or_say() -> bool:
    """Return whether to measure bfloat16; where it is emulated, say that it is left out."""
    if not native_bfloat16():
        print(f"left out: bfloat16, which this processor ({instructions()}) emulates")
    return native_bfloat16()


def instructions() -> str:
    """Return the widest instructions that torch uses here, and bfloat16 where the processor has it."""
    widest = torch.backends.cpu.get_cpu_capability().replace("AVX512", "AVX-512")
    return f"{widest}, bfloat16" if native_bfloat16() else widest


def describe(threads: int) -> str:
    """Return processor, instruction set, threads, and how busy the machine is."""
    others = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else "load unknown"
    clock = "processor time" if threads == 1 else "time by the clock"
    name = hardware(torch.device("cpu"))
    return f"{name}, {instructions()}, {threads} thread(s), {others}, {clock}, {time.strftime('%Y-%m-%d')}"


def clock(threads: int) -> Callable[[], float]:
    """Return the clock: the process's own time on one thread, which other work on the machine changes less."""
    return time.process_time if threads == 1 else time.perf_counter


def seconds(way: Callable[[], object], threads: int) -> float:
    """Return how long one call takes."""
    now = clock(threads)
    start = now()
    way()
    return now() - start
