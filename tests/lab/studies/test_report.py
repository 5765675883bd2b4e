"""The page of a study: complete, escaped, its data read back, and drawn with what is there."""

import dataclasses
import json
import statistics
from pathlib import Path

from layerprobe.files.serialisation import to_dict
from layerprobe.lab.studies.values import LabResult
from layerprobe.results import numbers
from layerprobe.results.declared import declared_page
from layerprobe.results.page import render, write_page
from tests.report.test_page import Page
from tests.shown import assert_shows_itself

HOSTILE = "<script>alert('x')</script> $x$ & \"quoted\""


def test_the_result_reads_back_from_the_page(result: LabResult) -> None:
    page = Page(render(declared_page(result)))
    assert json.loads(page.data("study")) == to_dict(result)
    names = {"lab-drops-0", "lab-drops-1", "lab-score-0", "lab-score-1", "lab-cka-0"}
    assert set(json.loads(page.data("figures"))) == names


def test_every_figure_has_its_place(result: LabResult) -> None:
    page = render(declared_page(result))
    for name in json.loads(Page(page).data("figures")):
        assert f'id="plot-{name}"' in page


def test_every_sentence_and_effect_is_told(result: LabResult) -> None:
    page = render(declared_page(result))
    assert all(numbers.typeset_text(sentence) in page for sentence in result.sentences)
    assert "Differences from the noise floor" in page
    assert page.count('<th scope="row">rtd</th>') == 4 + 2 * 3 + 3  # drops, scores by budget and layer, CKA by layer


def test_every_model_and_budget_is_in_the_table(result: LabResult) -> None:
    rows = result.table.records()
    assert len(rows) == 6 * 2
    first = result.zoo.entries[0].budgets["gentle"]
    assert rows[0]["budget"] == "gentle"
    assert rows[0]["test"] == tuple(statistics.fmean(scores) for scores in first.test)
    assert rows[0]["score"] == statistics.fmean(first.test[rows[0]["best_layer"]])


def test_names_are_escaped_and_what_is_missing_is_told(result: LabResult) -> None:
    changed = dataclasses.replace(
        result,
        study=dataclasses.replace(result.study, name=HOSTILE),
        zoo=dataclasses.replace(result.zoo, entries=result.zoo.entries[:4]),
        failures=({"model": "s-random-seed0", "reason": HOSTILE},),
    )
    page = render(declared_page(changed))
    assert "<script>alert" not in page
    assert "s-random-seed0 is left out: &lt;script&gt;" in page
    assert "Not done yet: 1 of 6" in page


def test_a_lonely_model_is_a_page_too(result: LabResult, tmp_path: Path) -> None:
    entry = dataclasses.replace(result.zoo.entries[0], cka={})
    lonely = dataclasses.replace(result, zoo=dataclasses.replace(result.zoo, entries=(entry,)), effects=())
    path = write_page(declared_page(lonely), tmp_path / "lab.html")
    assert "lab-cka" not in path.read_text(encoding="utf-8")


def test_the_result_shows_itself(result: LabResult, tmp_path: Path) -> None:
    assert_shows_itself(result, tmp_path)
