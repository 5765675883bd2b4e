"""The version, in one place, and those of what the numbers depend on."""

import platform
from importlib import metadata

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that the numbers depend on."""
    libraries = ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in libraries}}
