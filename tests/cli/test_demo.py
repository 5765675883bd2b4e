"""The demo as a new user runs it. Takes minutes: up to five seeds of fine-tuning at two layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.serialisation import from_json
from layerprobe.study.values import Study

from .conftest import Layerprobe


@pytest.mark.slow
def test_the_demo_shows_what_the_readme_says(layerprobe: Layerprobe, tmp_path: Path) -> None:
    done = layerprobe("demo", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    study = from_json(Study, (tmp_path / "demo" / "study.json").read_text())
    assert study.prediction.drop_layers == (2, 3, 4, 5, 6, 7, 8)
    assert study.confirmation is not None
    assert study.confirmation.verdict == "confirmed"
    # rounding differs between processors, and training carries it on: a point, not a digit
    means = {outcome.layer: outcome.mean for outcome in study.confirmation.outcomes}
    assert means == pytest.approx({1: 71.9, 8: 68.7}, abs=1.0)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert study.prediction.sentence in readme
    assert (tmp_path / "demo" / "report.html").stat().st_size > 1_000_000
