from pathlib import Path

import pytest

from layerprobe.lab.chains.values import ChainResult
from tests.cli.conftest import layerprobe
from tests.lab.chains.jobs import run_here, whole_chain, write_data
from tests.models import save_tiny

__all__ = ["data", "layerprobe", "model", "reference", "whole"]


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
def whole(model: Path, reference: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> ChainResult:
    """What a chain with every kind of step, a control and a reference gives."""
    return run_here(whole_chain(model, data, reference=str(reference)), tmp_path_factory.mktemp("cache"))
