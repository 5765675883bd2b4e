"""What notebooks keep: figures that are seen where no script runs, and nothing of where they were made."""

from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_run_and_its_figures_have_pictures(path: Path) -> None:
    assert path.stat().st_size < 1_500_000
    notebook = nbformat.read(path, as_version=4)
    assert len(notebook.cells) <= 25
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells[0].outputs, "the answer is what the first cell prints"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output.data for cell in cells for output in cell.outputs if "data" in output]
    figures = [data for data in shown if "application/vnd.plotly.v1+json" in data]
    assert figures
    assert all(data.get("image/png") for data in figures)
    assert not any("<script" in data.get("text/html", "") for data in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_names_no_folder_of_the_machine_that_ran_it(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            said = [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
            assert not any(folder in text for text in said for folder in ("/tmp/", "/home/", "/root/", "/usr/"))
