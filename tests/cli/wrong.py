"""Wrong calls and what each is answered: `python -m tests.cli.wrong` writes the answers anew, to be read in review."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

from layerprobe_cli.main import app
from typer.testing import CliRunner

from tests.models import tiny_model, tiny_tokenizer

SNAPSHOT = Path(__file__).with_name("wrong.txt")


def made(folder: Path) -> None:
    """Write what the calls name: a model, pairs, texts, and a study that is none."""
    tiny_model("bert", seed=0).save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    rows = [
        (f"{a} {b} c", f"{b} d {a}", (i + j) % 6) for i, a in enumerate("abcdef") for j, b in enumerate("ghijklmnop")
    ]
    (folder / "pairs.csv").write_text("".join(f"{first},{second},{score}\n" for first, second, score in rows))
    (folder / "texts.txt").write_text("".join(f"{first}\n" for first, *_ in rows))
    (folder / "study.json").write_text("{}")


def answered(call: str) -> str:
    """Return the exit code of a call and its line on stderr."""
    environment = {"COLUMNS": "2000", "HF_HUB_OFFLINE": "1", "LAYERPROBE_CACHE": "cache"}
    result = CliRunner().invoke(app, shlex.split(call), env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), (call, result.exception)
    lines = [line.strip("│ ") for line in result.stderr.splitlines() if line.startswith(("│", "error: "))]
    assert len(lines) == 1, (call, result.stderr)
    assert not result.stdout, (call, result.stdout)
    return f"{result.exit_code} {lines[0]}".replace(f"{Path.cwd()}/", "./")


def calls() -> list[str]:
    """Return the calls that the snapshot has."""
    return [line.removeprefix("$ layerprobe ") for line in SNAPSHOT.read_text().splitlines() if line.startswith("$ ")]


def snapshot(folder: Path) -> str:
    """Return every call with its answer; `folder` is the current one."""
    made(folder)
    return "".join(f"$ layerprobe {call}\n{answered(call)}\n" for call in calls())


if __name__ == "__main__":
    with TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        SNAPSHOT.write_text(snapshot(Path(temporary)))
