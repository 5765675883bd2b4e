from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Layerprobe


@pytest.fixture
def two(pairs_file: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two tasks: the pairs, and all but the last of them."""
    lines = pairs_file.read_text().splitlines(keepends=True)
    other = tmp_path / "fewer.csv"
    other.write_text("".join(lines[:-1]))
    return pairs_file, other


def test_one_layer_for_several_tasks(
    layerprobe: Layerprobe, pair: tuple[Path, Path], two: tuple[Path, Path], tmp_path: Path
) -> None:
    result = layerprobe("across", pair[0], *two, "--mteb", tmp_path)
    assert result.code == 0, result.err
    assert result.out.splitlines()[0].split()[:4] == ["layer", "parameters", two[0].name, "fewer.csv"]
    assert "scores best over 2 tasks" in result.out
    assert f"Results: 8 files below {tmp_path / 'results'}" in result.out
    assert len(list((tmp_path / "results").rglob("fewer.json"))) == 4
    found = layerprobe("across", pair[0], *two, "--json").json
    scores = [task["scores"]["metrics"]["spearman"] for task in found["tasks"]]
    assert found["layers"][2]["mean"] == pytest.approx((scores[0][2] + scores[1][2]) / 2)


def test_a_build_can_check_a_threshold(layerprobe: Layerprobe, pair: tuple[Path, Path], two: tuple[Path, Path]) -> None:
    last = layerprobe("across", pair[0], *two, "--json").json["layers"][-1]["mean"]
    assert layerprobe("across", pair[0], *two, "--fail-below", f"{last - 0.01}").code == 0
    failed = layerprobe("across", pair[0], *two, "--fail-below", f"{last + 0.01:.6f}")
    assert failed.code == 3
    assert f"failed: the last layer scores {last:.2f} in the mean, below" in failed.err


@pytest.mark.parametrize(
    ("given", "said"),
    [(["missing.csv"], "missing.csv"), (["--mteb", "x"], "Missing argument 'TASK...'")],
)
def test_a_wrong_call_is_told(layerprobe: Layerprobe, pair: tuple[Path, Path], given: list[str], said: str) -> None:
    result = layerprobe("across", pair[0], *given)
    assert result.code != 0
    assert said in result.err
