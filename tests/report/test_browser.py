"""The page in a real browser: drawn, quiet, alone on the network, and usable on a phone."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from layerprobe.files.serialisation import from_json
from layerprobe.results.conclusion import Step
from layerprobe.results.document import render, write_page
from layerprobe.results.draw import figures as drawings
from layerprobe.results.style import Figure
from layerprobe.study.values import Finding
from tests.browser import BACKGROUNDS, DARK, DRAWN, LIGHT, UNREADABLE, browser, until  # noqa: F401 - the fixture
from tests.few import few

from .conftest import FINDINGS
from .test_explore import GOLD, NOISY, SCRIPT, ItemSource, N, scores_with, source, task_of
from .test_shown import CASES

Open = Callable[..., Any]
STEP = Step(name="export", command=("find", "rtd", "pairs.csv", "-o", "rtd-5"))


@pytest.fixture(scope="module")
def open_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Open:  # noqa: F811 - the fixture
    """Return a function that opens the page of a result and gives the page once its figures are drawn."""
    folder = tmp_path_factory.mktemp("reports")
    return lambda kind, **options: _opened(browser, folder, kind, options)


@contextmanager
def _opened(chromium: Any, folder: Path, kind: str, options: dict[str, Any]) -> Iterator[Any]:
    """Open a report; at the end, assert that it said nothing and asked for nothing but itself."""
    result = CASES[kind]()
    path = write_page(folder / f"{kind}.html", render(result, steps=(STEP,)))
    context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    said: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(path.as_uri())
    until(page, DRAWN)
    try:
        yield page
        assert said == []
        assert [url for url in requested if not url.startswith(("blob:", "data:"))] == [path.as_uri()]
    finally:
        context.close()


@pytest.mark.slow
def test_a_page_that_loads_plotly_draws_it_or_says_why_it_cannot(open_page: Open) -> None:
    with open_page("found") as page:
        browser, path = page.context.browser, Path(page.url.removeprefix("file://")).with_name("cdn.html")
    FINDINGS["found"]().save_html(path, plotly="cdn")
    headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/javascript"}
    answers: dict[bool, Callable[[Any], None]] = {
        True: lambda route: route.fulfill(body=get_plotlyjs(), headers=headers),
        False: lambda route: route.abort(),
    }
    for served, said in ((True, 0), (False, 1)):
        context = browser.new_context()
        context.route("**/plotly-*.js", answers[served])
        page = context.new_page()
        page.goto(path.as_uri())
        until(page, "document.querySelectorAll('main > p.missing').length", said)
        if served:
            until(page, DRAWN)
        else:
            assert "need the network" in page.locator("main > p.missing").inner_text()
        context.close()


def points_of(figure: Figure) -> int:
    """Return how many points a figure draws."""
    marked = (trace for trace in figure.plot.data if trace.type == "scatter" and "markers" in (trace.mode or ""))
    return sum(value is not None for trace in marked for value in trace.y)


def test_every_figure_is_drawn_with_its_data(open_page: Open) -> None:
    figures = drawings(FINDINGS["found"]())
    with open_page("found") as page:
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        until(page, DRAWN)
        for number, figure in enumerate(figures, start=1):
            drawn = page.locator(f"#plot-figure-{number} path.point").count()
            assert drawn == points_of(figure), figure.name
        assert page.locator(".plot").count() == len(figures)
        for button in page.locator("#plot-figure-1 + figcaption .save button").all():
            with page.expect_download() as caught:
                button.click()
            kind = button.inner_text().lower()
            assert caught.value.suggested_filename.endswith(f".{kind}")


@pytest.mark.parametrize("kind", few(["found", "found hostile"], lambda kind: kind == "found hostile"))
def test_downloads_are_the_finding_and_the_table_which_remain_without_scripts(kind: str, open_page: Open) -> None:
    finding = FINDINGS[kind]()
    with open_page(kind) as page:
        json_file = _download(page, "Full result (JSON)")
        csv_file = _download(page, "Table of layers (CSV)")
        with page.context.browser.new_context(java_script_enabled=False) as context:
            bare = context.new_page()
            bare.goto(page.url)
            assert "JSON, in the script element" in bare.locator("noscript").inner_text().replace("\n", " ")
            assert bare.locator("#rows tbody tr").count() == 13
    assert from_json(Finding, json_file) == finding
    assert csv_file == finding.table.csv()
    assert len(list(csv.DictReader(io.StringIO(csv_file)))) == 13


def _download(page: Any, label: str) -> str:
    with page.expect_download() as caught:
        page.get_by_role("button", name=label).click()
    assert caught.value.suggested_filename.startswith("layerprobe-")
    return Path(caught.value.path()).read_bytes().decode()


@pytest.mark.parametrize(
    "kind",
    few(["found", *(kind for kind in CASES if kind not in FINDINGS)], lambda kind: kind == "found"),
)
def test_the_page_of_any_result_is_drawn_fits_a_phone_and_can_be_read(kind: str, open_page: Open) -> None:
    phone = {"width": 390, "height": 844}
    with open_page(kind, viewport=phone, is_mobile=True, has_touch=True) as page:
        assert page.locator(".plot .main-svg").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        widths = page.evaluate("[...document.querySelectorAll('.plot .main-svg')].map(s => s.clientWidth)")
        assert 300 < max(widths) <= 390
        for scheme, colours in (("light", LIGHT), ("dark", DARK)):
            page.emulate_media(color_scheme=scheme)
            until(page, BACKGROUNDS, colours)
            assert page.evaluate(UNREADABLE) == []


def test_a_page_is_used_by_keyboard_and_mouse_in_any_colours_and_printed(open_page: Open) -> None:
    layers = "[...document.querySelectorAll('#rows tbody th')].map(head => head.textContent).join()"
    widths = "[...document.querySelectorAll('.plot .main-svg')].map(s => s.clientWidth)"
    with open_page("found", color_scheme="dark") as page:
        expected = page.locator("#rows th", has=page.get_by_role("button", name="expected", exact=True))
        for order, first in (("descending", "9,8,7,6"), ("ascending", "12,11,0,1"), ("none", "0,1,2,3")):
            expected.locator("button").press("Enter")
            assert expected.get_attribute("aria-sort") == order
            assert page.evaluate(layers).startswith(first)

        fold = page.locator("details", has=page.locator("summary", has_text=re.compile("^Runs$")))
        runs = fold.locator("table").first
        assert not runs.is_visible()
        fold.locator("summary").focus()
        page.keyboard.press("Enter")
        assert runs.locator("tbody tr").count() == 5
        page.keyboard.press("Enter")

        lines = page.locator("#plot-figure-1 .scatterlayer .trace")
        drawn = lines.count()
        until(page, BACKGROUNDS, DARK)
        # A second click within Plotly's time for a double click would mean something else.
        page.locator("#plot-figure-1 .legendtoggle").nth(1).click()
        until(page, "document.querySelectorAll('#plot-figure-1 .scatterlayer .trace').length", drawn - 1)
        page.emulate_media(color_scheme="light")
        until(page, BACKGROUNDS, LIGHT)
        assert lines.count() == drawn - 1
        page.emulate_media(color_scheme="dark")
        until(page, BACKGROUNDS, DARK)

        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        until(page, BACKGROUNDS, LIGHT)
        assert page.locator("details:not([open])").count() == 0
        assert max(page.evaluate(widths)) <= 680
        assert page.locator(":is(button:not(#items-table *, .sort), select, input):visible").count() == 0
        page.emulate_media(media="screen")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details[open]").count() == 0
        page.set_viewport_size({"width": 700, "height": 900})
        until(page, "document.querySelector('#plot-figure-1 .main-svg').clientWidth < 700", True)


@pytest.mark.slow
def test_a_map_is_drawn_and_says_intervals_where_one_points(open_page: Open) -> None:
    with open_page("map") as page:
        assert page.locator(".heatmaplayer image").count() == 1
        box = page.locator(".heatmaplayer image").bounding_box()
        page.mouse.move(box["x"] + 1.5 * box["width"] / 9, box["y"] + 0.5 * box["height"] / 9)
        page.wait_for_selector(".hovertext")
        assert re.search(r"95.%", page.locator(".hovertext").text_content())


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_screen_has_the_answer_and_what_to_do_and_a_click_copies_it(
    width: int, height: int, open_page: Open
) -> None:
    with open_page("found", viewport={"width": width, "height": height}) as page:
        for place in ("h1", ".pill", ".sentence", ".tiles", ".cards > div:first-child"):
            box = page.locator(place).bounding_box()
            assert box["y"] + box["height"] <= height, place
        page.locator(".copy").first.click()
        assert page.locator(".copy").first.inner_text() == "Copied"
        page.evaluate("document.body.append(document.createElement('textarea'))")
        page.locator("textarea").focus()
        page.keyboard.press("Control+v")
        assert page.locator("textarea").input_value() == "layerprobe find rtd pairs.csv -o rtd-5"


@pytest.fixture
def opened(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that opens the page of scores with items."""

    def open_with(item_source: ItemSource, **options: Any) -> Any:
        monkeypatch.setitem(CASES, "items", lambda: scores_with(item_source))
        return open_page("items", **options)

    return open_with


NO_PAIRS = "No pairs here: choose another list or other words."
ROWS = "document.querySelectorAll('#items-table tbody tr').length"


def test_the_explorer_lists_marks_filters_and_follows_the_keyboard(opened: Any) -> None:
    with opened(source(task_of("sts", GOLD), NOISY)) as page:
        assert page.evaluate(ROWS) == 0  # it is folded, and starts where it opens
        page.locator(".explore > summary").click()
        until(page, ROWS, 20)
        assert (
            "Only A wrong: 60, only B wrong: 0, both wrong: 0 of 60 pairs." in page.locator("#items-found").inner_text()
        )
        page.locator("#items-more").click()
        assert page.evaluate(ROWS) == 40
        page.locator("#items-words").fill("onerror")
        until(page, ROWS, 1)
        assert page.locator("#items-table tbody td").first.inner_text() == SCRIPT  # text, which does not run
        button = page.locator("#items-table tbody button")
        button.focus()
        page.keyboard.press("Enter")
        until(page, "document.querySelectorAll('#items-table button[aria-pressed=true]').length", 1)
        until(page, "document.querySelectorAll('#plot-items-a .trace').length", 2)
        page.locator("#items-words").fill("nowhere at all")
        page.locator("#items-table tbody button").click()
        until(page, "document.getElementById('items-table').textContent", NO_PAIRS)
        page.locator("#items-words").fill("")
        page.locator("#layer-a").focus()
        page.keyboard.press("ArrowLeft")
        until(page, "document.getElementById('chosen-a').textContent", "layer 1: Spearman 10.0")
        page.locator("#items-shown").select_option("neither")
        until(page, ROWS, 20)
        assert page.locator("#layer-a").get_attribute("aria-valuetext") == "layer 1"
        assert "the map shows" in page.locator("#plot-map-b").get_attribute("aria-label")


@pytest.mark.slow
def test_the_explorer_fits_a_phone_and_can_be_read(opened: Any) -> None:
    labels = tuple("abc")
    task = task_of("classification", [i % 3 for i in range(N)], labels)
    outputs = [np.random.default_rng(i).dirichlet(np.ones(3), N) for i in range(3)]
    phone = {"width": 390, "height": 844}
    with opened(source(task, outputs, n_groups=2), viewport=phone, is_mobile=True, has_touch=True) as page:
        page.locator(".explore > summary").click()
        until(page, "document.querySelectorAll('#plot-items-b .heatmaplayer image').length", 1)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        counts = "[...document.querySelectorAll('#plot-items-b .heatmap-label')].map(one => Number(one.textContent))"
        assert sum(page.evaluate(counts)) == N
        page.locator("#group-a").select_option("1")
        assert "model 1, layer 2" in page.locator("#items-found").inner_text()
        for scheme, colours in (("light", LIGHT), ("dark", DARK)):
            page.emulate_media(color_scheme=scheme)
            until(page, BACKGROUNDS, colours)
            assert page.evaluate(UNREADABLE) == []
