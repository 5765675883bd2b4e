"""Run every notebook from the top; an error in a cell fails. With --write the outputs are kept in the files."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def execute(path: Path, *, write: bool) -> None:
    """Run one notebook in its own folder."""
    start = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": HERE}}).execute()
    if write:
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            cell.metadata.pop("execution", None)  # times differ from run to run
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, path)
    print(f"{path.name}: ran in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    # a store of their own: nothing is read that an earlier run left, nothing is left in the user's
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LAYERPROBE_CACHE"] = cache
        for notebook_path in sorted(HERE.glob("*.ipynb")):
            execute(notebook_path, write="--write" in sys.argv)
