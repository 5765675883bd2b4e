"""Progress and notes are no result: where they cannot be shown, the work goes on."""

import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import layerprobe_cli
import pytest
import typer
from layerprobe_cli.main import main
from layerprobe_cli.output import ERRORS_AS_JSON, fail, log_to_stderr, print_json, progress_bar
from layerprobe_cli.shell import Call, run

from layerprobe.errors import MissingPackageError
from tests.cli.conftest import Layerprobe, Pair


def test_a_log_on_a_full_disk_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: Any, **options: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(typer, "echo", full)
    monkeypatch.setattr("layerprobe_cli.output.LINE_EVERY", 0)
    fail("nothing", "DataError")
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


def test_no_fingerprint_is_no_extraction(layerprobe: Layerprobe, pairs_file: Path, pair: Pair) -> None:
    assert layerprobe("extract", pair[0], "-t", pairs_file).code == 0
    refused = layerprobe("cache", "prune", "")
    assert (refused.code, refused.out) == (1, "")
    assert "there is no extraction whose fingerprint begins with ''" in refused.err


HOSTILE = "a\x1b]0;TITLE\x07\x1b[2J\x9b31m\x08\u202eb"


@pytest.mark.parametrize(
    "words",
    [
        ("check", HOSTILE),
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
@pytest.mark.parametrize(
    ("words", "what"),
    [("cache list --cache-dir none", "print the result"), ("--help", "print"), ("--version", "print")],
)
def test_what_cannot_be_printed_is_one_line(words: str, what: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "layerprobe_cli.start", *words.split()]
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == f"error: cannot {what}: No space left on device: free space, or choose another output\n"


@pytest.mark.parametrize(("context", "code"), [(None, 1), (typer.BadParameter("x"), 2)])
def test_a_wrong_call_that_cannot_be_printed_keeps_its_code(
    context: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> NoReturn:
        try:
            raise context or ValueError
        except Exception:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: B904 - as where it is printed

    monkeypatch.setattr("layerprobe_cli.main.app", full)
    monkeypatch.setattr("layerprobe_cli.output.leave_stdout", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code


def test_an_error_of_a_command_is_no_answer_that_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: Call) -> NoReturn:
        raise OSError("a bug")

    context = typer.Context(typer.core.TyperCommand("x"))
    monkeypatch.setattr("layerprobe_cli.main.app", lambda: run(broken, context, {"call": Call()}))
    with pytest.raises(OSError, match="a bug"):
        main()


def test_commands_write_to_stdout_by_what_they_return() -> None:
    """A command that prints by itself ends in a traceback where stdout is full, and loses its page."""
    commands = Path(layerprobe_cli.__file__).parent / "commands"
    printing = re.compile(r"typer\.echo\(|\bprint\(")
    assert [file.name for file in commands.glob("*.py") if printing.search(file.read_text())] == []


@pytest.mark.parametrize(
    ("words", "code", "kind", "message"),
    [
        (("score", "missing", "-t", "missing.csv"), 1, "TaskError", "missing.csv does not exist"),
        (("score", "missing", "--report", "a/b.gif"), 2, "UsageError", "ends in .html, .png, .svg, .pdf, got a/b.gif"),
        (("score",), 2, "UsageError", "Missing argument 'MODEL'"),
        (("fnd", "missing"), 2, "UsageError", "No such command 'fnd'"),
        (("cache", "list", "--nothing"), 2, "UsageError", "No such option: --nothing"),
    ],
)
def test_with_json_an_error_is_the_one_value_on_stdout(
    words: tuple[str, ...], code: int, kind: str, message: str, layerprobe: Layerprobe
) -> None:
    failed = layerprobe(*words, "--json")
    assert failed.code == code
    assert failed.json["error"]["type"] == kind
    assert message in failed.json["error"]["message"]
    assert (without := layerprobe(*words)).out == ""
    assert without.err == failed.err


def test_with_json_an_interruption_is_an_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(call: Call) -> NoReturn:
        raise KeyboardInterrupt

    context = typer.Context(typer.core.TyperCommand("x"))
    token = ERRORS_AS_JSON.set(True)
    with pytest.raises(typer.Exit):
        run(interrupted, context, {"call": Call(json=True)})
    ERRORS_AS_JSON.reset(token)
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "KeyboardInterrupt"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_page_that_cannot_be_written_loses_no_result(
    as_json: bool, layerprobe: Layerprobe, pair: Pair, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_browser(*words: Any, **settings: Any) -> NoReturn:
        raise MissingPackageError("no browser")

    monkeypatch.setattr("layerprobe.results.document.write_page", no_browser)
    failed = layerprobe("score", pair[0], "-t", pairs_file, "--report", "a.html", *(["--json"] if as_json else []))
    assert failed.code == 1
    assert failed.error == "error: no browser"
    assert failed.json["task"] if as_json else failed.out


def test_a_line_is_said_once_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        log_to_stderr(quiet=False)
        for n in (1, 2, 1):
            logging.getLogger("layerprobe.somewhere").warning("%d words are cut", n)
    assert capsys.readouterr().err == "warning: 1 words are cut\nwarning: 2 words are cut\n" * 2


def test_any_encoding_of_stdout_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="iso-8859-5"))
    monkeypatch.setattr("sys.argv", ["layerprobe", "--version"])
    with pytest.raises(SystemExit):
        main()
    typer.echo("71.5 ± 0.2")
    print_json({"model": "modèle"})
    version, sentence, *written = raw.getvalue().splitlines()
    assert (version.split()[0], sentence) == (b"layerprobe", rb"71.5 \xb1 0.2")
    assert json.loads(b"".join(written)) == {"model": "modèle"}
