"""The HTML as text: complete, escaped, self-contained, and written whole."""

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from layerprobe.errors import DataError, unreliable
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.results import document
from layerprobe.results.conclusion import Step
from layerprobe.results.document import CDN, render, script_json
from layerprobe.results.draw import figures
from layerprobe.study.values import Finding, Prediction

from .conftest import FINDINGS, changed
from .similarities import rbf


class Page(HTMLParser):
    """A page taken apart: every element with its attributes, and the text of every script and of the rest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += data

    def data(self, name: str) -> str:
        """Return the text of the script element with this id."""
        attributes = [attributes for tag, attributes in self.elements if tag == "script"]
        return self.scripts[[one.get("id") for one in attributes].index(name)]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_a_page_carries_plotly_or_loads_the_same_one_by_its_hash_and_nothing_else(searched: Finding) -> None:
    embedded, linked = render(searched), render(searched, plotly="cdn")
    (packed,) = re.findall(r'<script type="application/gzip;base64" id="plotly">(.*?)</script>', embedded)
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(embedded) < 0.5 * len(get_plotlyjs())
    assert len(linked) < 200_000
    pages = Page(embedded), Page(linked)
    digest = base64.b64encode(hashlib.sha256(get_plotlyjs().encode()).digest()).decode()
    source = f"{CDN}/plotly-{get_plotlyjs_version()}.min.js"
    attributes = {name: [page_of.get(name) for _, page_of in page.elements] for page in pages[1:] for name in LOADING}
    assert {address for of in attributes.values() for address in of if address and not address.startswith("data:")} == {
        source
    }
    (script,) = [about for about in pages[1].all("script") if about.get("src")]
    assert (script["crossorigin"], script["integrity"]) == ("anonymous", f"sha256-{digest}")
    policies = [
        about["content"] or ""
        for page in pages
        for about in page.all("meta")
        if about.get("http-equiv") == "Content-Security-Policy"
    ]
    assert CDN not in policies[0]
    assert policies[1] == policies[0].replace("'unsafe-inline'", f"'unsafe-inline' {CDN}", 1)
    for name in ("study", "table", "figures", "dark"):
        assert pages[0].data(name) == pages[1].data(name)
    with pytest.raises(DataError, match="plotly is 'local', expected one of 'embedded', 'cdn'"):
        render(searched, plotly="local")  # type: ignore[arg-type]


LOADING = ("src", "srcset", "action", "data", "poster")
"""Attributes by which an element loads something."""


def test_the_style_and_script_of_the_page_load_nothing() -> None:
    for name in ("style.css", "page.js", "template.html"):
        text = document._asset(name).replace("http://www.w3.org/2000/svg", "")
        assert not any(word in text for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttpRequest"))


LITERALS = {"mean", "cka", "linear", "debiased", "raw", "zscore", "same-index", "confirmed", "none", "test"}
LITERALS |= {"sts", "spearman", "cosine", "text", "budget"}


def test_every_text_of_a_finding_is_escaped() -> None:
    def poisoned(value: object) -> object:
        if isinstance(value, str):
            return value if value in LITERALS else f"{value}</script><!--<evil>{'x' * 3}"
        if isinstance(value, list):
            return [poisoned(item) for item in value]
        if isinstance(value, dict):
            return {key: poisoned(item) for key, item in value.items()}
        return value

    data = poisoned(to_dict(FINDINGS["found in one run"]()))
    finding = from_json(Finding, json.dumps(data))
    read = Page(render(finding, plotly="cdn"))
    assert not read.all("evil")
    assert from_json(Finding, read.data("study")) == finding
    assert len(read.all("script")) == 6


def test_sources_say_every_convention(measured: Prediction) -> None:
    comparison = measured.comparison
    of_groups = {"map__uncertainty__method": "influence of each group", "map__uncertainty__n_groups": 40}
    grouped = changed(comparison, **of_groups).sources
    assert grouped["Similarity"] == (
        "linear kernel; debiased HSIC (Song et al. 2012); raw features; intervals from the influence of each group; "
        "40 groups"
    )
    assert grouped["Layers"] == "each layer with the reference's layer of the same index"
    kernel = changed(comparison, map=rbf(comparison.map, 0.5)).sources["Similarity"]
    assert "σ = 0.5 × the root of the median" in kernel
    assert "the median over 2048 texts" in kernel


def test_warnings_without_which_the_answer_misleads_stand_above_the_numbers() -> None:
    from .test_shown import models

    fatal = unreliable("2 of 5 runs failed")
    step = Step(name="export", command=("export", "a model", "-o", "out"))
    result = dataclasses.replace(models(), warnings=("times are noisy", fatal))
    text = Page(render(result, steps=(step,), command="layerprobe score", plotly="cdn")).text
    assert text.index("layerprobe export 'a model' -o out") < text.index("Can I trust it?") < text.index("Command")
    assert text.index(fatal) < text.index("Can I trust it?") < text.index("times are noisy")


def test_a_check_has_a_sign_and_a_table_its_chances_as_bars_and_its_choice_marked(searched: Finding) -> None:
    page = render(searched, plotly="cdn")
    signs = re.findall(r'<li class="(\w+)"><span role="img" aria-label="\1">(.)</span>', page)
    assert set(signs) <= {("passed", "✓"), ("failed", "✗"), ("open", "•")}
    assert len(signs) > 3
    assert '<td class="chance" style="--share:0.' in page
    assert '<tr class="chosen"><th scope="row">9</th>' in page
    assert "More columns: parameters, CKA, InfoNCE" in page


def test_the_results_beside_it_come_with_their_tables_and_charts(searched: Finding, measured: Prediction) -> None:
    page = render(searched, beside=(measured.comparison.map,), plotly="cdn")
    names = [*json.loads(Page(page).data("figures"))]
    assert names == [
        f"figure-{n}" for n in range(1, len(figures(searched)) + len(figures(measured.comparison.map)) + 1)
    ]
    assert page.count('id="beside-1"') == 1


def test_the_report_is_written_whole_and_alone(searched: Finding, tmp_path: Path) -> None:
    path = searched.save_html(tmp_path / "new" / "report.html", plotly="cdn")
    assert path.read_text(encoding="utf-8") == render(searched, plotly="cdn")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_folder_name_that_is_no_unicode_can_be_written(searched: Finding, tmp_path: Path) -> None:
    finding = changed(searched, model__name="models/caf\udce9")
    path = finding.save_html(tmp_path / "report.html")
    assert from_json(Finding, Page(path.read_text(encoding="utf-8")).data("study")) == finding


def test_script_json_keeps_the_value() -> None:
    value = ["</script>", "<!--", "\\u003c", "]]>"]
    text = script_json(json.dumps(value))
    assert "<" not in text
    assert json.loads(text) == value
