"""Signals: one line and the code that shells expect, before a command begins and while it runs."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from layerprobe_cli.shell import Call, run

EARLY = """
import os, signal, sys, types
from layerprobe_cli import start
main = types.ModuleType("layerprobe_cli.main")
main.main = lambda: os.kill(os.getpid(), int(sys.argv[1]))
sys.modules["layerprobe_cli.main"] = main
start.main()
"""
CLI = Path(__file__).parents[2] / "cli"
SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]


@pytest.mark.skipif(os.name == "nt", reason="signals are others there")
@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_before_a_command_begins(number: signal.Signals, code: int, word: str) -> None:
    command = [sys.executable, "-c", EARLY, str(int(number))]
    ended = subprocess.run(command, cwd=CLI, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, f"error: {word}\n")


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_while_a_command_runs(number: signal.Signals, code: int, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    def command(call: Call) -> None:
        signal.raise_signal(number)

    earlier = signal.getsignal(number)
    with pytest.raises(typer.Exit) as ended:
        run(command, typer.Context(typer.core.TyperCommand("x")), {"call": Call()})
    assert ended.value.exit_code == code
    assert capsys.readouterr().err.startswith(f"error: {word}; finished work is kept")
    assert signal.getsignal(number) == earlier


def test_a_python_without_docstrings_is_one_line() -> None:
    command = [sys.executable, "-OO", "-c", "import layerprobe_cli.start as s; s.main()", "--help"]
    ended = subprocess.run(command, cwd=CLI, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: the help is read from docstrings, which PYTHONOPTIMIZE=2 removes: set it to 1\n"


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


CLOSED = """
import os, sys, types
from layerprobe_cli import start
main = types.ModuleType("layerprobe_cli.main")
def run():
    print("lost")
    with open(os.devnull) as file:
        print(file.fileno() > 2, file=sys.stderr)
main.main = run
sys.modules["layerprobe_cli.main"] = main
start.main()
"""


@pytest.mark.skipif(os.name == "nt", reason="processes cannot be started so there")
def test_no_file_takes_the_place_of_a_closed_stdout() -> None:
    def close() -> None:
        os.close(0)
        os.close(1)

    command = [sys.executable, "-c", CLOSED]
    ended = subprocess.run(command, cwd=CLI, stderr=-1, text=True, check=False, preexec_fn=close)
    assert (ended.returncode, ended.stderr) == (0, "True\n")


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "shared object: free memory, or"),
        (RuntimeError("can't start new thread"), "can't start new thread: raise the limit of processes and threads"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), f"{os.strerror(errno.EAGAIN)}: raise the limit of"),
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a"),
            "cannot use a: Too many open files: raise the limit of",
        ),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found"), "found: free space, or name another"),
        (MemoryError(), "out of memory: lower --batch-tokens"),
        (FileNotFoundError(errno.ENOENT, "x", "b"), "cannot use b: x: check the path and its permissions"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_the_system_refuses(raised: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    def command(call: Call) -> None:
        raise raised

    with pytest.raises(typer.Exit) as ended:
        run(command, typer.Context(typer.core.TyperCommand("x")), {"call": Call()})
    assert ended.value.exit_code == 1
    assert line in " ".join(capsys.readouterr().err.split())
