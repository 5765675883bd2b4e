"""Questions that spans of contexts answer, through every command that takes a task."""

import json
from pathlib import Path

import pytest

from tests.toy_questions import squad_json, toy_questions

from .conftest import Layerprobe, Pair

SHORT = ("--epochs", "1", "--seeds", "1", "--learning-rate", "1e-2", "--max-length", "40")


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred questions about fifty contexts, some without an answer, in one file."""
    path = tmp_path_factory.mktemp("squad") / "squad.json"
    path.write_text(json.dumps(squad_json(toy_questions(100, 0, impossible=0.2), second=True)))
    return path


def test_score_scan_and_finetune(layerprobe: Layerprobe, pair: Pair, squad: Path, tmp_path: Path) -> None:
    model, data, page = pair[1], ("-t", squad), tmp_path / "page.html"
    scored = layerprobe("score", model, *data, "--report", page)
    assert scored.code == 0, scored.err
    assert "F1 x 100" in scored.out
    assert "note: read as question answering; questions: " in scored.err
    assert "exact match" in page.read_text()
    scan = layerprobe("finetune", "--scan", model, *data, *SHORT, "--json")
    assert scan.code == 0, scan.err
    assert tuple(scan.json["runs"][0]["test"]) == ("f1", "exact match")
    tuned = layerprobe("finetune", model, *data, *SHORT, "--layers", "2", "--save-models", "--json")
    assert tuned.code == 0, tuned.err
    assert tuned.json["runs"][0]["threshold"] is not None
    (saved,) = {path.parents[1] for path in (tmp_path / "cache").rglob("layerprobe.json")}
    exported = layerprobe("export", saved, tmp_path / "exported")
    assert exported.code == 0, exported.err
