from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from tests.models import save_tiny


@pytest.fixture(autouse=True)
def looked_at_once() -> None:
    """Here every model is looked at whenever it is first used."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint by its architecture; read it, do not change it."""
    return cache(lambda name: save_tiny(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def loaded(checkpoint: Callable[[str], Path]) -> Callable[[str], Encoder]:
    """A tiny encoder by its architecture."""
    return cache(lambda name: load_encoder(str(checkpoint(name))))
