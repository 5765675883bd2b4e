"""Where progress shows: below the cell of a notebook while it runs."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from layerprobe.context import DEFAULT_SETTINGS, current, notebook_bar, part, report, settings
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
    assert texts == [*(f"TMFT layer <3>: {share}%" for share in (0, 25, 50)), ""] * 2
    assert 'max="4"' in shown[1]["text/html"]
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
