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
