from pathlib import Path

import pytest

from layerprobe.lab.studies.run import run_lab
from layerprobe.lab.studies.values import LabResult
from tests.cli.conftest import layerprobe
from tests.lab.studies.studies import OPTIONS, SMALL

__all__ = ["folder", "layerprobe", "result"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small study is."""
    return tmp_path_factory.mktemp("lab") / "small"


@pytest.fixture(scope="session")
def result(folder: Path) -> LabResult:
    """What it gave."""
    return run_lab(SMALL, folder, options=OPTIONS)
