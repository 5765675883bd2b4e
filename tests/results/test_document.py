"""The page of a result: what stands on it, and that a browser draws it, on a screen, a phone and paper."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from layerprobe.errors import DataError, unreliable
from layerprobe.results import document
from layerprobe.results.conclusion import Verdict
from layerprobe.results.document import render, write_page
from tests.browser import DRAWN, UNREADABLE, until
from tests.report.test_page import Page

from .made import Cut

pytestmark = pytest.mark.usefixtures("templates")


def test_a_page_says_first_what_a_reader_needs() -> None:
    text = Page(render(Cut(), command="layerprobe find rtd", plotly="cdn")).text.partition("8 runs, 7 min")[2]

    parts = ("Keep 5 of 8 blocks", "Probably: 56", "Cut after block 5", "+9.0", "−29", "Take it", "--final")
    places = [text.index(part) for part in (*parts, "chance best", "Can I trust it?", "Every run", "4f1c2")]
    assert places == sorted(places)
    assert "layerprobe find rtd" in text


def test_warnings_without_which_the_answer_misleads_stand_above_the_numbers() -> None:
    fatal = unreliable("2 of 5 runs failed")
    text = Page(render(Cut(warnings=("times are noisy", fatal)), plotly="cdn")).text

    assert text.index(fatal) < text.index("+9.0") < text.index("Can I trust it?") < text.index("times are noisy")


def test_a_check_has_a_sign_and_words_for_whether_it_passed() -> None:
    page = render(Cut(), plotly="cdn")

    signs = re.findall(r'<li class="(\w+)"><span role="img" aria-label="\1">(.)</span>', page)
    assert signs == [("passed", "✓"), ("failed", "✗"), ("open", "•")]


def test_a_table_has_its_chances_as_bars_its_choice_marked_and_further_columns_behind_a_box() -> None:
    page = render(Cut(more=2), plotly="cdn")

    assert '<td class="chance" style="--share:0.560">56' in page
    assert '<tr class="chosen"><th scope="row">5</th>' in page
    assert "More columns: statistic 0, statistic 1" in page
    assert "More columns" not in render(Cut(more=0), plotly="cdn")


def test_the_results_beside_it_come_with_their_tables_and_charts() -> None:
    page = render(Cut(), beside=(Cut(more=0),), plotly="cdn")

    figures = json.loads(Page(page).data("figures"))
    assert [*figures] == ["figure-1", "figure-2", "figure-3", "figure-4"]
    assert page.count('class="scroll"') == 4


def test_names_of_the_machine_and_markup_of_the_data_do_not_get_on_the_page(tmp_path: Path) -> None:
    page = render(Cut(warnings=("/home/somebody/<b>pairs</b>.csv is odd",)), plotly="cdn")

    assert "/home/somebody" not in page
    assert "<b>pairs" not in page


def test_items_are_left_out_where_they_are_large_or_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'id="items"' in render(Cut(items=20), plotly="cdn")
    assert 'id="items"' not in render(Cut(items=20), texts=False, plotly="cdn")
    monkeypatch.setattr(document, "LARGEST", 100)
    assert "To show them, use --with-texts." in render(Cut(items=20), plotly="cdn")
    assert 'id="items"' in render(Cut(items=20), texts=True, plotly="cdn")


def test_names_cannot_add_elements_and_are_shown_as_they_are() -> None:
    hostile = '</script><script>alert(1)</script><b onclick="x">&'
    pages = [Page(render(Cut(name=name, items=20), command=name, plotly="cdn")) for name in (hostile, "harmless")]

    assert [tag for tag, _ in pages[0].elements] == [tag for tag, _ in pages[1].elements]
    assert pages[0].text.count(hostile) >= 2


def test_nothing_is_loaded_but_plotly_where_that_is_wanted() -> None:
    for plotly, sources in (("embedded", []), ("cdn", ["https://cdn.plot.ly"])):
        elements = Page(render(Cut(), plotly=plotly)).elements  # type: ignore[arg-type]
        loaded = [about.get(name) or "" for _, about in elements for name in ("src", "href", "action", "poster")]
        assert [source[:19] for source in loaded if source and not source.startswith("data:")] == sources


def test_a_page_has_one_sign_and_one_spelling() -> None:
    page = render(Cut(warnings=("it fell by -0.5, or 3%, of R2 x 100",)), plotly="cdn")
    body = re.sub(r"<(script|style|pre|code|title)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)

    assert not re.search(r"\d ?%(?![\w{(])", body), "a percentage has a space that does not break"
    assert not re.search(r"(?<![\w.\-])-\d", body), "a minus is U+2212"
    assert " x 100" not in body


def test_a_page_is_written_whole_also_where_a_name_is_no_unicode(tmp_path: Path) -> None:
    path = write_page(Cut(name="models/caf\udce9"), tmp_path / "new" / "page.html", plotly="cdn")

    assert r"caf\udce9" in path.read_text(encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["page.html"]


def test_another_source_of_plotly_is_refused() -> None:
    with pytest.raises(DataError, match="plotly is 'local', expected one of 'embedded', 'cdn'"):
        render(Cut(), plotly="local")  # type: ignore[arg-type]


def test_a_notebook_shows_the_answer_its_figure_and_table() -> None:
    markup = Cut()._repr_html_()

    assert [part in markup for part in ("Keep 5 of 8 blocks", "Probably", "+9.0", "plotly", "chance best")] == [
        True
    ] * 5
    assert "statistic" not in markup.partition("<table")[2]


# ---- in a browser -----------------------------------------------------------------------------------------


@contextmanager
def opened(browser: Any, result: Cut, folder: Path, **options: Any) -> Iterator[Any]:
    """Open the page of a result, and assert at the end that it said nothing."""
    path = write_page(result, folder / "page.html", command="layerprobe find rtd pairs.csv")
    context = browser.new_context(**options)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(path.as_uri())
    until(page, DRAWN)
    try:
        yield page
        assert messages == []
    finally:
        context.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1400, 900, "light"), (1400, 900, "dark"), (390, 844, "light")]
)
def test_the_first_screen_has_the_answer_and_what_to_do(
    width: int, height: int, scheme: str, browser: Any, tmp_path: Path
) -> None:
    result = Cut(verdict_=Verdict.UNDECIDED, items=30)
    about = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    with opened(browser, result, tmp_path, **about) as page:
        for place in ("h1", ".pill", ".sentence", ".tiles", ".cards > div:first-child"):
            box = page.locator(place).bounding_box()
            assert box["y"] + box["height"] <= height, place
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        page.locator(".columns input").first.check()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.wait_for_timeout(300)
        assert page.evaluate(UNREADABLE) == []


@pytest.mark.slow
def test_paper_has_all_columns_and_nothing_that_one_would_click(browser: Any, tmp_path: Path) -> None:
    with opened(browser, Cut(more=14, items=30), tmp_path, viewport={"width": 680, "height": 960}) as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 680
        assert page.locator("#rows th", has_text="statistic 13").is_visible()
        assert page.locator(":is(button:not(#items-table *, .sort), select, input):visible").count() == 0
        page.emulate_media(media="screen")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert not page.locator("#rows th", has_text="statistic 13").is_visible()


@pytest.mark.slow
def test_a_click_copies_a_command(browser: Any, tmp_path: Path) -> None:
    with opened(browser, Cut(), tmp_path) as page:
        page.locator(".copy").first.click()
        assert page.locator(".copy").first.inner_text() == "Copied"
        page.evaluate("document.body.append(document.createElement('textarea'))")
        page.locator("textarea").focus()
        page.keyboard.press("Control+v")
        assert page.locator("textarea").input_value() == "layerprobe find rtd pairs.csv --final -o rtd-5"


def test_one_result_beside_is_taken_and_what_is_no_result_is_refused() -> None:
    assert render(Cut(), beside=Cut(), plotly="cdn") == render(Cut(), beside=[Cut()], plotly="cdn")
    for result, beside in ((Cut(), 3), (Cut().to_pandas(), ())):
        with pytest.raises(DataError, match=r"^expected a result, and results to show below it, got "):
            render(result, beside=beside)  # type: ignore[arg-type]
