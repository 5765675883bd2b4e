"""--report and --plotly: every command that computes a curve or a table writes it as a page, too."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from layerprobe_cli.main import app

from layerprobe.results.words import typeset_text
from tests.few import few
from tests.report.test_page import Page

from .conftest import QUICK, Layerprobe, Pair

WITHOUT = {"extract", "check", "export"}
"""Commands without a curve or a table by layer, or that write what another command makes a page of."""
TUNED = ("--layers", "1,3", *QUICK)
COMMANDS: dict[str, tuple[str, ...]] = {
    "compare": ("MODEL", "REFERENCE", "-t", "PAIRS"),
    "predict": ("MODEL", "-r", "REFERENCE", "-t", "PAIRS"),
    "score -t FEWER": ("MODEL", "-t", "PAIRS"),
    "score": ("MODEL", "-t", "PAIRS"),
    "score --ranking cosine": ("MODEL", "-t", "PAIRS", "--columns", "0,1,2", "--relevant-from", "2.5"),
    "find": ("MODEL", "-t", "PAIRS", *QUICK),
    "finetune --scan": ("MODEL", "-t", "PAIRS", *QUICK),
    "finetune": ("MODEL", "-t", "PAIRS", *TUNED),
}
HEADINGS = {
    "compare": "similarity by layer · electra · bert",
    "predict": "prediction, before any training",
    "find": "the layer to keep",
}


@pytest.mark.parametrize("command", few(COMMANDS, lambda command: command.split()[0] not in ("score", "finetune")))
def test_a_command_writes_its_page_beside_what_it_prints(
    command: str, layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    fewer = tmp_path / "fewer.csv"
    fewer.write_text(pairs_file.read_text().partition("\n")[2])
    places = {"MODEL": str(pair[0]), "REFERENCE": str(pair[1]), "PAIRS": str(pairs_file), "FEWER": str(fewer)}
    words = (*command.split(), *COMMANDS[command])
    arguments = [places.get(argument, argument) for argument in words]
    path = tmp_path / "new" / "page.html"
    done = layerprobe(*arguments, "--report", path, "--plotly", "cdn")
    assert done.code == 0, done.err
    assert f"Why: {path}\n" in done.out
    text = path.read_text()
    page = Page(text)
    assert len(text) < 200_000
    assert HEADINGS.get(command, "electra") in page.text
    assert len(json.loads(page.data("figures"))) >= 1
    assert len(json.loads(page.data("table")).splitlines()) > 2
    assert json.loads(page.data("study"))
    assert "Command" in page.text
    assert typeset_text(done.out.splitlines()[0].partition("  (")[0]) in page.text, "both begin with the same answer"
    # data alone on stdout, and no page where none was asked for
    path.unlink()
    assert json.loads(layerprobe(*arguments, "--json", "--report", path).out)
    assert len(path.read_text()) > 1_000_000, "expected Plotly in the page"
    if command == "predict":
        path.unlink()
        assert "Why: " not in layerprobe(*arguments).out
        assert not path.exists()


NEXT = {
    "probe MODEL -t PAIRS --foldings 1": "layerprobe export MODEL layer-N --layer N",
    "probe MODEL -t PAIRS --norm raw --foldings 1": "",
    "profile MODEL --layers 1 --lengths 8 --batch-sizes 1 --rounds 1 --repeats 1": (
        "layerprobe export MODEL layer-N --layer N"
    ),
    "score MODEL -t PAIRS": "layerprobe find MODEL -t PAIRS",
    "score MODEL -t PAIRS --pooling cls": "",
}
"""Commands, and what comes next."""


@pytest.mark.parametrize("line", NEXT)
def test_what_to_do_next_is_said_where_no_option_would_be_lost(
    line: str, layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    places = {"MODEL": str(pair[0]), "REFERENCE": str(pair[1]), "PAIRS": str(pairs_file)}
    path = tmp_path / "page.html"
    done = layerprobe(*(places.get(word, word) for word in shlex.split(line)), "--report", path, "--plotly", "cdn")
    assert done.code == 0, done.err
    next_command = shlex.join(["layerprobe", *done.commands[0]]) if done.commands else ""
    for name, place in places.items():
        next_command = next_command.replace(place, name)
    assert re.sub(r"layer-\d --layer \d", "layer-N --layer N", next_command) == NEXT[line]


def test_every_command_with_a_result_has_both_options() -> None:
    root = typer.main.get_command(app)
    context = root.make_context("layerprobe", [], resilient_parsing=True)
    for name in root.list_commands(context):  # type: ignore[attr-defined]
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts}
        if hasattr(command, "list_commands"):
            continue
        assert ("--plotly" in options) == (name not in WITHOUT), name
        assert ("--report" in options) == (name not in WITHOUT), name
