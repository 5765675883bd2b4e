import re
from pathlib import Path

import pytest

from tests.cli.conftest import Layerprobe, Pair


@pytest.fixture
def two(pairs_file: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two tasks: the pairs, and all but the last of them."""
    lines = pairs_file.read_text().splitlines(keepends=True)
    other = tmp_path / "fewer.csv"
    other.write_text("".join(lines[:-1]))
    return pairs_file, other


def test_one_layer_for_several_tasks(
    layerprobe: Layerprobe, pair: Pair, two: tuple[Path, Path], tmp_path: Path
) -> None:
    both = ("-t", two[0], "-t", two[1])
    result = layerprobe("score", pair[0], *both)
    assert result.code == 0, result.err
    assert result.table[0].split()[:4] == ["layer", two[0].name, "fewer.csv", "mean"]
    assert "is best over 2 tasks" in result.out
    for task in two:
        assert result.err.count(f"{task.name}: read as texts") == 1
        assert f"{task.name}: {task}: " not in result.err, "expected a name once"
    found = layerprobe("score", pair[0], *both, "--json").json
    scores = [task["scores"]["metrics"]["spearman"] for task in found["tasks"]]
    assert found["layers"][2]["score"] == pytest.approx((scores[0][2] + scores[1][2]) / 2)


def test_other_commands_check_too(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    model, reference = pair
    last = layerprobe("score", model, "-t", pairs_file, "--json").json["scores"]["metrics"]["spearman"][-1]
    assert layerprobe("score", model, "-t", pairs_file, "--fail-below", f"{last - 0.01}").code == 0
    failed = layerprobe("score", model, "-t", pairs_file, "--fail-below", f"{last + 0.01}")
    assert (failed.code, f"failed: the last layer scores {last:.2f}, below" in failed.err) == (3, True)

    failed = layerprobe("score", model, "-t", pairs_file, "--fail-below", f"{last + 1e-6:.9f}")
    printed, least = re.findall(r"\d+\.\d+", failed.err.splitlines()[-1])
    assert float(printed) < float(least) == pytest.approx(last + 1e-6, abs=1e-8)

    curve = layerprobe("compare", model, reference, "-t", pairs_file, "--json").json["comparisons"][0]["curve"][
        "values"
    ]
    assert layerprobe("compare", model, model, "-t", pairs_file, "--fail-below", "0.9999").code == 0
    failed = layerprobe("compare", model, reference, "-t", pairs_file, "--fail-below", f"{min(curve) + 0.01}")
    said = f"failed: the least similarity, at layer {curve.index(min(curve))}, is {min(curve):.4f}, below"
    assert (failed.code, said in failed.err) == (3, True), failed.err

    given = ("predict", model, "-t", pairs_file)
    drops = layerprobe(*given, "--json").json["drops"][0]["drop_layers"]
    checked = layerprobe(*given, "--fail-on-drop")
    assert (checked.code, "failed: layers are flagged from layer" in checked.err) == (3, True) if drops else (0, False)
