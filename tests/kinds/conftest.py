from pathlib import Path

import pytest

from tests.encoders.conftest import checkpoint, loaded
from tests.finetuning.conftest import encoder, folder

__all__ = ["checkpoint", "encoder", "folder", "loaded"]


@pytest.fixture(scope="module")
def model(folder: Path) -> str:
    """The folder of a tiny model."""
    return str(folder)
