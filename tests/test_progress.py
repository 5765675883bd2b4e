"""Where progress shows: below the cell of a notebook while it runs."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from layerprobe.context import DEFAULT_SETTINGS, current, notebook_bar, pace, part, report, settings, stage_of
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
    assert lines == ["TMFT layer <3>: 0%", "TMFT layer <3>: 25%, left", "TMFT layer <3>: 50%, left", ""] * 2
    assert 'value="0.25"' in shown[1]["text/html"]
    for cell in notebook.cells:
        assert [output["data"] for output in cell.outputs] == [{"text/html": "", "text/plain": ""}]


def test_nothing_is_shown_elsewhere(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    notebook_bar("TMFT", 1, 2)
    terminal = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", terminal)  # type: ignore[arg-type]
    notebook_bar("TMFT", 1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_part_is_reported_as_a_share_of_the_whole() -> None:
    said: list[tuple[str, float, float]] = []
    with settings(progress=lambda *given: said.append(given)), part(start=3.0, share=2.0, whole=10.0):
        report("TMFT", 1, 4)
    assert said == [("TMFT", 3.5, 10.0)]


def test_settings_hold_inside_their_block_alone() -> None:
    with settings(level=0.99):
        with settings(progress=notebook_bar) as inner:
            assert current() is inner
            assert inner.level == 0.99
        assert current().level == 0.99
    assert current() is DEFAULT_SETTINGS
    with pytest.raises(DataError, match="between 0 and 1"), settings(level=95):
        pass


def test_shares_never_fall_and_the_time_left_is_said() -> None:
    """A worker that is lost, or more to do than was known, takes back what was done."""
    seconds = iter([0.0, 10.0, 20.0, 30.0, 40.0, 40.0, 50.0, 60.0])
    at = pace(lambda: next(seconds))
    reports = [("runs of 3", 0, 4), ("runs of 2", 1, 4), ("runs of 2", 1, 8), ("runs of 1", 2, 4), ("runs of 1", 9, 4)]
    left = ["", "about 30 s left", "about 60 s left", "about 30 s left", ""]
    assert [at(*report) for report in reports] == list(zip([0, 0.25, 0.25, 0.5, 1], left, strict=True))
    assert [at("runs of x", done, 2) for done in (0, 1)] == [(0, ""), (0.5, "about 10 s left")]
    assert at("runs of 1", 1, 4) == (0.25, ""), "expected what was done to begin again"


def test_stages_are_told_apart_by_names_and_not_by_numbers() -> None:
    tasks = ("TMFT layer 3 seed 0", "TMFT layer 12 seed 1", "embedding with L6", "embedding with L12")
    assert [stage_of(task) for task in tasks] == ["TMFT layer seed", "TMFT layer seed", *tasks[2:]]
    assert stage_of("pretraining loss 1.234, 3,000 tokens/s") == "pretraining"
