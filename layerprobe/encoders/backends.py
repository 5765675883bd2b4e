"""The backends that compute embeddings, by name. Knows no encoders; imports none of their libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.checks import EXTRAS, check_extra
from layerprobe.errors import DataError, ModelError, option
from layerprobe.names import nearest
from layerprobe.registry import Registry

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from layerprobe.encoders.graphs import Graph

AUTO = "auto"
"""The fastest backend that matches torch for a model."""
TORCH = "torch"
"""The encoder's own forward pass: for every model and device."""
ONNX = "onnx"
"""ONNX Runtime, which also measures 8-bit products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A library that runs graphs of encoders on a CPU."""

    name: str
    """Registered name, and name of the extra that installs it."""
    packages: tuple[str, ...]
    """Packages whose versions its graphs depend on."""
    dtypes: tuple[str, ...]
    """Precisions it can compute in, if the processor can."""
    write: Callable[[ExportedProgram, Path], None]
    """Writes the library's files for a graph to a folder."""
    compile: Callable[[Path, str], Graph]
    """Compiles the graph of a folder, in float32 or bfloat16, with torch's number of threads."""

    def versions(self) -> dict[str, str]:
        """Return the versions of its packages."""
        return {package: metadata.version(package) for package in self.packages}

    def check(self, device: str, dtype: str) -> None:
        """Check that it is installed, and supports a device and a precision."""
        check_installed(self.name)
        if device != "cpu":
            raise ModelError(
                f"expected a CPU for the backend {self.name}, got {device}: use {option('device', 'cpu')} or "
                f"{option('backend', 'torch')}"
            )
        if dtype not in self.dtypes:
            raise ModelError(
                f"expected {' or '.join(self.dtypes)} for the backend {self.name}, got {dtype}: "
                f"use another {option('dtype')} or {option('backend', 'torch')}"
            )


BACKENDS = Registry(
    "layerprobe.backends",
    Engine,
    what="backend",
    shipped={
        "openvino": "layerprobe.encoders.engines:OPENVINO",
        ONNX: "layerprobe.encoders.engines:ONNX",
    },
)
"""Backends other than torch, by name."""


def backend_names() -> list[str]:
    """Return the names to choose from: `AUTO`, `TORCH`, and every other backend."""
    return [AUTO, TORCH, *BACKENDS]


def check_backend(name: str) -> None:
    """Check the name of a backend."""
    names = backend_names()
    if name not in names:
        raise DataError(f"expected a backend, one of {', '.join(names)}, got {name!r}{nearest(name, names)}")


def check_installed(name: str) -> None:
    """Raise MissingPackageError if the packages of one of layerprobe's backends are missing; imports none of them."""
    if name in EXTRAS:
        check_extra(name, needed_by=f"the backend {name}")
