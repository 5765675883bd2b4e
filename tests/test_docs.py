"""The documents: code blocks are executed, commands that need the network are parsed, no link leads nowhere.

Python blocks of a page share one namespace, the commands of console blocks one folder. Other commands name models of
the Hub or take long, so only their names and options are checked.
"""

import importlib
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing
import yaml
from layerprobe_cli.main import app
from typer.testing import CliRunner

from layerprobe.results import words
from layerprobe.results.shown import load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "research").rglob("*.md"))]
LONG = {
    "docs/data.md",
    "docs/try.md",
    "docs/find.md",
    "docs/shrink.md",
    "docs/trainers.md",
}
"""Pages whose code fine-tunes for more than some ten seconds."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """Return the code of a page in one language."""
    return [code for name, code in FENCE.findall(page.read_text()) if name == language]


def pages_with(language: str) -> list[object]:
    """Return the pages that have code in a language, as parameters."""
    names = {str(page.relative_to(ROOT)): page for page in PAGES if blocks(page, language)}
    return [
        pytest.param(page, id=name, marks=[pytest.mark.slow] if name in LONG else []) for name, page in names.items()
    ]


def commands(code: str) -> list[list[str]]:
    """Return the arguments of the layerprobe commands of a block, with or without a prompt."""
    lines = (line.removeprefix("$ ") for line in code.replace("\\\n", " ").splitlines())
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("layerprobe ")]


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "cache"))
    names: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", pages_with("console"))
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path / "cache"))
    for code in blocks(page, "console"):
        for call in commands(code):
            done = CliRunner().invoke(app, call, env={"COLUMNS": "200"})
            assert done.exit_code == 0, (call, done.output)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_commands_that_are_shown_have_these_options(page: Path) -> None:
    for code in [*blocks(page, "sh"), *blocks(page, "")]:
        for call in commands(code):
            parse(call)


def parse(call: list[str]) -> None:
    """Parse a command line without running it.

    Raises:
        typer.Exit, or a usage error: If a command or option is not there.
    """
    command = typer.testing._get_command(app)
    context = command.make_context("layerprobe", [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        found = command.get_command(context, call[0])
        assert found is not None, call
        command, call = found, call[1:]
    command.make_context(command.name, list(call), parent=context)


def docs_script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a script of the documents as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module(name)


def test_modules_that_are_run_are_there() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "research").rglob("*.toml"))]
    names = {
        name
        for page in pages
        for name in re.findall(r"python -m ((?:layerprobe|benchmarks|tests)[\w.]*)", page.read_text())
    }
    assert names
    for name in names:
        module = ROOT.joinpath(*name.split("."))
        source = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
        assert '__name__ == "__main__"' in source.read_text(), name


def test_concepts_are_classes_of_their_modules() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| `([\w/]+\.py)` \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(rows) == 55
    for name, module in rows:
        assert re.search(rf"^class {name}\b", (ROOT / "layerprobe" / module).read_text(), re.MULTILINE), name


def test_the_figures_are_what_their_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = docs_script("figures", monkeypatch)
    for path, figure in figures.figures().items():
        assert path.read_text(encoding="utf-8") == figure, "run: python docs/figures.py"


def test_pages_are_linked_on_the_site_as_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = docs_script("pages", monkeypatch)
    text = "[![a](images/a.svg)](../research/contest.md#b), [c](find.md), [d](../notebooks/d.ipynb), [e](https://e.org)"
    assert pages.with_links(text, ROOT / "docs" / "index.md") == (
        "[![a](images/a.svg)](research/contest.md#b), [c](find.md), d, [e](https://e.org)"
    )
    text = "[find](../docs/find.md), ![f](../docs/images/f.svg), [numbers](data/pairs.csv), [top](#top)"
    assert pages.with_links(text, ROOT / "research" / "index.md") == (
        "[find](../find.md), ![f](../images/f.svg), [numbers](data/pairs.csv), [top](#top)"
    )


def test_an_option_of_several_commands_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = docs_script("pages", monkeypatch).reference()
    links = dict(re.findall(r"^\| \[(layerprobe [\w ]+)\]\(([\w-]+)\.md\)", reference["index"], re.MULTILINE))
    assert {*links.values()} == {*reference} - {"index", "options"}
    assert links["layerprobe lab adapt"] == "lab-adapt"
    assert "| `-q, --quiet`{#quiet} |" in reference["options"]
    for name in links.values():
        assert "[`--quiet`](options.md#quiet)" in reference[name]
        assert "{#quiet}" not in reference[name]
    assert "`--budget SHARE`{#budget}" in reference["find"]
    for anchor in re.findall(r"options\.md#([\w-]+)", "".join(reference.values())):
        assert f"{{#{anchor}}}" in reference["options"]


def test_the_navigation_has_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = docs_script("pages", monkeypatch)
    written = {pages.staged(page).as_posix() for page in PAGES[1:]}
    generated = {f"reference/cli/{name}.md" for name in pages.reference()}
    assert {*nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])} == written | generated


def nav_pages(entry: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from nav_pages(part)


def test_one_can_read_the_documents_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def n_words(*texts: str) -> int:
        return sum(len(text.split()) for text in texts)

    def words_in(folder: str) -> int:
        return n_words(*(page.read_text(encoding="utf-8") for page in (ROOT / folder).rglob("*.md")))

    assert words_in("docs") <= 17_000
    assert n_words(*docs_script("pages", monkeypatch).reference().values()) <= 8_000
    assert words_in("research") <= 15_000
    assert n_words((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")) <= 2_270


def test_the_readme_is_short_and_narrow() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    breakable = [re.sub(r"\]\([^)]*\)", "]()", line) for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in breakable if len(line) > 120] == []
    outputs = [line for code in blocks(ROOT / "README.md", "") for line in code.splitlines()]
    assert [line for line in outputs if len(line) > 80] == []


def test_outputs_are_what_recorded_runs_show_today(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = docs_script("outputs", monkeypatch)
    assert not list(outputs.stale()), "run: python docs/outputs.py"
    other = "<!-- recorded: gallery/finding.json answer -->\n```\nKeep 5 of 8 blocks\n```\n"
    assert "Keep 4 of 8 blocks" in outputs.filled(other)


def prose(page: Path) -> str:
    """Return the text of a page without code, outputs and the targets of links."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_percent_has_a_space_before_it(page: Path) -> None:
    assert re.findall(r".*\d%.*", prose(page)) == []


def test_the_readme_quotes_the_demo_as_it_prints_today() -> None:
    conclusion = load(ROOT / "docs" / "gallery" / "finding.json").conclusion
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    quotation = " ".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
    headline, certainty = words.headline(conclusion), words.certainty(conclusion)
    assert quotation.startswith(f"**{headline}** ({certainty.lower()}). ")
    numbers = " ".join(itertools.chain.from_iterable(words.tiles(conclusion)))
    quoted = re.findall(r"\d+\.\d+|\d+ %", quotation)
    assert len(quoted) >= 4
    assert set(quoted) <= {*re.findall(r"\d+\.\d+|\d+ %", f"{numbers} {certainty}")}


def test_every_row_of_the_table_of_performance_has_its_script() -> None:
    lines = (ROOT / "research" / "performance.md").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    scripts = [
        row.rsplit("`", 2)[1] for row in itertools.takewhile(lambda line: line.startswith("|"), lines[begin + 1 :])
    ]
    assert len(scripts) >= 9
    columns = [cell.strip() for cell in lines[begin - 1].split("|")]
    assert columns[-3:] == ["instructions", "script", ""]
    for row in itertools.takewhile(lambda line: line.startswith("|"), lines[begin + 1 :]):
        cells = [cell.strip() for cell in row.split("|")]
        assert len(cells) == len(columns), row
        assert cells[-3] in {"AVX2", "AVX-512", "AVX-512, bfloat16", "any", "not noted"}, row
    for script in scripts:
        assert (ROOT / "benchmarks" / script.split()[0]).is_file(), script
