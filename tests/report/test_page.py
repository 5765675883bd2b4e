"""The HTML as text: complete, escaped, self-contained, and written whole."""

import base64
import dataclasses
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from layerprobe.comparison.values import Comparisons
from layerprobe.errors import LayerProbeError
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.results import document
from layerprobe.results.document import element, escape, script_json
from layerprobe.results.draw import figures
from layerprobe.similarity.measures import Procrustes
from layerprobe.study.values import Finding

from .conftest import FINDINGS, Pair, found, rendered
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


def test_every_figure_has_a_place_and_words(any_finding: Finding) -> None:
    read = Page(rendered(any_finding))
    places = [attributes for attributes in read.all("div") if (attributes.get("id") or "").startswith("plot-")]
    assert [attributes["id"] for attributes in places] == [f"plot-{name}" for name in json.loads(read.data("figures"))]
    for attributes in places:
        assert attributes["role"] == "group"
        assert len(attributes["aria-label"] or "") > 30


def test_plotly_is_inside_exactly_once_and_a_page_is_smaller_than_it(searched: Finding) -> None:
    (packed,) = re.findall(r'<script type="application/gzip;base64" id="plotly">(.*?)</script>', rendered(searched))
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(rendered(searched)) < 0.5 * len(get_plotlyjs())


def test_nothing_is_loaded_from_anywhere(any_finding: Finding) -> None:
    for tag, attributes in Page(rendered(any_finding)).elements:
        loaded = [attributes.get(name) for name in ("src", "srcset", "href", "action", "data", "poster")]
        addresses = [address for address in loaded if address]
        assert tag == "a" or all(address.startswith("data:") for address in addresses), (tag, addresses)


def test_the_style_and_script_of_the_page_load_nothing() -> None:
    for name in ("style.css", "page.js", "template.html"):
        text = document._asset(name).replace("http://www.w3.org/2000/svg", "")
        assert not any(word in text for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttpRequest"))


@pytest.mark.parametrize("kind", ["found", "found in one run"])
def test_every_text_of_a_finding_is_escaped(kind: str) -> None:
    def poisoned(value: object) -> object:
        if isinstance(value, str):
            return value if value in LITERALS else f"{value}</script><!--<evil>{'x' * 3}"
        if isinstance(value, list):
            return [poisoned(item) for item in value]
        if isinstance(value, dict):
            return {key: poisoned(item) for key, item in value.items()}
        return value

    data = poisoned(to_dict(FINDINGS[kind]()))
    finding = from_json(Finding, json.dumps(data))
    read = Page(rendered(finding))
    assert not read.all("evil")
    assert from_json(Finding, read.data("study")) == finding
    assert len(read.all("script")) == 6


LITERALS = {"mean", "cka", "linear", "debiased", "raw", "zscore", "same-index", "confirmed", "none", "test"}
LITERALS |= {"sts", "spearman", "cosine", "text", "budget"}


# ---- intervals, diagnostics, further references --------------------------------------------------------


def test_sources_say_every_convention(measured: Pair) -> None:
    errors = measured.comparison.map.uncertainty
    assert errors
    errors = dataclasses.replace(errors, method="influence of each group", n_groups=40)
    sources = with_map(measured, uncertainty=errors).comparisons.sources
    assert sources["Similarity"] == (
        "linear kernel; debiased HSIC (Song et al. 2012); raw features; intervals from the influence of each group; "
        "40 groups"
    )
    assert sources["Layers"] == "each layer with the reference's layer of the same index"
    rsa = with_map(measured, measure=Procrustes(normalize="zscore"), uncertainty=None).comparisons.sources
    assert rsa["Similarity"] == "Procrustes similarity of z-scored features; standardised features; no intervals"
    kernel = dataclasses.replace(measured.comparison, map=rbf(measured.comparison.map, 0.5)).sources["Similarity"]
    assert "σ = 0.5 × the root of the median" in kernel
    assert "the median over 2048 texts" in kernel


def with_map(pair: Pair, **changes: object) -> Pair:
    changed = dataclasses.replace(pair.comparison.map, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(pair, comparison=dataclasses.replace(pair.comparison, map=changed))


def test_nothing_is_said_of_a_reference_where_there_is_none() -> None:
    page = Page(rendered(FINDINGS["found alone"]()))
    labels = [attributes.get("aria-label") or "" for _, attributes in page.elements]
    for shown in (page.text, page.data("figures"), page.data("table"), *labels):
        assert "reference" not in shown.lower()
    assert "Before training" in page.text


# ---- the search ---------------------------------------------------------------------------------------


def test_the_runs_are_in_the_order_in_which_they_were_made(searched: Finding) -> None:
    runs = searched.details[0]
    assert runs.data["layer"] == (8, 9, 9, 12, 12)
    assert (
        "runlayerseedpartvalidation Spearmantest Spearmansecondsshare of a sweep so far18"
        in Page(rendered(searched)).text
    )
    assert "part" not in [column.head for column in FINDINGS["found as expected"]().details[0].shown]


def test_the_table_of_layers_says_what_the_search_knows(searched: Finding) -> None:
    text = Page(rendered(searched)).text
    assert "keepparametersCKAInfoNCEuntrained testexpectedruns95\u00a0% intervalgain" in text
    assert [column.head for column in searched.table.first] == ["keep", "expected", "gain", "95 %", "best", " "]


def test_the_report_is_written_whole_and_alone(searched: Finding, tmp_path: Path) -> None:
    path = searched.save_html(tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == rendered(searched)
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("name", ["", "a\0b.html"], ids=["folder", "NUL"])
def test_what_is_no_file_is_no_report(searched: Finding, tmp_path: Path, name: str) -> None:
    with pytest.raises(LayerProbeError, match="cannot write "):
        searched.save_html(tmp_path / name)


def test_a_folder_name_that_is_no_unicode_can_be_written(searched: Finding, tmp_path: Path) -> None:
    finding = dataclasses.replace(searched, model=dataclasses.replace(searched.model, name="models/caf\udce9"))
    path = finding.save_html(tmp_path / "report.html")
    assert from_json(Finding, Page(path.read_text(encoding="utf-8")).data("study")) == finding


def test_escaping_happens_once() -> None:
    assert element("p", element("b", "<&"), "'", title='"') == '<p title="&quot;"><b>&lt;&amp;</b>&#x27;</p>'
    assert escape(escape("<")) == "&lt;"


def test_script_json_keeps_the_value() -> None:
    value = ["</script>", "<!--", "\\u003c", "]]>"]
    text = script_json(json.dumps(value))
    assert "<" not in text
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("google/electra-base", "bert-base"), ("electra-base", "bert-base")),
        (("a/bert", "b/bert"), ("a/bert", "b/bert")),
        (("./models/mine/", "C:\\models\\other"), ("mine", "other")),
        (("org/electra (random, seed 0)", "x"), ("electra (random, seed 0)", "x")),
        (("m" * 40, "x"), (f"{'m' * 15}…{'m' * 14}", "x")),
        (("x/a", "org/bert", "a/one", "b/one"), ("x/a", "org/bert", "a/one", "b/one")),
    ],
)
def test_labels_are_short_and_distinct(names: tuple[str, ...], expected: tuple[str, ...], plain: Pair) -> None:
    first = plain.comparison
    described = [dataclasses.replace(first.model, name=name) for name in names]
    pairs = (dataclasses.replace(first, model=described[0], reference=other) for other in described[1:])
    assert Comparisons(comparisons=tuple(pairs)).labels == list(expected)


def test_what_was_not_tested_has_no_verdict(searched: Finding) -> None:
    untested = dataclasses.replace(searched, against_last=None)
    checks = {check.name: check.passed for check in untested.conclusion.checks}
    assert checks["not tested"] is None
    assert "test" not in checks
    assert "• Not compared with the whole model on test" in Page(rendered(untested)).text


def test_a_page_says_what_failed(searched: Finding) -> None:
    assert "206 duplicate texts were removed." in Page(rendered(searched)).text


def test_models_are_called_as_was_asked_for(plain: Pair) -> None:
    model = dataclasses.replace(plain.comparison.model, name="our ELECTRA", source=plain.comparison.model.name)
    comparison = dataclasses.replace(plain.comparison, model=model)
    read = Page(rendered(found(dataclasses.replace(plain, comparison=comparison))))
    assert "the layer to keep · our ELECTRA · stsb" in read.text
    assert "Modelour ELECTRA (from google/electra-base-discriminator, revision b56ce4a2" in read.text


def test_a_page_has_one_sign_and_one_spelling(any_finding: Finding) -> None:
    body = re.sub(r"<(script|style|pre|code)\b.*?</\1>|<[^>]*>", " ", rendered(any_finding), flags=re.DOTALL)
    assert not re.search(r"\d ?%(?![\w{(])", body), "a percentage has a space that does not break"
    assert not re.search(r"(?<![\w.\-])-\d", body), "a minus is U+2212"
    assert " x 100" not in body


def test_figures_are_saved_under_names_of_their_own(searched: Finding) -> None:
    buttons = [each for each in Page(rendered(searched)).all("button") if "data-plot" in each]
    names = [(each["data-filename"], each["data-kind"]) for each in buttons]
    assert len(set(names)) == len(names) == 2 * len(figures(searched))
    assert all((name or "").startswith("layerprobe-") for name, _ in names)


def test_no_folder_of_the_machine_is_on_a_page(searched: Finding) -> None:
    text = rendered(dataclasses.replace(searched, failures=("read from /home/somebody/pairs.csv",)))
    assert "read from pairs.csv" in text
    assert "/home/somebody" not in text
