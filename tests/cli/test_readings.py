"""Label-free metrics on the command line."""

import json
import re
from pathlib import Path

import pytest

from layerprobe.files.serialisation import from_json
from layerprobe.readings.registry import READINGS, alone
from layerprobe.readings.values import LayerCurve

from .conftest import Layerprobe, Pair


def test_a_row_a_layer(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    done = layerprobe("readings", pair[0], "-t", pairs_file, "--views", "2")
    lines = done.out.splitlines()
    units = {name: f" ({READINGS[name].unit})" if READINGS[name].unit else "" for name in alone()}
    assert re.split("  +", lines[0]) == ["layer", *(f"{name}{unit}" for name, unit in units.items())]
    assert [line.split()[0] for line in lines[2:6]] == ["0", "1", "2", "3"]
    printed = json.loads(layerprobe("readings", pair[0], "-t", pairs_file, "--views", "2", "--json").out)
    curves = {name: from_json(LayerCurve, json.dumps(curve)) for name, curve in printed["readings"].items()}
    assert list(curves) == alone()
    for layer in range(1, 4):
        values = [float(cell) for cell in lines[2 + layer].split()[1:]]
        assert values == pytest.approx([curve.values[layer] for curve in curves.values()], abs=0.05, rel=1e-3)
    # there is no layer before the first one
    assert len(lines[2].split()) == len(lines[3].split()) - 1
    assert {name for name, curve in curves.items() if curve.standard_errors} == {
        *("prompt entropy", "curvature", "self CKA", "effective rank", "InfoNCE")
    }
    assert printed["views"]["n_views"] == 2
    assert any(line.startswith("mean cosine: mean cosine of two texts: anisotropy; lower pro") for line in lines[6:])


def test_readings_are_chosen_by_name(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    chosen = ("--reading", "zero-shot", "--reading", "effective rank")
    printed = json.loads(layerprobe("readings", pair[0], "-t", pairs_file, *chosen, "--json").out)
    assert list(printed["readings"]) == ["effective rank", "zero-shot"]
    wrong = layerprobe("readings", pair[0], "-t", pairs_file, "--reading", "effective ran")
    assert wrong.code == 2
    assert "expected a reading, one of prompt entropy, " in wrong.err
    assert "did you mean 'effective rank'?" in wrong.err
    assert (
        "got CKA, which needs a reference"
        in layerprobe("readings", pair[0], "-t", pairs_file, "--reading", "CKA").error
    )


def test_what_is_not_defined_is_told(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    done = layerprobe("readings", pair[0], "-t", pairs_file, "--reading", "H-score", "--reading", "kNN", "--json")
    assert list(json.loads(done.out)["readings"]) == ["kNN"]
    assert "warning: H-score is left out: it is not defined here" in done.err


def test_labels_need_a_task(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a b c\nd e f\n")
    wrong = layerprobe("readings", pair[0], "--texts", tmp_path / "texts.txt", "--reading", "probe")
    assert "expected a task for probe, got texts alone" in wrong.error


def test_bad_input_is_one_line(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a b c\n")
    wrong = layerprobe("readings", pair[0], "--texts", tmp_path / "one.txt", "--dropped", "1")
    assert "a share of dropped words between 0 and 1, got 4 views of 512 texts and 1" in " ".join(wrong.err.split())
    assert (
        "expected at least two texts to tell their views apart"
        in layerprobe("readings", pair[0], "--texts", tmp_path / "one.txt").error
    )
