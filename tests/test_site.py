"""The site as a browser opens it from the disk: whole, quiet, readable by everybody, and searchable."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
TALLEST = 25_000
"""Pixels."""
SCREENS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
LINKS = """[...document.querySelectorAll("a[href], img[src]")]
    .map((element) => element.href ?? element.src).filter((link) => link.startsWith("file:"))"""
IDS = "[...document.querySelectorAll('[id]')].map((element) => element.id)"
AXE = """axe.run({resultTypes: ["violations"], preload: false}).then((found) => found.violations.flatMap(
    (violation) => violation.nodes.map((node) => `${violation.id}: ${node.html.slice(0, 120)}`)))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, elsewhere."""
    folder = tmp_path_factory.mktemp("site")
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import pages
    finally:
        sys.path.pop(0)
    pages.main(folder / "build" / "pages")
    shutil.copyfile(ROOT / "mkdocs.yml", folder / "mkdocs.yml")
    subprocess.run([Path(sys.executable).with_name("zensical"), "build", "--strict"], cwd=folder, check=True)
    return folder / "build" / "site"


def opened(browser: Any, site: Path, **screen: Any) -> Iterator[tuple[str, Any]]:
    """Yield the address of each page, opened; fail at the end where one said something."""
    context = browser.new_context(**screen)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: messages.append(f"{page.url}: {error}"))
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":  # which a server shows, with addresses from its root
            page.goto(path.as_uri())
            yield path.as_uri(), page
    context.close()
    assert messages == []


@pytest.mark.parametrize("screen", SCREENS)
def test_pages_are_readable_by_everybody(screen: str, browser: Any, site: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    script = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    bad = []
    for address, page in opened(browser, site, **SCREENS[screen]):
        page.evaluate(script)
        bad += [f"{address}: {violation}" for violation in page.evaluate(AXE)]
        if (height := page.evaluate("document.documentElement.scrollHeight")) > TALLEST:
            bad.append(f"{address}: {height} pixels")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            bad.append(f"{address}: wider than the screen")
    assert bad == []


def test_no_link_leads_nowhere(browser: Any, site: Path) -> None:
    links, ids = dict[str, list[str]](), dict[str, set[str]]()
    for address, page in opened(browser, site):
        links[address], ids[address] = page.evaluate(LINKS), {*page.evaluate(IDS)}
    for address, targets in links.items():
        for target in {*targets}:
            place, _, anchor = target.partition("#")
            assert Path(unquote(place.removeprefix("file://"))).is_file(), f"{address}: {target}"
            assert not anchor or place not in ids or unquote(anchor) in ids[place], f"{address}: {target}"
    reached = {target.partition("#")[0] for targets in links.values() for target in targets}
    assert {*ids} - reached == set()


def test_search_finds_pages_without_a_server(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "reference" / "cli" / "find.html").as_uri())
    page.locator(".md-search__button").click()
    page.locator("input[type=text]:focus").type("tolerance")
    page.locator("a[href$='SearchSettings.tolerance']").first.wait_for()
    page.close()
