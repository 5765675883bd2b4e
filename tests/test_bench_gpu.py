"""The benchmark for a GPU, tried on the CPU: every part runs, and packed sequences compute what padded ones do."""

import json
import math
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench_gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
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
    assert {row["dtype"]: row["holds"] for row in figures["equality"]} == {"float32": True, "bfloat16": None}
    assert {row["what"].partition(" ")[0] for row in figures["find"]} == {"find", "run"}


def test_a_layer_that_is_too_far_from_the_cpu_fails(
    bench_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_gpu, "CLOSE", -1.0)
    arguments = ["equality", "--device", "cpu", "--tiny", "--rounds", "1", "--json", str(tmp_path / "figures.json")]
    assert bench_gpu.main(arguments) == 1
    first, *_ = json.loads((tmp_path / "figures.json").read_text())["equality"]
    assert first["holds"] is False
