"""Questions that spans of contexts answer, through every command that takes a task."""

import json
from pathlib import Path

import pytest

import layerprobe as lp
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
    assert "exact match" in scored.out
    assert "note: read as question answering; questions: " in scored.err
    assert "By a linear model" in page.read_text()
    scan = layerprobe("finetune", "--scan", model, *data, *SHORT, "--json")
    assert scan.code == 0, scan.err
    assert tuple(scan.json["runs"][0]["test"]) == ("f1", "exact match")
    tuned = layerprobe("finetune", model, *data, *SHORT, "--layers", "2", "--save-models", "--json")
    assert tuned.code == 0, tuned.err
    assert tuned.json["runs"][0]["threshold"] is not None
    (saved,) = {path.parents[1] for path in (tmp_path / "cache").rglob("layerprobe.json")}
    exported = layerprobe("export", saved, tmp_path / "exported")
    assert exported.code == 0, exported.err


@pytest.mark.slow
def test_every_other_command_takes_it(layerprobe: Layerprobe, pair: Pair, squad: Path, tmp_path: Path) -> None:
    model, data = pair[1], ("-t", squad)
    found = layerprobe("find", model, "-r", pair[0], *data, *SHORT, "--json", "--report", tmp_path / "page.html")
    assert found.code == 0, found.err
    (tmp_path / "found.json").write_text(found.out)
    lp.save(lp.load(tmp_path / "found.json"), tmp_path / "again.html")
    for command in ("confirm", "predict", "check"):
        done = layerprobe(command, model, *data, *(SHORT if command == "confirm" else ()))
        assert done.code == 0, done.err


def test_bad_questions_are_one_line(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    data = squad_json(toy_questions(100, 0))
    data["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] += 1  # type: ignore[index]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(data))
    error = layerprobe("score", pair[1], "-t", path).error
    assert "1 whose answer is not in the context at answer_start (q2)" in error
    assert layerprobe("score", pair[1], "-t", path, "--skip-empty").code == 0
