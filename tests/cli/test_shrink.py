"""layerprobe shrink, and --keep-blocks of every command."""

import random
from pathlib import Path

import pytest

from layerprobe.profiling.values import ProfileSettings

from .conftest import Layerprobe, Pair

TRAINING = ("--epochs", "1", "--batch-size", "16", "--learning-rate", "1e-3")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join({" ".join(rng.choices("abcdefgh", k=5)) for _ in range(200)}) + "\n")
    return path


@pytest.fixture(autouse=True)
def random_weights_teach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.shrinking.run.NO_TEACHER", -100.0)
    timed = ProfileSettings(batch_sizes=(32,), rounds=1, repeats=1, warmup=1)
    monkeypatch.setattr("layerprobe.shrinking.run.TIMED", timed)


def test_shrink_chooses_trains_measures_and_exports(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, texts: Path, tmp_path: Path
) -> None:
    out, page = tmp_path / "small", tmp_path / "small.html"
    how = ("--texts", texts, "-t", pairs_file, "--size", "2", "--dimensions", "4", *TRAINING)
    done = layerprobe("shrink", pair[1], *how, "--out", out, "--report", page)
    assert done.code == 0, done.err
    assert "In which order" not in done.out  # a title is the page's
    assert "2 of 3 blocks" in done.out
    assert f"Folder: {out}" in done.out
    assert "takes at most about" in done.err
    assert (out / "model.safetensors").is_file()
    assert (out / "2_Dense" / "model.safetensors").is_file()
    assert "without labels" in (out / "README.md").read_text()
    assert "a smaller model" in page.read_text()
    refused = layerprobe("shrink", pair[1], *how, "--epochs", "2", "--out", out)
    assert "contains an earlier export" in refused.error
    assert len(list((tmp_path / "cache" / "runs").iterdir())) == 1, "expected it to be refused before it trains"
    card = (out / "README.md").stat()
    on = layerprobe("shrink", pair[1], *how, "--out", out)
    assert on.code == 0, "expected it to go on where its export was written, as after an interruption"
    assert f"Folder: {out}" in on.out
    assert (out / "README.md").stat() == card, "expected it to be left as it was"
    again = layerprobe("shrink", pair[1], *how, "--json")
    assert (again.json["task"], again.json["dimensions"]) == (str(pairs_file), 4)
    assert again.json["tried"][0]["folders"][0].startswith(str(tmp_path))
    assert again.json["removals"][0]["block"] in (1, 2, 3)


def test_the_texts_of_the_task_serve_where_there_are_no_others(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path
) -> None:
    done = layerprobe("shrink", pair[1], "-t", pairs_file, "--size", "1,3", "--epochs", "1", "--batch-size", "8")
    assert done.code == 0, done.err
    assert "■□■" in done.out
    assert any(row.split()[:3] == ["2", "1", "3"] for row in done.table)
    assert done.commands[0][0] == "export"


def test_a_retrieval_task_is_also_searched_by_queries_of_the_smaller_model(
    layerprobe: Layerprobe, pair: Pair, tmp_path: Path
) -> None:
    rng, table, how = random.Random(0), tmp_path / "queries.csv", ("--kind", "retrieval", "--size", "2")
    documents = [" ".join(rng.sample("abcdefgh", k=5)) for _ in range(80)]
    table.write_text("query,positive\n" + "".join(f"{text[:5]} {i},{text}\n" for i, text in enumerate(documents)))
    done = layerprobe("shrink", pair[1], "-t", table, *how, *TRAINING, "-o", tmp_path / "small")
    assert done.code == 0, done.err
    assert "points lost with documents by the whole model, 95 % " in " ".join(done.out.split())
    assert "our index" in done.out
    assert "querys" not in layerprobe("shrink", pair[1], "-t", table, *how, *TRAINING, "--wide").out
    assert "whole.encode_document(" in (tmp_path / "small" / "README.md").read_text()


def test_a_dry_run_trains_nothing(layerprobe: Layerprobe, pair: Pair, texts: Path, tmp_path: Path) -> None:
    done = layerprobe("shrink", pair[1], "--texts", texts, *TRAINING, "--dry-run")
    assert done.out.startswith("Making ")
    assert not (tmp_path / "cache" / "runs").exists()


def test_every_command_takes_a_model_without_some_blocks(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    whole, cut = (
        layerprobe("score", pair[1], "-t", pairs_file, "--json", *extra).json
        for extra in ((), ("--keep-blocks", "1,3"))
    )
    assert len(whole["scores"]["metrics"]["spearman"]) == 4
    assert len(cut["scores"]["metrics"]["spearman"]) == 3
    assert cut["scores"]["metrics"]["spearman"][:2] == pytest.approx(whole["scores"]["metrics"]["spearman"][:2])
    refused = layerprobe("score", pair[1], "-t", pairs_file, "--keep-blocks", "2,9")
    assert "expected blocks of" in refused.error
