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
from layerprobe.errors import LayerProbeError, unreliable
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.report.comparison import compared_models
from layerprobe.report.page import study_page
from layerprobe.results import numbers, page
from layerprobe.results.glossary import TERMS
from layerprobe.results.markup import element, escape, script_json
from layerprobe.results.shown import write_report
from layerprobe.similarity.measures.rsa import RSA
from layerprobe.study.values import Finding, Study, Weights

from .conftest import HOSTILE, STUDIES, rendered
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


def test_every_figure_has_a_place_and_words(any_study: Study) -> None:
    read = Page(rendered(any_study))
    places = [attributes for attributes in read.all("div") if (attributes.get("id") or "").startswith("plot-")]
    assert [attributes["id"] for attributes in places] == [f"plot-{name}" for name in json.loads(read.data("figures"))]
    for attributes in places:
        assert attributes["role"] == "group"
        assert len(attributes["aria-label"] or "") > 30


def test_plotly_is_inside_exactly_once_and_a_page_is_smaller_than_it(plain: Study) -> None:
    (packed,) = re.findall(r'<script type="application/gzip;base64" id="plotly">(.*?)</script>', rendered(plain))
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(rendered(plain)) < 0.5 * len(get_plotlyjs())


def test_nothing_is_loaded_from_anywhere(any_study: Study) -> None:
    for tag, attributes in Page(rendered(any_study)).elements:
        loaded = [attributes.get(name) for name in ("src", "srcset", "href", "action", "data", "poster")]
        addresses = [address for address in loaded if address]
        assert tag == "a" or all(address.startswith("data:") for address in addresses), (tag, addresses)


def test_the_style_and_script_of_the_page_load_nothing() -> None:
    for name in ("style.css", "page.js", "template.html"):
        text = page._asset(name).replace("http://www.w3.org/2000/svg", "")
        assert not any(word in text for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttpRequest"))


@pytest.mark.parametrize("kind", ["hostile intervals", "found hostile"])
def test_names_of_further_references_and_searches_cannot_add_elements(kind: str) -> None:
    hostile = STUDIES[kind]()
    data = json.dumps(to_dict(hostile)).replace(json.dumps(HOSTILE)[1:-1], "harmless")
    read, safe = Page(rendered(hostile)), Page(rendered(from_json(Study, data)))
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in safe.elements]
    assert HOSTILE in read.text


def test_names_cannot_add_elements_and_are_shown_as_they_are(hostile: Study) -> None:
    safe = dataclasses.replace(STUDIES["confirmed"](), provenance=hostile.provenance)
    tags = [tag for tag, _ in Page(rendered(hostile)).elements]
    assert tags == [tag for tag, _ in Page(rendered(safe)).elements]
    text = Page(rendered(hostile)).text
    assert "evil/<script>al" in text
    assert text.count(HOSTILE) >= 3


@pytest.mark.parametrize("kind", ["reference", "intervals"])
def test_every_text_of_a_study_is_escaped(kind: str) -> None:
    def poisoned(value: object) -> object:
        if isinstance(value, str):
            return value if value in LITERALS else f"{value}</script><!--<b>{'x' * 3}"
        if isinstance(value, list):
            return [poisoned(item) for item in value]
        if isinstance(value, dict):
            return {key: poisoned(item) for key, item in value.items()}
        return value

    data = poisoned(to_dict(STUDIES[kind]()))
    study = from_json(Study, json.dumps(data))
    read = Page(rendered(study))
    assert not read.all("b")
    assert from_json(Study, read.data("study")) == study
    assert len(read.all("script")) == 6


LITERALS = {"mean", "cka", "linear", "debiased", "raw", "zscore", "same-index", "confirmed", "none", "test"}
LITERALS |= {"sts", "spearman", "cosine", "text"}


# ---- intervals, diagnostics, further references --------------------------------------------------------


def test_warnings_of_the_comparison_are_shown_once(measured: Study) -> None:
    (caution,) = measured.comparison.warnings
    provenance = dataclasses.replace(measured.provenance, warnings=("of the task", caution))
    text = Page(rendered(dataclasses.replace(measured, provenance=provenance))).text
    caution = numbers.typeset_text(caution)
    assert text.count(caution) == 1
    assert text.index("Similarity to the reference") < text.index("of the task") < text.index(caution)


def test_conventions_references_and_layers_of_the_similarity_are_told(measured: Study) -> None:
    text = Page(rendered(measured)).text
    assert (
        "linear kernel; debiased HSIC (Song et al. 2012); raw features; 2552 texts; 95\u00a0% intervals from the "
        "influence of each sample; 200 permutations for what chance reaches; same-index alignment"
    ) in text
    # what each reference alone would predict
    assert "mlm (this report)plateau of CKA870.160 [0.140, 0.178]>99\u00a0%" in text
    assert "random-initplateau of CKAnone8" in text
    assert "layerparametersCKA95\u00a0% intervalflagged intest zero-shottest Spearmanstdseedsflag" in text
    assert "880.54\u00a0M0.22000.2004 to 0.2396>99\u00a0%" in text


def test_groups_are_told_where_they_are_the_units(measured: Study) -> None:
    errors = measured.comparison.map.uncertainty
    assert errors
    errors = dataclasses.replace(errors, method="influence of each group", n_groups=40)
    found = dataclasses.replace(measured.comparison.map, uncertainty=errors)
    study = dataclasses.replace(measured, comparison=dataclasses.replace(measured.comparison, map=found))
    assert "intervals from the influence of each group, 40 groups;" in Page(rendered(study)).text


def test_another_measure_than_cka_is_told(plain: Study) -> None:
    measure = RSA()
    found = dataclasses.replace(plain.comparison.map, measure=measure)
    study = dataclasses.replace(plain, comparison=dataclasses.replace(plain.comparison, map=found))
    assert "RSA; raw features; 2552 texts; no intervals; same-index alignment" in Page(rendered(study)).text


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert numbers.number(-0.0004, 3) == "0.000"


def test_nothing_is_said_of_a_reference_where_there_is_none(measured: Study) -> None:
    comparison, prediction = measured.comparison, measured.prediction
    curve = dataclasses.replace(comparison.curve, alignment="previous-layer")
    comparison = dataclasses.replace(
        comparison, reference=comparison.model, reference_diagnostics=(), curve=curve, warnings=()
    )
    read = {"InfoNCE": comparison.curve.values}
    alone = dataclasses.replace(
        measured,
        comparison=comparison,
        prediction=dataclasses.replace(prediction, rule="fall of InfoNCE", evidence=None, read=read, sentence="Falls."),
        reference_zero_shot=None,
        further_comparisons=(),
        further_predictions=(),
    )
    for study in (alone, dataclasses.replace(alone, zero_shot=None, confirmation=None)):
        page = Page(rendered(study))
        labels = [attributes.get("aria-label") or "" for _, attributes in page.elements]
        for shown in (page.text, page.data("figures"), page.data("table"), *labels):
            assert "reference" not in shown.lower()
        assert "InfoNCEflagged in" in page.text


# ---- the search ---------------------------------------------------------------------------------------


def test_the_runs_are_in_the_order_in_which_they_were_made() -> None:
    text = Page(rendered(STUDIES["found"]())).text
    head = "runwhatlayerseedpartvalidation Spearmantest Spearmanat layersecondsshare of a sweep so far"
    assert head + "1all layers at onceall01" in text
    assert "91002.9\u00a0%2truncated801" in text  # the scan cost 13 of 455 block-steps, the next run 9
    assert "4.8\u00a0%3truncated901" in text
    without_folds = Page(rendered(STUDIES["found as expected"]())).text
    assert "runwhatlayerseedvalidation Spearman" in without_folds
    assert without_folds.count("all layers at onceall") == 2


def test_the_table_of_layers_says_what_the_search_knows(searched: Study) -> None:
    text = Page(rendered(searched)).text
    assert "CKAtest zero-shotone runrunsexpected95\u00a0% intervalchance bestwithin 0.5test Spearmanstdflag" in text
    for row in ("\u00a0%78.070.03keep", "\u00a0%77.72–may be best", "\u00a0%––may be best, predicted", "drop"):
        assert row in text
    assert "will do" in Page(rendered(STUDIES["found as expected"]())).text


# ---- fine-tuning --------------------------------------------------------------------------------------


def test_the_last_word_is_the_next_command(searched: Study) -> None:
    finetune = "layerprobe finetune google/electra-base-discriminator -t stsb --epochs 3"
    provenance = dataclasses.replace(searched.provenance, finetune_command=finetune)
    assert searched.finding

    def text(weights: Weights) -> str:
        finding = dataclasses.replace(searched.finding, weights=weights)
        return Page(rendered(dataclasses.replace(searched, provenance=provenance, finding=finding))).text

    out = "electra-base-discriminator-9"
    missing = text(Weights(directory="/c/runs/ab/layer-009-seed-0", kept=False))
    assert (
        f"{finetune} --layers 9 --seeds 1 --save-models\nlayerprobe export /c/runs/ab/layer-009-seed-0 {out}" in missing
    )
    kept = text(Weights(directory=str(Path.home() / "my runs/ab/layer-009-seed-1")))
    assert f"layerprobe export ~/'my runs/ab/layer-009-seed-1' {out}" in kept
    assert "layerprobe finetune" not in kept
    scanned = text(Weights(directory="/c/runs/ab/falling-seed-0", scan=True))
    assert f"layerprobe export /c/runs/ab/falling-seed-0 {out} --layer 9" in scanned
    for served in (
        f'SentenceTransformer("{out}").encode(["A sentence."])',
        f"text-embeddings-router --model-id ./{out} --port 8080 --default-prompt 'query: '",
        f"vllm serve ./{out} --runner pooling",
    ):
        assert served in kept


def test_an_rbf_kernel_says_its_bandwidth(plain: Study) -> None:
    found = rbf(plain.comparison.map, 0.5)
    text = Page(rendered(dataclasses.replace(plain, comparison=dataclasses.replace(plain.comparison, map=found)))).text
    assert "σ = 0.5 × the root of the median" in text
    assert "the median over 2048 texts" in text
    assert "Debiased RBF CKA (bandwidth x 0.5) at the last layer" in text


def test_the_report_is_written_whole_and_alone(plain: Study, tmp_path: Path) -> None:
    path = write_report(plain, tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == rendered(plain)
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_failed_write_keeps_the_old_file(plain: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LayerProbeError, match="No space left on device; choose another path") as caught:
        write_report(plain, path)
    assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "a\0b.html"], ids=["folder", "NUL"])
def test_what_is_no_file_is_no_report(plain: Study, tmp_path: Path, name: str) -> None:
    with pytest.raises(LayerProbeError, match="expected to write the report to"):
        write_report(plain, tmp_path / name)


def test_a_folder_name_that_is_no_unicode_can_be_written(tmp_path: Path) -> None:
    study = STUDIES["plain"]()
    described = dataclasses.replace(study.comparison.model, name="models/caf\udce9")
    study = dataclasses.replace(study, comparison=dataclasses.replace(study.comparison, model=described))
    path = write_report(study, tmp_path / "report.html")
    assert from_json(Study, Page(path.read_text(encoding="utf-8")).data("study")) == study


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
def test_labels_are_short_and_distinct(names: tuple[str, ...], expected: tuple[str, ...], plain: Study) -> None:
    first = plain.comparison
    described = [dataclasses.replace(first.model, name=name) for name in names]
    pairs = (dataclasses.replace(first, model=described[0], reference=other) for other in described[1:])
    compared = compared_models([Comparisons(comparisons=tuple(pairs))])
    assert (compared.model, *compared.references) == expected


# ---- what every page says, in its order ---------------------------------------------------------------


def text_of(study: Study) -> str:
    text = " ".join(Page(rendered(study)).text.replace("\u00a0", " ").split())
    return text[text.index("layerprobe · study") : text.rindex("Table of layers")]


def test_the_glossary_has_the_words_of_the_page_alone(searched: Study, plain: Study) -> None:
    def glossary(study: Study) -> str:
        return text_of(study).rpartition("Glossary")[2]

    for term in ("Expected score", "May be the best", "CKA"):
        assert f"{term}{TERMS[term][:20]}" in glossary(searched), term
        assert (f"{term}{TERMS[term][:20]}" in glossary(plain)) == (term == "CKA"), term
    assert "InfoNCE" not in glossary(plain)
    read = dataclasses.replace(plain.prediction, rule="fall", read={"InfoNCE": plain.comparison.curve.values})
    assert "InfoNCEA rule’s reading" in glossary(dataclasses.replace(plain, prediction=read))


@pytest.mark.parametrize("kind", ["refuted", "undecided", None])
def test_only_what_was_tested_has_a_verdict(kind: str | None, searched: Study, whole: Study) -> None:
    if kind is None:
        untested = Page(rendered(dataclasses.replace(searched, finding=without_proof(searched))))
        assert {"class": "badge open"} in untested.all("span")
        assert "– not tested Layer 9 was not compared with the last layer, 12," in untested.text
        return
    data = to_dict(whole)
    data["confirmation"]["verdict"] = kind
    assert {"class": f"badge {kind}"} in Page(rendered(from_json(Study, json.dumps(data)))).all("span")


def without_proof(study: Study) -> Finding:
    assert study.finding
    return dataclasses.replace(study.finding, against_last=None)


def test_what_is_missing_names_the_command_that_brings_it(plain: Study) -> None:
    text = Page(rendered(plain)).text
    command = "layerprobe run google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb"
    assert text.count(f"{command} fills this in") == 2
    assert f"the prediction chooses where to begin.{command}" in text


def test_models_are_called_as_was_asked_for(whole: Study) -> None:
    model = dataclasses.replace(whole.comparison.model, name="our ELECTRA", source=whole.comparison.model.name)
    read = Page(rendered(dataclasses.replace(whole, comparison=dataclasses.replace(whole.comparison, model=model))))
    assert "our ELECTRA compared with bert-base-cased" in read.text
    assert "our ELECTRA" in read.data("figures")
    assert "Fromgoogle/electra-base-discriminatorgoogle-bert/bert-base-cased" in read.text


def test_a_page_has_one_sign_and_one_spelling(any_study: Study) -> None:
    body = re.sub(r"<(script|style|pre|code)\b.*?</\1>|<[^>]*>", " ", rendered(any_study), flags=re.DOTALL)
    assert not re.search(r"\d ?%(?![\w{(])", body), "a percentage has a space that does not break"
    assert not re.search(r"(?<![\w.\-])-\d", body), "a minus is U+2212"
    assert " x 100" not in body


def test_figures_are_saved_under_names_of_their_own(whole: Study) -> None:
    buttons = [each for each in Page(rendered(whole)).all("button") if "data-plot" in each]
    names = [(each["data-filename"], each["data-kind"]) for each in buttons]
    assert len(set(names)) == len(names) == 2 * len(study_page(whole).figures)
    assert all((name or "").startswith("layerprobe-electra") for name, _ in names)


def test_fatal_warnings_stand_above_and_others_are_folded(whole: Study) -> None:
    fatal = unreliable("the labels may be distances, not similarities; reverse them")
    shown = study_page(whole)
    read = page.render(dataclasses.replace(shown, warnings=(*shown.warnings, fatal), fatal=("a run failed",)))
    assert read.index("a run failed") < read.index(fatal) < read.index('id="plot-outcomes"')
    assert read.index("206 duplicate") > read.index("<details><summary><h2>Warnings (1)")


def test_no_folder_of_the_machine_and_a_table_of_contents(whole: Study) -> None:
    provenance = dataclasses.replace(whole.provenance, notes=("read from /home/somebody/pairs.csv",))
    text = rendered(dataclasses.replace(whole, provenance=provenance))
    assert "/home/somebody" not in text.split("<script")[0]
    links = re.findall(r'<a href="#([\w-]+)">', text)
    assert {"layers", "tmft", "warnings", "glossary"} <= set(links)
    assert '<a class="skip" href="#result">' in text
