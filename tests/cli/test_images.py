"""Images through the command line."""

import json
import sys
from pathlib import Path

import pytest
from layerprobe_cli.main import app
from typer.testing import CliRunner

from tests.images import digit_folder, save_towers, save_vision


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "cache"))


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def test_check_says_what_a_model_makes_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("openvino", "onnxruntime"):  # to compile their graphs takes longer than all the rest
        monkeypatch.setitem(sys.modules, package, None)
    digits = digit_folder(tmp_path / "digits", 40, classes=(0, 1))
    code, out, err = run("check", save_vision("dinov2-registers", tmp_path / "model"), "-t", digits)
    assert code == 0, err
    finding = "4 patches per image, [CLS] and 2 others before them, ignored by mean and max"
    assert finding in " ".join(out.split())
    assert "padding" not in out
    assert "distinct images" in out
    code, out, _ = run("check", save_towers("clip", tmp_path / "clip"), "--json")
    towers = json.loads(out)["checks"][0]["finding"]
    assert towers.startswith("this is the text tower, which reads texts; images go to the image tower")
    assert towers.endswith(":image)")
    code, out, err = run("check", tmp_path / "clip", "-t", digits, "--json")
    assert code == 0, err
    assert json.loads(out)["checks"][0]["finding"].startswith("this is the image tower")


def test_layers_are_those_of_the_tower_that_reads_the_images(tmp_path: Path) -> None:
    clip, digits = save_towers("clip", tmp_path / "clip"), digit_folder(tmp_path / "digits", 40, classes=(0, 1))
    code, out, err = run("finetune", clip, "-t", digits, "--layers", "3", "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out)["n_blocks"] == 3
    code, _, err = run("finetune", clip, "-t", digits, "--layers", "4", "--dry-run")
    assert "expected layers from 0 to 3" in err
    sizes = [
        json.loads(run("finetune", clip, "-t", digits, *more, "--dry-run", "--json")[1])["block_steps"]
        for more in ((), ("--layers", "0-3"))
    ]
    assert sizes[0] == sizes[1]


def test_export_says_which_tower_it_writes(tmp_path: Path) -> None:
    clip = save_towers("clip", tmp_path / "clip")
    code, out, err = run("export", clip, tmp_path / "text", "--layer", "1")
    assert code == 0, err
    assert "this is the text tower; the image tower is " in err
    assert "max length" in out
    code, out, err = run("export", f"{clip}:image", tmp_path / "image", "--layer", "1")
    assert code == 0, err
    assert "tower" not in err
    assert "max length" not in out
