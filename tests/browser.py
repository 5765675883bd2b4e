"""A browser for tests of pages."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
UNREADABLE = (Path(__file__).parent / "unreadable.js").read_text()
"""What a reader with a keyboard, a screen reader or weak eyes could not use; axe-core finds no more on these pages."""
BACKGROUNDS = """[...new Set(
    [document.body, ...document.querySelectorAll(".plot .main-svg:first-child")]
        .map((element) => getComputedStyle(element).backgroundColor)
)]"""
"""The colours behind the page and behind every figure."""
LIGHT, DARK = ["rgb(255, 255, 255)"], ["rgb(20, 23, 26)"]
DRAWN = "[...document.querySelectorAll('.plot')].every(p => !p.checkVisibility() || p.querySelector('.main-svg'))"
"""Whether all figures that are not folded are drawn."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a browser; a test that needs one is skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield browser
        browser.close()


def until(page: Any, expression: str, value: object = True) -> None:
    """Wait for a value; playwright's own wait needs eval, which the page's security policy forbids."""
    deadline = time.monotonic() + 10
    while page.evaluate(expression) != value:
        assert time.monotonic() < deadline, f"{expression} is {page.evaluate(expression)!r}, not {value!r}"
        page.wait_for_timeout(50)
