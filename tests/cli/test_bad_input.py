"""What goes wrong is said in one line on stderr, with exit code 1, or 2 for wrong usage."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest
import typer
from layerprobe_cli import shell

from layerprobe.extraction import embed

from .conftest import QUICK, Layerprobe, Pair


def refused(outcome: object, *words: str) -> None:
    assert outcome.code == 1, outcome  # type: ignore[attr-defined]
    for word in words:
        assert word in outcome.error, outcome.error  # type: ignore[attr-defined]


def test_odd_texts_are_kept_or_cut_with_a_warning(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a b\n\n   \nc \x00 \x07 d\n" + "e " * 50_001 + "\ng h\ni j\n")
    refused = layerprobe("compare", *pair, "--texts", texts, "--json")
    assert refused.code == 1
    assert "error: 2 texts cannot be used" in refused.err
    assert "(lines 2, 3)" in refused.err
    done = layerprobe("compare", *pair, "--texts", texts, "--skip-empty", "--json")
    assert done.code == 0
    assert done.json["comparisons"][0]["map"]["n_samples"] == 5
    for words in ("control characters", "100,000", "empty", "cut at 64 tokens"):
        assert words in done.err, done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "MODEL", "FULL", "--layer", "1"), "is not empty"),
        (("lab", "adapt", "MODEL", "--texts", "DATA", "--out", "FULL"), "is not empty"),
        (("find", "MODEL", "-t", "DATA", "--report", "out.txt"), "ends in .html"),
        (("compare", "MODEL", "-t", "DATA", "--parquet", "INSIDE.html"), "pairs.csv is not a folder"),
        (("score", "MODEL", "-t", "DATA", "--backend", "openvino"), "pip install 'layerprobe[openvino]'"),
        (("extract", "MODEL", "-t", "DATA", "--ray", "auto"), "pip install 'layerprobe[ray]'"),
        (("finetune", "MODEL", "-t", "DATA", "--lora", "8"), "pip install 'layerprobe[lora]'"),
    ],
)
def test_a_mistake_is_told_before_torch_is_loaded(
    layerprobe: Layerprobe,
    pair: Pair,
    pairs_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    for absent in ("layerprobe.encoders.loading", "layerprobe.export.folder", "openvino", "ray", "peft"):
        monkeypatch.setitem(sys.modules, absent, None)
    places = {"MODEL": pair[0], "DATA": pairs_file, "FULL": pairs_file.parent, "INSIDE.html": pairs_file / "x.html"}
    done = layerprobe(*(places.get(argument, argument) for argument in arguments))
    assert done.code in (1, 2)
    assert said in " ".join(done.err.replace("│", " ").split())


@pytest.fixture
def entry(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> Path:
    return Path(layerprobe("extract", pair[0], "-t", pairs_file, "--json").json["folder"])


def test_a_damaged_store_is_mended(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, entry: Path) -> None:
    before = layerprobe("compare", *pair, "-t", pairs_file, "--json").json
    (shard,) = entry.glob("*.safetensors")
    content = shard.read_bytes()
    for size in (0, 100, -1):
        shard.write_bytes(content[:size])
        shutil.rmtree(entry.parents[1] / "results")
        after = layerprobe("compare", *pair, "-t", pairs_file, "--json")
        assert shard.name in after.err
        assert after.json == before
        assert shard.read_bytes() == content


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_or_a_read_only_cache(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        refused(layerprobe("extract", pair[0], "-t", pairs_file), os.strerror(code), "--cache-dir")
        refused(layerprobe("finetune", pair[0], "-t", pairs_file, *QUICK, "--layers", "1"), os.strerror(code))
    left = [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".safetensors", ".json", ".tmp")]
    assert left == []
    assert layerprobe("extract", pair[0], "-t", pairs_file).code == 0


def test_ctrl_c(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(embed, "run_in_halves", interrupt)
        stopped = layerprobe("extract", pair[0], "-t", pairs_file)
    assert stopped.code == 130
    assert "interrupted" in stopped.error
    assert layerprobe("extract", pair[0], "-t", pairs_file).code == 0


def test_where_an_error_comes_from_is_shown_on_request(layerprobe: Layerprobe, tmp_path: Path) -> None:
    done = layerprobe("extract", tmp_path / "none", "--texts", __file__, "--traceback")
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.err
    assert done.err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("message", ["CUDA error: out of memory", "expected scalar type Float"])
def test_memory_that_runs_out_is_one_line(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As torch says it outside its own allocator; another RuntimeError is a bug, and is shown whole."""

    def command(call: shell.Call) -> shell.Done:
        raise RuntimeError(message)

    known = "out of memory" in message
    with pytest.raises(typer.Exit if known else RuntimeError, match=None if known else message):
        shell.run(command, None, {"call": shell.Call()})  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith("error: out of memory: lower --batch-tokens") == known
