"""A tiny BERT on disk and in memory, and a toy task."""

from pathlib import Path

import pytest

from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.values import Task
from tests.models import save_tiny
from tests.toy_task import toy_task


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a tiny BERT."""
    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="session")
def encoder(folder: Path) -> Encoder:
    encoder = load_encoder(str(folder), device="cpu")
    assert (encoder.description.n_blocks, encoder.description.hidden_size) == (3, 16)
    assert encoder.description.parameters[-1] < 10_000
    return encoder


@pytest.fixture(scope="session")
def task() -> Task:
    """64, 32 and 32 pairs."""
    return toy_task()


@pytest.fixture(scope="session")
def protocol() -> Protocol:
    """Short and fast enough to learn something."""
    return Protocol(learning_rate=3e-3, epochs=3, batch_size=8)
