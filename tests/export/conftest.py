from pathlib import Path

import pytest

from tests.models import save_tiny


@pytest.fixture(scope="session")
def fnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a tiny FNet, which mixes padding into its states."""
    return save_tiny("fnet", tmp_path_factory.mktemp("models") / "fnet")
