"""Where a page has Plotly from: it carries it, or names the file of a CDN and its hash."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from layerprobe.results.document import CDN, render, write_page
from layerprobe.results.shown import PlotlySource
from layerprobe.study.values import Finding
from tests.few import few

from .conftest import FINDINGS, USUAL
from .test_page import Page

SOURCES: tuple[PlotlySource, ...] = ("embedded", "cdn")


@pytest.mark.parametrize("kind", few(FINDINGS, lambda kind: kind in USUAL))
def test_a_page_that_carries_plotly_has_at_most_5_mb_and_one_that_does_not_200_kb(kind: str, tmp_path: Path) -> None:
    page = FINDINGS[kind]()
    sizes = [write_page(page, tmp_path / source, plotly=source).stat().st_size for source in SOURCES]
    # the errors of every pair of 25 layers have 160 KB by themselves; the hostile names are long and everywhere
    large = kind in ("25 layers", "found hostile")
    assert sizes[0] <= 5_000_000
    assert sizes[1] <= (500_000 if large else 200_000)


def test_the_only_thing_loaded_is_the_same_plotly_by_its_hash(any_finding: Finding) -> None:
    page = Page(render(any_finding, plotly="cdn"))
    (loaded,) = [attributes for tag, attributes in page.elements if tag != "a" and attributes.get("src")]
    assert loaded["src"] == f"{CDN}/plotly-{get_plotlyjs_version()}.min.js"
    assert loaded["crossorigin"] == "anonymous"
    digest = hashlib.sha256(get_plotlyjs().encode()).digest()
    assert loaded["integrity"] == f"sha256-{base64.b64encode(digest).decode()}"


def test_the_policy_of_a_page_names_the_cdn_for_scripts_alone(searched: Finding) -> None:
    policies = {}
    for source in SOURCES:
        page = Page(render(searched, plotly=source))
        (policy,) = [
            each["content"] for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy"
        ]
        policies[source] = policy
    assert CDN not in policies["embedded"]
    assert policies["cdn"] == policies["embedded"].replace("'unsafe-inline'", f"'unsafe-inline' {CDN}", 1)
    assert f"script-src 'unsafe-inline' {CDN};" in policies["cdn"]


def test_figures_and_data_are_those_of_the_page_that_carries_plotly(searched: Finding) -> None:
    pages = [Page(render(searched, plotly=source)) for source in SOURCES]
    for name in ("study", "table", "figures", "dark"):
        first, second = (json.loads(page.data(name)) for page in pages)
        assert first == second
