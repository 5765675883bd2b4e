"""Label-free metrics on the command line."""

from __future__ import annotations

from pathlib import Path

from layerprobe.readings.values import LabelFreeMetrics
from layerprobe.serialisation import from_json

from .conftest import Layerprobe


def test_a_row_a_layer(layerprobe: Layerprobe, pair: tuple[Path, Path], pairs_file: Path) -> None:
    done = layerprobe("metrics", pair[0], "-t", pairs_file, "--views", "2")
    lines = done.out.splitlines()
    assert lines[0].split("  ")[0] == "layer"
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "3"]
    found = from_json(LabelFreeMetrics, layerprobe("metrics", pair[0], "-t", pairs_file, "--views", "2", "--json").out)
    assert lines[3].split()[1] == f"{found.tokens.prompt_entropy[1]:.3f}"
    assert found.views.n_views == 2


def test_bad_input_is_one_line(layerprobe: Layerprobe, pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a b c\n")
    wrong = layerprobe("metrics", pair[0], "--texts", tmp_path / "one.txt", "--dropped", "1")
    assert "a share of dropped words between 0 and 1, got 4 views of 512 texts and 1" in wrong.error
    assert (
        "expected at least two texts to tell their views apart"
        in layerprobe("metrics", pair[0], "--texts", tmp_path / "one.txt").error
    )
