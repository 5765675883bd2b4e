"""Signals: one line and the code that shells expect, before a command begins and while it runs."""

import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from layerprobe_cli.start import Ended, interruptible

EARLY = """
import os, signal, sys, types
from layerprobe_cli import start
main = types.ModuleType("layerprobe_cli.main")
main.main = lambda: os.kill(os.getpid(), int(sys.argv[1]))
sys.modules["layerprobe_cli.main"] = main
start.main()
"""
SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]


@pytest.mark.skipif(os.name == "nt", reason="signals are others there")
@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_before_a_command_begins(number: signal.Signals, code: int, word: str) -> None:
    command = [sys.executable, "-c", EARLY, str(int(number))]
    folder = Path(__file__).parents[2] / "cli"
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, f"error: {word}\n")


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_while_a_command_runs(number: signal.Signals, code: int, word: str) -> None:
    earlier = signal.getsignal(number)
    with pytest.raises(Ended) as raised, interruptible():
        signal.raise_signal(number)
    assert (raised.value.code, raised.value.word) == (code, word)
    assert signal.getsignal(number) == earlier


def test_where_python_cannot_raise_it(capfd: pytest.CaptureFixture[str]) -> None:
    """As in a callback of a weak reference, whose exceptions Python prints and forgets."""

    class Thing:
        pass

    def interrupt(_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    thing = Thing()
    reference = weakref.ref(thing, interrupt)
    with pytest.raises(Ended) as raised, interruptible():  # noqa: PT012 - the signal comes between
        del thing
        for _ in range(200):
            time.sleep(0.05)
    assert raised.value.code == 143
    assert reference() is None
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(os.name == "nt", reason="a folder that is used cannot be removed there")
def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); import layerprobe_cli.start as s; s.main()"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "cli")}
    ended = subprocess.run(
        [sys.executable, "-c", code, gone], capture_output=True, text=True, check=False, env=environment
    )
    problem = "the working directory cannot be used: No such file or directory: change to another"
    assert (ended.returncode, ended.stderr) == (1, f"error: {problem}\n")
