"""Every benchmark, tiny: it runs, and the ways that it compares agree, which each of them asserts itself."""

import importlib
import logging
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
"""What each is called with, besides `bench_gpu`, which has a test of its own."""
SAYS = {
    "bench_blocks": r"^\| 2 \| [\d.]+ \(\d \d\) \|",
    "bench_evaluator": r"^ours takes \d",
    "bench_extraction": r"^openvino .*%$",
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
