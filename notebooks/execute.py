"""Run every notebook from the top; an error in a cell fails. With --write the outputs are kept in the files.

Beside each figure that is kept stands a picture of it, drawn by Chromium, for places that show notebooks but run no
script. Names of notebooks after the options choose some of them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
FIGURE, PICTURE = "application/vnd.plotly.v1+json", "image/png"
WIDTH, HEIGHT, SCALE = 860, 430, 1.5
"""Of a picture whose figure does not say; how many pixels of it a pixel of the figure has."""

Draw = Callable[[dict[str, Any]], str]


def execute(path: Path, draw: Draw | None) -> None:
    """Run one notebook in its own folder; keep what it put out if there is something to draw its figures with."""
    start = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": HERE}}).execute()
    if draw:
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            cell.metadata.pop("execution", None)  # times differ from run to run
            cell.outputs = [output for output in cell.outputs if _says_something(output)]
            for output in (output for output in cell.outputs if FIGURE in output.get("data", {})):
                output.data[PICTURE] = draw(output.data[FIGURE])
        nbformat.write(notebook, path)
    print(f"{path.name}: ran in {time.perf_counter() - start:.0f} s")


def _says_something(output: dict[str, Any]) -> bool:
    """Return whether it is neither a remark on the side nor the place of a bar that is done."""
    return output.get("name") != "stderr" and ("data" not in output or any(output["data"].values()))


@contextmanager
def browser() -> Iterator[Draw]:
    """Give a function from a figure to the PNG of it, in base64, which Plotly draws in Chromium."""
    from playwright.sync_api import sync_playwright  # only to write
    from plotly.offline import get_plotlyjs

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = opened.new_page()
        page.add_script_tag(content=get_plotlyjs())

        def draw(figure: dict[str, Any]) -> str:
            width, height = (figure["layout"].get(*side) for side in (("width", WIDTH), ("height", HEIGHT)))
            options = {"format": "png", "scale": SCALE, "width": width, "height": height}
            url: str = page.evaluate("([figure, options]) => Plotly.toImage(figure, options)", [figure, options])
            return url.partition(",")[2]

        yield draw
        opened.close()


if __name__ == "__main__":
    chosen = [HERE / name for name in sys.argv[1:] if name != "--write"] or sorted(HERE.glob("*.ipynb"))
    # a store of their own: nothing is read that an earlier run left, nothing is left in the user's
    with tempfile.TemporaryDirectory() as cache, browser() if "--write" in sys.argv else nullcontext() as draw:
        os.environ["LAYERPROBE_CACHE"] = cache
        for notebook_path in chosen:
            execute(notebook_path, draw)
