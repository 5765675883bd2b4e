"""Fill the documents with the outputs of recorded runs: `python docs/outputs.py`; `--check` fails where one is stale.

A comment before a block of code names the result, which a command printed with --json or `lp.save` wrote:

    <!-- recorded: outputs/find.json -->
    ```
    Keep 4 of 8 blocks ...
    ```

The block is what a terminal of 80 columns shows of it today. A word after the name chooses: `wide` all columns,
`answer` no table, the title of a further table that table. `--record outputs/find.json` runs the last command above
the comment on the files of `layerprobe demo`, and writes its result.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from layerprobe.errors import ON_COMMAND_LINE
from layerprobe.results import terminal
from layerprobe.results.shown import load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "research").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- recorded: (\S+\.json)(?: ([\w ]+))? -->\n+```\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(layerprobe (?:.*\\\n)*.*)$", re.MULTILINE)


def output(name: str, part: str | None) -> str:
    """Return what a terminal shows of a recorded result."""
    before = ON_COMMAND_LINE.set(True)
    try:
        result = load(DOCS / name)
        text = terminal.shown(result, wide=part == "wide", steps=())
    finally:
        ON_COMMAND_LINE.reset(before)
    if part == "answer":
        text = text.split("\n\n")[0]
    elif part not in (None, "wide"):
        table = next(table for table in result.details if table.title == part)
        text = terminal.fitted(table, terminal.WIDTH)
    return f"{text.rstrip()}\n"


def filled(page: str) -> str:
    """Return the text of a page with the outputs of today."""
    return BLOCK.sub(lambda block: block[1] + output(block[2], block[3]) + block[5], page)


def stale() -> Iterator[Path]:
    """Yield the pages whose outputs differ from those of today."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            yield page


def command(name: str) -> list[str]:
    """Return the command that a page shows before a recorded result.

    Raises:
        SystemExit: If no page shows one.
    """
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if block[2] == name and (commands := COMMAND.findall(text, 0, block.start())):
                return shlex.split(commands[-1].replace("\\\n", " "), comments=True)
    raise SystemExit(f"no page has a command before <!-- recorded: {name} -->")


def record(name: str) -> None:
    """Run the command of a recorded result in a folder and with a cache of its own, and keep what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LAYERPROBE_CACHE": f"{folder}/cache"}
        subprocess.run(["layerprobe", "demo", "--files", "."], cwd=folder, env=environment, check=True)
        done = subprocess.run(
            [*command(name), "--json"], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True
        )
        text = done.stdout.decode().replace(f"{folder}/cache", "/home/me/.cache/layerprobe").replace(folder, "/home/me")
    (DOCS / name).parent.mkdir(exist_ok=True)
    (DOCS / name).write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Record the named results, check all pages, or write them."""
    if arguments[:1] == ["--record"]:
        for name in arguments[1:]:
            record(name)
    pages = list(stale())
    if arguments == ["--check"] and pages:
        raise SystemExit(f"stale outputs in {', '.join(map(str, pages))}: run python docs/outputs.py")
    for page in pages:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
