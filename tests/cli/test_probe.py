"""layerprobe probe: of arrays and of a model, through the shell's arguments."""

from pathlib import Path

import numpy as np
import pytest

from layerprobe.scoring.score import score
from layerprobe.tasks.loading import load_task
from tests.probing.data import layered, scores_of

from .conftest import Layerprobe, Pair


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    embeddings, signal = layered(120)
    np.save(tmp_path / "e.npy", embeddings)
    rows = (f"{value:.4f},f{i // 4}" for i, value in enumerate(scores_of(signal)))
    (tmp_path / "t.csv").write_text("\n".join(["stability,family", *rows]) + "\n")
    return tmp_path / "e.npy", tmp_path / "t.csv"


def test_arrays_in_layer_out(layerprobe: Layerprobe, files: tuple[Path, Path], tmp_path: Path) -> None:
    embeddings, table = files
    page = tmp_path / "page.html"
    how = ("--target", "stability", "--groups", f"{table}:family")
    done = layerprobe("probe", embeddings, table, *how, "--report", page)
    assert done.code == 0, done.err
    assert "Spearman x 100" in done.out
    assert "120 items" in done.out
    few = ("--foldings", "1", "--folds", "4", "--no-weighted-sum", "--tolerance", "90")
    found = layerprobe("probe", embeddings, table, *how, *few, "--json").json
    assert [each["layer"] for each in found["layers"]] == list(range(6))
    assert found["summed"] is None
    assert found["settings"]["folds"] == 4
    assert set(found["candidates"]) & {2, 3, 4}


def test_a_model_scores_what_score_does(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    done = layerprobe("probe", pair[0], "-t", pairs_file, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    scored = score(str(pair[0]), load_task(pairs_file))
    ours = [each["metrics"]["spearman"] for each in done.json["layers"]]
    assert ours == pytest.approx(scored.scores)
    assert done.json["model"]["n_blocks"] == len(ours) - 1
    assert "to test" not in done.out


def test_what_does_not_go_together_is_refused(layerprobe: Layerprobe, files: tuple[Path, Path]) -> None:
    embeddings, table = files
    for arguments in ((embeddings,), (embeddings, table, "-t", table)):
        done = layerprobe("probe", *arguments)
        assert done.code == 2
        assert "expected EMBEDDINGS and TARGETS, or a model with --task" in done.err
    done = layerprobe("probe", embeddings, table, "--format", "delimiter=;")
    assert (done.code, "expected no --format without --task" in done.err) == (2, True)
    done = layerprobe("probe", "model", "-t", table, "--groups", table)
    assert done.code == 2
    assert "expected no --groups" in done.err


def test_bad_files_are_one_line(layerprobe: Layerprobe, files: tuple[Path, Path], tmp_path: Path) -> None:
    embeddings, table = files
    assert "expected a column of targets" in layerprobe("probe", embeddings, table).error
    assert "did you mean 'stability'?" in layerprobe("probe", embeddings, table, "--target", "stabilty").error
    few = layerprobe("probe", embeddings, table, "--target", "stability", "--groups", f"{table}:family", "--folds", 31)
    assert "at least as many groups as folds, got 30 for 31" in few.error
    assert "cannot read" in layerprobe("probe", tmp_path / "none.npy", table, "--target", "stability").error
    (tmp_path / "empty.npy").write_bytes(b"")
    assert "is empty" in layerprobe("probe", tmp_path / "empty.npy", table, "--target", "stability").error
