"""Progress and notes are no result: where they cannot be shown, the work goes on."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from layerprobe_cli.output import fail, print_json, progress_bar

from .conftest import Layerprobe


def test_a_log_on_a_full_disk_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: Any, **options: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(typer, "echo", full)
    monkeypatch.setattr("layerprobe_cli.output.LINE_EVERY", 0)
    fail("nothing")
    with progress_bar(quiet=False) as report:
        report("embedding", 1, 2)


def test_no_standard_error_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bar(quiet=False) as report:
        report("embedding", 1, 2)


def test_names_with_brackets_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress_bar(quiet=False) as report:
        report("embedding a[/b]", 1, 2)
        report("embedding a[/b]", 2, 2)


def test_no_fingerprint_is_no_extraction(layerprobe: Layerprobe, pairs_file: Path, pair: tuple[Path, Path]) -> None:
    assert layerprobe("extract", pair[0], "-t", pairs_file).code == 0
    refused = layerprobe("cache", "prune", "")
    assert (refused.code, refused.out) == (1, "")
    assert "there is no extraction whose fingerprint begins with ''" in refused.err


HOSTILE = "a\x1b]0;TITLE\x07\x1b[2J\x9b31m\x08\u202eb"


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", HOSTILE),
        ("extract", "model", "--texts", f"missing{HOSTILE}.txt"),
        ("score", "model", "-t", "pairs.csv", "--kind", HOSTILE),
        (HOSTILE,),
    ],
)
def test_a_name_commands_no_terminal(layerprobe: Layerprobe, words: tuple[str, ...]) -> None:
    failed = layerprobe(*words)
    assert failed.code
    assert "TITLE" in failed.err
    assert not {"\x1b", "\x07", "\x9b", "\x08", "\u202e"} & set(failed.err)


def test_json_commands_no_terminal(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print_json({"name": HOSTILE, "word": "größer"})
    written = capsysbinary.readouterr().out.decode()
    assert json.loads(written) == {"name": HOSTILE, "word": "größer"}
    assert "größer" in written
    assert not {"\x1b", "\x9b", "\u202e"} & set(written)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_result_that_cannot_be_printed_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "layerprobe_cli.start", "cache", "list", "--cache-dir", str(tmp_path)]
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == (
        "error: cannot print the result: No space left on device: free space, or choose another output\n"
    )
