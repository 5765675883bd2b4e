from pathlib import Path

import pytest

from layerprobe.lab.results import RecipeResult
from layerprobe.lab.run import run_recipe
from tests.cli.conftest import layerprobe, pairs_file
from tests.lab.recipes import SMALL, whole_chain, write_data
from tests.models import save_tiny

__all__ = ["layerprobe", "pairs_file"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deeper model."""
    return save_tiny("electra", tmp_path_factory.mktemp("models") / "electra", num_hidden_layers=5)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def whole(model: Path, reference: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> RecipeResult:
    """What a chain with every kind of step and a reference gives."""
    return run_recipe(whole_chain(model, data, tmp_path_factory.mktemp("cache"), reference=str(reference)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small study is."""
    return tmp_path_factory.mktemp("lab") / "small"


@pytest.fixture(scope="session")
def result(folder: Path) -> RecipeResult:
    """What the small study gave."""
    return run_recipe(SMALL, folder)
