"""The commands of a search with a trainer of one's own, from init to answer."""

import errno
import json
import os
from pathlib import Path

import pytest
from layerprobe_cli.main import app
from typer.testing import CliRunner

from layerprobe.search.ask import LayerSearch


def call(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["search", *map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_a_search_from_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("readings.json").write_text(json.dumps({"readings": {"InfoNCE": {"values": [1.0, 2.0, 3.0, 2.0, 1.0, 0.5]}}}))
    assert "next is layer 2, seed 0" in call(
        "init", "s.json", "--blocks", 5, "--readings", "readings.json", "--budget", "30%"
    )
    assert call("ask", "s.json", "--worker", "a") == "2 0\n"
    assert json.loads(call("ask", "s.json", "--worker", "a", "-n", 1, "--json")) == [{"layer": 2, "seed": 0}]
    Path("items.txt").write_text("0.5\n1\n0\n0.25\n")
    call("tell", "s.json", 2, 0, "--items", "items.txt")
    call("tell", "s.json", 0, 0, "--failed")
    call("ask", "s.json", "-n", 2)
    pending = LayerSearch("s.json").pending
    assert len(pending) == 2
    call("tell", "s.json", *pending[0], "--release")
    assert LayerSearch("s.json").pending == pending[1:]
    answer = call("answer", "s.json")
    assert answer.startswith("Layer 2 of 5 is the best guess")
    assert "chance best" in answer
    assert json.loads(call("answer", "s.json", "--json"))["best_layer"] == LayerSearch("s.json").answer().best_layer


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("ask", "none.json"), 1, "error: expected n_blocks=..., how many blocks the model has: there is no search at"),
        (("tell", "s.json", 1, 0), 2, "expected a score, --items FILE, --failed or --release, one of them"),
        (("tell", "s.json", 1, 0, 0.5, "--failed"), 2, "expected a score, --items FILE, --failed or --release"),
        (("tell", "s.json", 1, 0, "--items", "bad.txt"), 1, "expected a number in line 1 of bad.txt, got 'x'"),
        (
            ("init", "t.json", "--blocks", 2, "--readings", "bad.txt"),
            1,
            "expected bad.txt as `layerprobe readings MODEL",
        ),
    ],
)
def test_a_wrong_call_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], code: int, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    LayerSearch("s.json", n_blocks=2)
    Path("bad.txt").write_text("x\n")
    assert line in call(*words, code=code)


def test_a_run_that_cannot_be_printed_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    call("init", "s.json", "--blocks", 5)
    monkeypatch.setattr("layerprobe_cli.shell.echo", full)
    monkeypatch.setattr("layerprobe_cli.output.leave_stdout", lambda: None)
    assert "cannot print the result" in call("ask", "s.json", code=1)
    assert not LayerSearch("s.json").pending
    call("ask", "s.json", "--worker", "a", code=1)  # who asks again, and is given the same
    assert len(LayerSearch("s.json").pending) == 1


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no folder in which nobody can make a file")
def test_a_lock_that_cannot_be_made_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.files.atomic.FIRST_WAIT", 0.1)
    assert "choose a path that can be read, written and locked" in call(
        "init", "/proc/self/s.json", "--blocks", 4, code=1
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_no_file_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    call("init", "s.json", "--blocks", 4)
    for words in (("tell", "s.json", 1, 0, "--items", "pipe"), ("init", "t.json", "--blocks", 4, "--readings", "pipe")):
        assert "cannot use pipe: it is no regular file" in call(*words, code=1)
