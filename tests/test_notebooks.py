"""What notebooks keep: figures for places that run no script, decisions on printed numbers, no folder of a machine."""

import ast
import re
import runpy
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.])[−-]?\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> set[str]:
    """Return the numbers in a text, without signs and commas."""
    return {number.lstrip("−-").replace(",", "") for number in NUMBER.findall(text)}


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def imports(code: str) -> set[str]:
    """Return the imports of layerprobe in a cell."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {ast.unparse(node) for node in nodes if "layerprobe" in ast.unparse(node)}


def test_there_are_four() -> None:
    names = ["before_and_after", "make_it_smaller", "which_frozen_layer", "which_of_my_models"]
    assert [path.stem for path in NOTEBOOKS] == names


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
def test_a_notebook_uses_public_names_alone(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert set().union(*(imports(cell.source) for cell in cells)) == {"import layerprobe as lp"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ends_with_a_decision_on_printed_numbers(path: Path) -> None:
    *_, evidence, last = cells = nbformat.read(path, as_version=4).cells
    assert last.cell_type == "markdown"
    assert last.source.startswith("## Decision\n")
    assert evidence.cell_type == "code"
    decided = numbers(last.source) - numbers("## Decision")
    assert decided
    assert decided <= numbers(printed(evidence))
    first = cells[0].source
    assert [bold in first for bold in ("**We ask.**", "**We see.**", "**We decide.**")] == [True] * 3
    answer = first[first.index("**We see.**") :].partition("\n\n")
    answer = answer[0] + answer[2].partition("\n\n")[0]  # what is seen, and what is decided
    assert numbers(answer) <= numbers("".join(map(printed, cells)))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_names_no_folder_of_the_machine_that_ran_it(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            texts = [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
            assert not any(
                folder in text for text in texts for folder in ("/tmp/", "/home/", "/root/", "/usr/", "/work/")
            )


def test_a_page_in_a_frame_is_kept_as_its_picture() -> None:
    with_picture = runpy.run_path(str(NOTEBOOKS[0].with_name("execute.py")))["_with_picture"]
    frame, figure, table = (
        nbformat.v4.new_output("display_data", data)
        for data in (
            {"text/html": "<iframe srcdoc='&lt;script&gt;'></iframe>"},
            {"application/vnd.plotly.v1+json": {}},
            {"text/html": "<table></table>"},
        )
    )
    for output in (frame, figure, table):
        with_picture(output, lambda content: "drawn")
    assert frame.data == {"image/png": "drawn", "text/plain": "a page in a frame"}
    assert figure.data["image/png"] == "drawn"
    assert "image/png" not in table.data
