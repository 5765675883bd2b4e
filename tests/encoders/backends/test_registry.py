"""Backends by name: one from another package, and that nothing outside the encoders names them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from layerprobe.encoders.backends import BACKENDS, TORCH
from layerprobe.encoders.graphs import survey
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from tests.models import TEXTS, given, save_tiny
from tests.plugins import install
from tests.sources import naming

TOY = """
import torch
from layerprobe.encoders.backends import Engine
from layerprobe.encoders.graphs import Graph


def compiled(folder, dtype):
    graph = torch.export.load(folder / "graph.pt2").module()
    return Graph(backend="exported", run=lambda batch: graph(**batch).detach().numpy())


EXPORTED = Engine(
    name="exported",
    packages=("torch",),
    dtypes=("float32",),
    write=lambda program, folder: torch.export.save(program, folder / "graph.pt2"),
    compile=compiled,
)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch, tmp_path, BACKENDS, TOY, {"exported": "EXPORTED"})
    yield
    monkeypatch.undo()
    BACKENDS.reload()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_from_another_package(toy: None, tmp_path: Path) -> None:
    checkpoint = resolve(save_tiny("bert", tmp_path / "model"))
    encoder = load_encoder(checkpoint, device="cpu")
    result = survey(encoder, given(checkpoint, Model(device="cpu", cache_dir=tmp_path / "store")))
    assert result.differences["exported"] < 1e-5
    options = Model(device="cpu", cache_dir=tmp_path / "other", backend="exported")
    embeddings = extract(given(checkpoint, options), TEXTS)
    assert embeddings.stored.manifest.description["backend"] == "exported"


LIBRARIES = {
    "layerprobe/versions.py",
    "layerprobe/checks.py",
    "layerprobe/process.py",
    "cli/layerprobe_cli/shell.py",
}
"""They name libraries: whose versions results depend on, that extras bring, whose threads a forked process has not,
whose errors are asked about, and whose build knows CUDA."""


def test_nothing_outside_the_encoders_names_a_backend() -> None:
    names = {TORCH, *BACKENDS.shipped}
    assert {file for file in naming(names) if not file.startswith("layerprobe/encoders/")} == LIBRARIES
