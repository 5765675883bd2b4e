"""The page of a chain: complete, escaped, and its data read back."""

import dataclasses
import json
from pathlib import Path

import pytest

from layerprobe.errors import LayerProbeError
from layerprobe.files.serialisation import to_dict
from layerprobe.lab.chains.values import ChainResult
from layerprobe.results.declared import declared_page
from layerprobe.results.page import render, without_folders, write_page
from tests.report.test_page import Page
from tests.shown import assert_shows_itself

HOSTILE = "<script>alert('x')</script> $x$ & \"quoted\""


@pytest.mark.slow
def test_the_result_reads_back_from_the_page(whole: ChainResult) -> None:
    page = Page(render(declared_page(whole)))
    assert json.loads(page.data("study")) == json.loads(without_folders(json.dumps(to_dict(whole))))
    assert set(json.loads(page.data("figures"))) == {"chain-scores", "chain-cka", "chain-reference"}


def test_every_figure_has_its_place(whole: ChainResult) -> None:
    page = render(declared_page(whole))
    for name in json.loads(Page(page).data("figures")):
        assert f'id="plot-{name}"' in page


def test_every_layer_and_start_is_in_the_table(whole: ChainResult) -> None:
    data = whole.table.data
    assert data["layer"] == tuple(outcome.layer for outcome in whole.outcomes)
    assert data["step_2"] == tuple(outcome.mean for outcome in whole.trail.outcomes[0])
    assert data["without_seeds"] == tuple(outcome.scores for outcome in whole.direct)
    assert data["effect"] == tuple(effect and effect.value for effect in whole.effects)
    for control in whole.controls:
        assert data[f"random_{control.random_init}"] == tuple(outcome.mean for outcome in control.outcomes[-1])


def test_steps_on_one_task_are_told_apart(whole: ChainResult) -> None:
    *before, last = whole.chain.steps
    chain = dataclasses.replace(whole.chain, steps=(*before[:-1], last, last))
    heads = [column.head for column in dataclasses.replace(whole, chain=chain).table.shown]
    assert len(set(heads)) == len(heads)


def test_names_are_escaped(whole: ChainResult) -> None:
    step = whole.chain.finetunings[-1]
    hostile = dataclasses.replace(step, task=dataclasses.replace(step.task, source=HOSTILE))
    chain = dataclasses.replace(whole.chain, name=HOSTILE, steps=(*whole.chain.steps[:-1], hostile))
    trail = dataclasses.replace(whole.trail, model=HOSTILE)
    page = render(declared_page(dataclasses.replace(whole, chain=chain, trail=trail, warnings=(HOSTILE,))))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_chain_without_extras_is_a_page_too(whole: ChainResult) -> None:
    first = whole.trail.outcomes[-1][0]
    lonely = dataclasses.replace(
        first,
        seeds=first.seeds[:1],
        test={name: scores[:1] for name, scores in first.test.items()},
        validation={name: scores[:1] for name, scores in first.validation.items()},
        error=None,
    )
    plain = dataclasses.replace(
        whole,
        chain=dataclasses.replace(whole.chain, steps=whole.chain.steps[-1:], reference=None, control=(), seeds=(0,)),
        trail=dataclasses.replace(whole.trail, adaptations=(), outcomes=((lonely,),)),
        direct=(),
        effects=(),
        controls=(),
        similarities=None,
    )
    page = render(declared_page(plain))
    assert set(json.loads(Page(page).data("figures"))) == {"chain-scores"}
    assert "Small marks are seeds" not in page
    assert "Beside it" not in page


def test_cka_curves_end_at_the_layer_kept(whole: ChainResult) -> None:
    figures = {each.name: each.plot for each in declared_page(whole).figures}
    for name, first in (("chain-cka", "after "), ("chain-reference", "before")):
        curves = [trace for trace in figures[name].data if trace.showlegend]
        kept = {trace.name: list(trace.x) for trace in curves if trace.name.startswith("kept to")}
        assert kept == {"kept to layer 1": [0, 1], "kept to layer 3": [0, 1, 2, 3]}
        assert curves[0].name.startswith(first)


def test_a_page_that_cannot_be_written(whole: ChainResult, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LayerProbeError, match=r"expected to write the report to .*choose another path"):
        write_page(declared_page(whole), tmp_path / "file" / "chain.html")


def test_the_result_shows_itself(whole: ChainResult, tmp_path: Path) -> None:
    assert_shows_itself(whole, tmp_path)
