"""Where progress shows: below the cell of a notebook while it runs."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from layerprobe_cli import output
from nbclient import NotebookClient

from layerprobe.context import DEFAULT_SETTINGS, current, in_parts, notebook_bar, pace, report, settings
from layerprobe.errors import DataError

CELL = """
import time
from layerprobe.context import notebook_bar
for step in range(3):
    notebook_bar("TMFT layer <3>", step, 4)
    time.sleep(0.25)
"""


def test_a_cell_shows_a_bar_while_it_runs_and_nothing_of_it_afterwards(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL), nbformat.v4.new_code_cell(CELL)])
    shown: list[dict[str, Any]] = []

    def look(message: dict[str, Any], **_: Any) -> None:
        if message["msg_type"] in ("display_data", "update_display_data"):
            shown.append(message["content"]["data"])

    client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    process = client.process_message

    def watched(message: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        look(message)
        return process(message, *arguments, **options)

    client.process_message = watched  # type: ignore[method-assign]
    client.execute()
    texts = [data["text/plain"] for data in shown]
    lines = [re.sub(r", about \d+ s left$", ", left", text) for text in texts]
    assert lines == ["TMFT layer <3>: 0 %", "TMFT layer <3>: 25 %, left", "TMFT layer <3>: 50 %, left", ""] * 2
    assert 'value="0.25"' in shown[1]["text/html"]
    for cell in notebook.cells:
        assert [output["data"] for output in cell.outputs] == [{"text/html": "", "text/plain": ""}]


def test_nothing_is_shown_elsewhere(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    notebook_bar("TMFT", 1, 2)
    terminal = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", terminal)  # type: ignore[arg-type]
    notebook_bar("TMFT", 1, 2)
    assert capfd.readouterr() == ("", "")


def test_settings_hold_inside_their_block_alone() -> None:
    with settings(level=0.99):
        with settings(progress=notebook_bar) as inner:
            assert current() is inner
            assert inner.level == 0.99
        assert current().level == 0.99
    assert current() is DEFAULT_SETTINGS
    with pytest.raises(DataError, match="between 0 and 1"), settings(level=95):
        pass


def test_a_share_never_falls_and_the_time_left_is_that_of_the_whole() -> None:
    """A worker that is lost, or more to do than was known, takes back what was done."""
    seconds = iter([0.0, 0.0, 10.0, 20.0, 30.0])
    at = pace(lambda: next(seconds))
    reports = [("runs of 3", 0, 4), ("runs of 2", 1, 4), ("runs of 2", 1, 8), ("embedding", 2, 4), ("runs", 9, 4)]
    assert [at(*report) for report in reports] == [
        (0, "runs of 3: 0 %"),
        (0.25, "runs of 2: 25 %, about 30 s left"),
        (0.25, "runs of 2: 25 %, about 60 s left"),
        (0.5, "embedding: 50 %, about 30 s left"),
        (1, "runs: 100 %"),
    ]
    assert at("an empty stage", 0, 0) == (1, "an empty stage: 100 %")


def test_time_counts_from_the_first_report_which_says_what_was_there() -> None:
    seconds = iter([0.0, 100.0, 110.0])
    at = pace(lambda: next(seconds))
    assert [at("runs", done, 4)[1] for done in (2, 3)] == ["runs: 50 %", "runs: 75 %, about 10 s left"]


def test_equal_parts_are_reported_as_one_whole() -> None:
    shares: list[float] = []

    def work(name: str) -> str:
        report("embedding", 8, 8)
        return name.upper()

    with settings(progress=lambda _, done, total: shares.append(done / total)):
        assert [*in_parts(lambda names: [*in_parts(work, names)], ("ab", "cd"))] == [["A", "B"], ["C", "D"]]
        report("comparing", 0, 1)
    assert shares == [0.25, 0.5, 0.75, 1, 0]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_command_line_has_one_line_of_progress(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """A bar on a terminal, which leaves nothing; a line now and then elsewhere."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "LINE_EVERY", 0)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress_bar(quiet=False) as progress:
        progress("embedding", 1, 2)
        progress("comparing [layers]", 1, 4)
    lines = [line for line in re.split(r"[\r\n]+", stream.getvalue()) if "%" in line]
    assert "comparing [layers]: 50 %" in lines[-1], stream.getvalue()
    assert len(lines) == 2 or is_terminal
