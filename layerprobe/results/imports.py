"""Libraries that only showing a result needs, imported when something is shown."""

from importlib import import_module
from typing import Any

from layerprobe.errors import LayerProbeError


def imported(module: str) -> Any:
    """Import a module that showing results needs; a missing package is a LayerProbeError."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("layerprobe"):
            raise
        package = error.name.partition(".")[0]
        raise LayerProbeError(
            f"expected {package}, which shows results, to be installed: pip install {package}"
        ) from error
