"""The benchmark for a GPU, tried on the CPU: every part runs, and packed sequences compute what padded ones do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench_gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "benchmarks"))
    import bench_gpu

    return bench_gpu


@pytest.mark.slow
def test_every_part_runs_without_a_gpu(
    bench_gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_gpu.main(["--device", "cpu", "--tiny", "--rounds", "1", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures.keys() == {"machine", *bench_gpu.PARTS}
    numbers = [value for part in bench_gpu.PARTS for row in figures[part] for value in row.values()]
    assert all(math.isfinite(value) for value in numbers if isinstance(value, float))
    ways = [row["way"] for part in bench_gpu.PARTS for row in figures[part] if "way" in row]
    for kind in ("all layers", "bare pass", "sentence-transformers", "padded", "packed", "paper", "linear", "rbf"):
        assert any(way.startswith(kind) for way in ways), kind
    assert "Traceback" not in capsys.readouterr().out


def test_what_is_missing_is_named_in_one_line(bench_gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with bench_gpu.unless_missing("a peer"):
        raise ImportError("No module named peer\nand more")
    assert capsys.readouterr().out == "left out: a peer: No module named peer and more\n"


def test_without_a_gpu_it_says_how_to_try(
    bench_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        bench_gpu.main([])
    assert "expected a CUDA device, got none: --device cpu --tiny tries" in capsys.readouterr().err
