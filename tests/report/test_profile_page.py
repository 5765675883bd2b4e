"""Profiles beside findings of the same models: scores by cost, and what is refused."""

import dataclasses

import pytest

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.profiling.run import check_findings, side_by_side, tuned_scores
from layerprobe.results.draw import figures
from layerprobe.stats.values import pareto_front
from layerprobe.study.values import Finding

from .conftest import FINDINGS, changed, model, profile


@pytest.fixture
def finding() -> Finding:
    return FINDINGS["found"]()


def test_models_of_one_short_name_are_told_apart() -> None:
    models, *_ = side_by_side([profile("/models/old/bert"), profile("/models/new/bert")]).table.shown
    assert (models.name, list(dict.fromkeys(models.cells))) == ("model", ["old/bert", "new/bert"])


def test_scores_stand_beside_costs(finding: Finding, paraphrase: Finding) -> None:
    both = [profile(), changed(profile("google-bert/bert-base-cased", speed=2.0), model__revision="another")]
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
    table = side_by_side([profile()], [paraphrase]).table
    of_metrics = zip(table.data["metric"], table.data["tmft_mean"], strict=True)
    assert {(metric, mean is None) for metric, mean in of_metrics} == {("f1", False), (None, True)}
    assert "TMFT F1" in [column.head for column in table.shown]


@pytest.fixture
def paraphrase(finding: Finding) -> Finding:
    """The finding on a task whose metric is F1."""
    text = to_json(finding).replace('"spearman"', '"f1"').replace('"pearson"', '"accuracy"')
    return from_json(Finding, text.replace('"sts"', '"paraphrase"'))


def test_findings_of_different_metrics_are_refused(finding: Finding, paraphrase: Finding) -> None:
    with pytest.raises(DataError, match="expected findings scored by one metric, got Spearman and F1"):
        check_findings([finding, paraphrase], [profile().model])


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
