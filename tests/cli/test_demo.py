"""The demo as a new user runs it. Takes minutes: a few scans, and fine-tuning where it decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.serialisation import from_json
from layerprobe.study.sentence import expectation_sentence
from layerprobe.study.values import Study

from .conftest import Layerprobe


@pytest.mark.slow
def test_the_demo_finds_the_layer_to_keep(layerprobe: Layerprobe, tmp_path: Path) -> None:
    done = layerprobe("demo", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    study = from_json(Study, (tmp_path / "demo" / "study.json").read_text())
    assert study.prediction.drop_layers == (2, 3, 4, 5, 6, 7, 8)
    finding = study.finding
    assert finding is not None
    # rounding differs between processors, and training carries it on: a neighbour, and a point, not a digit
    assert finding.best_layer in (3, 4, 5)
    assert finding.answer.layers[finding.best_layer].mean == pytest.approx(71.5, abs=1.5)
    assert 8 not in finding.answer.candidates
    assert finding.answer.spent - finding.proof_cost <= 0.15 * finding.answer.full_sweep
    last = next(outcome for outcome in study.outcomes if outcome.layer == 8)
    assert last.mean == pytest.approx(70.2, abs=2.0)
    lines = done.out.splitlines()
    assert len(lines) <= 25
    assert f"{finding.kept} {finding.certainty}" in lines
    assert expectation_sentence(study) in lines
    assert (tmp_path / "demo" / "report.html").stat().st_size > 1_000_000
