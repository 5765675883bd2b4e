"""Every benchmark, tiny: it runs, and the ways that it compares agree, which each of them asserts itself."""

import importlib
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from tests.models import save_tiny

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY = {
    "bench_blocks": "--model MODEL --n-texts 40",
    "bench_evaluator": "--pairs 12 --rounds 1",
    "bench_extraction": "--model MODEL --backends torch openvino --texts 40 --rounds 1 --notebook",
    "bench_find": "--model MODEL --pairs 16 --scored 16 --epochs 1",
    "bench_finetuning": "--shape tiny --rounds 1 --steps 1 --curve 2 --no-memory",
    "bench_finetuning joint": "--joint --shape tiny --rounds 1 --steps 1 --curve 2 --no-memory",
    "bench_many_texts": "--few 8 --texts 64 --no-compare",
    "bench_pretraining": "--device cpu --batch-size 4 --steps 1 --rounds 1",
    "bench_probing": "--splits 2",
    "bench_probe_speed": "--rounds 1 --sizes 40x2x4",
    "bench_ray": "8 --processes 1",
    "bench_retrieval": "--shape tiny --layer 1 --rounds 1 --steps 1 --curve 1 --max-length 16",
    "bench_scale": "--tiny --tokens 128 --sizes 60",
    "bench_shrinking": "--rounds 1 --steps 1",
    "bench_similarity": "--samples 120 --features 8 --layers 2 --rounds 1",
    "bench_similarity alone": "--samples 120 --features 8 --layers 2 --rounds 1 --no-peers",
    "bench_tables": "--rounds 1",
}
"""What each is called with, besides `bench_gpu`, which has tests of its own."""
SAYS = {
    "bench_blocks": r"^\| 2 \| [\d.]+ \(\d \d\) \|",
    "bench_evaluator": r"^ours takes \d",
    "bench_extraction": r"^openvino .*%$",
    "bench_find": r"^ours takes \d",
    "bench_finetuning": r"^paper +takes \d",
    "bench_finetuning joint": r"^peer +takes \d",
    "bench_many_texts": r"^  extract: .* texts/s",
    "bench_pretraining": r"^mlm +[\d,]+ +[\d,]+  \d",
    "bench_probing": r"^\| none \| noise \| \d of 2 \| ",
    "bench_probe_speed": r"^\| 40 x 2 x 4 \| \d",
    "bench_ray": r"^Ray +[\d.]+ ms a job",
    "bench_retrieval": r"^peer, cached .* largest difference of a loss \d",
    "bench_scale": r"^MiniLM and random, n = 60: width",
    "bench_shrinking": r"^peer takes \d",
    "bench_similarity": r"^rbf +one by one +takes",
    "bench_similarity alone": r"^linear: the needed products are \d",
    "bench_tables": r"^to_pandas: ",
}
"""A line of what each prints."""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what benchmarks set for their process."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BENCHMARKS), *sys.path]))  # of Ray's workers
    threads, disabled = torch.get_num_threads(), logging.root.manager.disable
    with patch.dict(os.environ), warnings.catch_warnings():
        yield
    torch.set_num_threads(threads)
    logging.disable(disabled)


def test_every_benchmark_is_tried() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("bench_*.py")}
    assert scripts == {name.split()[0] for name in TINY} | {"bench_gpu"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_it_runs_and_its_ways_agree(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = TINY[name].split()
    if "MODEL" in arguments:
        arguments[arguments.index("MODEL")] = str(save_tiny("bert", tmp_path))
    importlib.import_module(name.split()[0]).main(arguments)
    printed = capsys.readouterr().out
    assert re.search(SAYS[name], printed, re.MULTILINE), printed


@pytest.mark.slow
def test_every_part_for_a_gpu_runs_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench_gpu = importlib.import_module("bench_gpu")
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


def test_a_layer_that_is_too_far_from_the_cpu_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench_gpu = importlib.import_module("bench_gpu")
    monkeypatch.setattr(bench_gpu, "CLOSE", -1.0)
    arguments = ["equality", "--device", "cpu", "--tiny", "--rounds", "1", "--json", str(tmp_path / "figures.json")]
    assert bench_gpu.main(arguments) == 1
    first, *_ = json.loads((tmp_path / "figures.json").read_text())["equality"]
    assert first["holds"] is False


@pytest.mark.slow
def test_every_part_of_the_controlled_pairs_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controlled_pairs = importlib.import_module("controlled_pairs")
    assert controlled_pairs.main(["--device", "cpu", "--tiny", "--jobs", "1", "--out", str(tmp_path)]) == 0
    figures = json.loads((tmp_path / "pairs.json").read_text())
    arms = {"as is", "rtd 2 seed 0", "mlm 2 seed 0"}
    assert {row["arm"] for row in figures["continued"]} == arms - {"as is"}
    assert {row["arm"] for row in figures["read"]} == arms
    assert sorted((row["arm"], row["layer"]) for row in figures["tuned"]) == sorted(
        (arm, layer) for arm in arms for layer in range(4)
    )
    outputs = json.loads((tmp_path / "outputs.json").read_text())
    assert {arm: sorted(layers) for arm, layers in outputs.items()} == {arm: ["0", "1", "2", "3"] for arm in arms}
    capsys.readouterr()
    assert controlled_pairs.main(["--table", str(tmp_path / "pairs.json")]) == 0
    assert "rtd 2 seed 0: TMFT 0:" in capsys.readouterr().out


def test_the_lab_trains_the_very_weights_that_were_given(tmp_path: Path) -> None:
    controlled_pairs = importlib.import_module("controlled_pairs")
    setting = controlled_pairs.Setting(
        model=controlled_pairs.save_tiny("bert", tmp_path / "tiny"),
        stsb=None,
        texts=None,
        folder=tmp_path,
        device="cpu",
        dtype="float32",
        watch=(),
        epochs=1,
        batch=8,
        rate=1e-12,
        views=32,
    )
    arms = [controlled_pairs.Arm(objective=objective, steps=1) for objective in ("rtd", "mlm")]
    for arm in arms:
        row = controlled_pairs.continued(setting, arm)
        assert row["texts"] > 100
        weights = controlled_pairs.encoder_of(arm.path(setting), "cpu", "float32").model.state_dict()
        first = controlled_pairs.encoder_of(setting.model, "cpu", "float32").model.state_dict()
        assert max(float((weights[name] - first[name]).abs().max()) for name in first) < 1e-6
