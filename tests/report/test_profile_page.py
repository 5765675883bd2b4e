"""What is said of profiles: complete, escaped, and scored by findings of the same model alone."""

import csv
import dataclasses
import io
from pathlib import Path

import pytest

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.profiling.run import check_findings, side_by_side, tuned_scores
from layerprobe.profiling.values import Cost, LayerProfile, Profile, Profiles
from layerprobe.results.conclusion import Verdict
from layerprobe.results.document import render
from layerprobe.results.draw import figures
from layerprobe.stats.values import pareto_front
from layerprobe.study.values import Finding
from tests.shown import assert_shows_itself

from .conftest import FINDINGS, HOSTILE, model
from .test_page import Page


def profile(name: str = "google/electra-base-discriminator", n_blocks: int = 12, *, speed: float = 1.0) -> Profile:
    described = model(name, n_blocks)
    layers = tuple(
        LayerProfile(
            layer=layer,
            parameters=described.parameters[layer],
            costs=tuple(_cost(layer, length, size, speed) for length in (16, 128) for size in (1, 32)),
        )
        for layer in range(n_blocks + 1)
    )
    return Profile(
        model=described,
        layers=layers,
        pooling="mean",
        device="cpu",
        hardware="AMD EPYC",
        threads=2,
        attn="auto",
        rounds=5,
        repeats=5,
        warmup=2,
        max_seconds=1.0,
        seed=0,
        memory="rise of the resident memory",
        versions={"python": "3.11.9", "torch": "2.8.0"},
        created="2026-11-20T20:20:20+00:00",
    )


def _cost(layer: int, length: int, size: int, speed: float) -> Cost:
    seconds = (0.001 + 1e-5 * layer * length * size**0.9) / speed
    return Cost(
        length=length,
        batch_size=size,
        flops=14_000_000 * layer * length,
        seconds=seconds,
        seconds_low=0.9 * seconds,
        seconds_high=1.2 * seconds,
        repeats=25,
        peak_memory=None if size == 1 else 400_000_000 + 20_000_000 * layer,
    )


@pytest.fixture
def finding() -> Finding:
    return FINDINGS["found"]()


@pytest.fixture
def both() -> list[Profile]:
    found = profile("google-bert/bert-base-cased", speed=2.0)
    return [profile(), dataclasses.replace(found, model=dataclasses.replace(found.model, revision="another"))]


def test_models_of_one_short_name_are_told_apart() -> None:
    models, *_ = side_by_side([profile("/models/old/bert"), profile("/models/new/bert")]).table.shown
    assert (models.name, list(dict.fromkeys(models.cells))) == ("model", ["old/bert", "new/bert"])


def test_scores_stand_beside_costs(both: list[Profile], finding: Finding) -> None:
    names = [figure.name for figure in figures(side_by_side(both))]
    assert names == ["latency", "lengths", "throughput"]
    drawn = {figure.name: figure.plot for figure in figures(side_by_side(both, [finding]))}
    assert list(drawn) == ["latency", "lengths", "score-latency", "score-size", "throughput"]
    points, scores = drawn["score-latency"].data[0], {outcome.layer: outcome.mean for outcome in finding.outcomes}
    assert list(points.y) == list(scores.values())
    beaten = {layer for layer, opacity in zip(scores, points.marker.opacity, strict=True) if opacity < 1}
    assert 12 in beaten, "its interval is below that of layer 9, and its times are above those of layer 9"
    assert 9 not in beaten
    assert drawn["score-latency"].layout.xaxis.type == "log"


def test_a_ratio_that_may_be_1_is_no_answer(both: list[Profile]) -> None:
    alone, same = both[0], side_by_side([both[0], profile("google-bert/bert-base-cased")])
    assert alone.verdict is Verdict.DECIDED
    assert alone.summary == "Layer 6 is 1.9× as fast (1.4× to 2.5× over 5 rounds)"
    assert same.verdict is Verdict.UNDECIDED
    assert "times" not in same.summary
    assert same.summary == "No significant difference in speed (not decided: 0.8× to 1.3× over 5 rounds)"


@pytest.fixture
def paraphrase(finding: Finding) -> Finding:
    """The finding on a task whose metric is F1."""
    text = to_json(finding).replace('"spearman"', '"f1"').replace('"pearson"', '"accuracy"')
    return from_json(Finding, text.replace('"sts"', '"paraphrase"'))


def test_scores_have_the_metric_of_the_finding(paraphrase: Finding) -> None:
    profiles = side_by_side([profile()], [paraphrase])
    page = render(profiles, plotly="cdn")
    assert "TMFT F1" in Page(page).text
    assert "Spearman" not in page.split("<script>")[0]
    drawn = {figure.name: figure.plot for figure in figures(profiles)}
    for name in ("score-latency", "score-size"):
        assert drawn[name].layout.yaxis.title.text == "Test F1 × 100"
    rows = list(csv.DictReader(io.StringIO(profiles.table.csv())))
    assert {(row["metric"], row["tmft_mean"] != "") for row in rows} == {("f1", True), ("", False)}
    assert "TMFT F1" in profiles.table.text()


def test_findings_of_different_metrics_are_refused(finding: Finding, paraphrase: Finding) -> None:
    with pytest.raises(DataError, match="expected findings scored by one metric, got Spearman and F1"):
        check_findings([finding, paraphrase], [profile().model])


def test_models_side_by_side_show_themselves(both: list[Profile], finding: Finding, tmp_path: Path) -> None:
    shown = side_by_side(both, [finding])
    assert_shows_itself(shown, tmp_path)
    assert [column.head for column in shown.table.shown][:3] == ["model", "layer", "parameters"]
    assert from_json(Profiles, to_json(shown)) == shown


def test_names_cannot_add_elements(both: list[Profile]) -> None:
    hostile = dataclasses.replace(profile(HOSTILE), hardware=HOSTILE, warnings=(HOSTILE,))
    harmless = dataclasses.replace(profile(), warnings=("a warning",))
    read, safe = (Page(render(side_by_side([one, both[1]]), plotly="cdn")) for one in (hostile, harmless))
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in safe.elements]
    assert HOSTILE in read.text


def test_a_finding_of_another_model_is_refused(finding: Finding) -> None:
    other = dataclasses.replace(model("google/electra-base-discriminator", 12), revision="a third")
    with pytest.raises(DataError, match="expected a finding for the profiled model, got one for google/electra"):
        check_findings([finding], [other])
    random = dataclasses.replace(other, revision=finding.model.revision, random_init=3)
    assert tuned_scores([finding], random) == {}


def test_profiles_of_different_shapes_are_refused() -> None:
    short = profile()
    layers = tuple(dataclasses.replace(each, costs=each.costs[:2]) for each in short.layers)
    for wrong in ([], [short, dataclasses.replace(short, layers=layers)]):
        with pytest.raises(DataError, match="of the same lengths and batch sizes"):
            side_by_side(wrong)


def test_nothing_on_the_front_is_beaten() -> None:
    points = [(float(x), float((7 * x) % 11)) for x in range(11)]
    best = pareto_front(points, cost=lambda point: point[0], score=lambda point: point[1])
    for cost, score in points:
        beaten = any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points)
        assert ((cost, score) in best) == (not beaten)
