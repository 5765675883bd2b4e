"""Run every notebook from the top; an error in a cell fails. With --write the outputs are kept in the files.

Each figure that is kept has a picture of it, drawn by Chromium, for places that show notebooks but run no script;
a page in a frame is kept as its picture alone. Names of notebooks after the options choose some of them.
"""

from __future__ import annotations

import base64
import html
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
FIGURE, PICTURE, PAGE = "application/vnd.plotly.v1+json", "image/png", "text/html"
WIDTH, HEIGHT, FRAME, SCALE = 860, 430, 730, 1.5
"""Size of a picture whose figure has none, and height of one of a frame; pixels of a picture for one of these."""
USERS_CACHE = "~/.cache/layerprobe"

Draw = Callable[[dict[str, Any] | str], str]


def execute(path: Path, draw: Draw | None, cache: str) -> None:
    """Run one notebook in its own folder; keep its outputs if there is something to draw its figures with."""
    start = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": HERE}}).execute()
    if draw:
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            cell.metadata.pop("execution", None)  # times differ from run to run
            cell.outputs = [output for output in cell.outputs if _says_something(output)]
            for output in cell.outputs:
                _with_picture(output, draw)
                if "text" in output:
                    output.text = output.text.replace(cache, USERS_CACHE)
        nbformat.write(notebook, path)
    print(f"{path.name}: ran in {time.perf_counter() - start:.0f} s")


def _with_picture(output: Any, draw: Draw) -> None:
    """Add the picture of a figure; put that of a page in a frame in its place, as stored pages run no script."""
    data = output.get("data", {})
    if FIGURE in data:
        data[PICTURE] = draw(data[FIGURE])
    elif data.get(PAGE, "").startswith("<iframe"):
        output.data = {PICTURE: draw(data[PAGE]), "text/plain": "a page in a frame"}


def _says_something(output: dict[str, Any]) -> bool:
    """Return whether it is neither a remark on the side nor the place of a bar that is done."""
    return output.get("name") != "stderr" and ("data" not in output or any(output["data"].values()))


@contextmanager
def browser() -> Iterator[Draw]:
    """Give a function from a figure, or the HTML of a frame, to its PNG in base64, as Chromium draws it."""
    from playwright.sync_api import sync_playwright  # only to write
    from plotly.offline import get_plotlyjs

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = opened.new_context(viewport={"width": WIDTH, "height": FRAME}, device_scale_factor=SCALE)
        script = {"body": get_plotlyjs(), "headers": {"Access-Control-Allow-Origin": "*"}}
        context.route("**/plotly*.js", lambda route: route.fulfill(content_type="text/javascript", **script))
        page = context.new_page()

        def draw(content: dict[str, Any] | str) -> str:
            if isinstance(content, str):  # not as a frame, whose requests are not those of the page
                page.set_content(html.unescape(content.partition('srcdoc="')[2].partition('"')[0]))
                page.wait_for_selector(".main-svg")
                page.wait_for_timeout(1000)  # all figures of the page
                return base64.b64encode(page.screenshot()).decode()
            page.set_content("")
            page.add_script_tag(content=get_plotlyjs())
            width, height = (content["layout"].get(*side) for side in (("width", WIDTH), ("height", HEIGHT)))
            options = {"format": "png", "scale": SCALE, "width": width, "height": height}
            url: str = page.evaluate("([figure, options]) => Plotly.toImage(figure, options)", [content, options])
            return url.partition(",")[2]

        yield draw
        opened.close()


if __name__ == "__main__":
    chosen = [HERE / name for name in sys.argv[1:] if name != "--write"] or sorted(HERE.glob("*.ipynb"))
    # a store of their own: nothing is read that an earlier run left, nothing is left in the user's
    with tempfile.TemporaryDirectory() as cache, browser() if "--write" in sys.argv else nullcontext() as draw:
        os.environ["LAYERPROBE_CACHE"] = cache
        for notebook_path in chosen:
            execute(notebook_path, draw, cache)
