from collections.abc import Callable
from functools import cache

import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from tests.models import save_tiny


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Encoder]:
    """A tiny encoder by its architecture; read it, do not change it."""
    return cache(lambda name: load_encoder(str(save_tiny(name, tmp_path_factory.mktemp(name)))))
