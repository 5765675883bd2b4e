"""The layer that L3Prune and TransformerRanker take, as they say it."""

import pytest

from layerprobe.prediction.rule import ModelCurves, Rule, rules_for
from layerprobe.readings.registry import reading_of
from layerprobe.readings.values import LayerCurve

NAMES = ("LogME", "H-score", "contrastive loss")


def rule(name: str) -> Rule:
    (found,) = (each for each in rules_for({name: reading_of(name) for name in NAMES}) if each.name == name)
    return found


def kept(name: str, **curves: tuple[float, ...]) -> int:
    names = {"logme": "LogME", "h_score": "H-score", "loss": "contrastive loss"}
    model = ModelCurves(
        n_blocks=len(next(iter(curves.values()))) - 1,
        curves={names[each]: LayerCurve(values=values) for each, values in curves.items()},
    )
    (only,) = rule(name).fit([])(model)
    return only


def test_l3prune_takes_the_lowest_loss_of_each_half() -> None:
    losses = (0.0, 5.0, 2.0, 3.0, 1.0, 4.0, 0.5)
    assert kept("L3Prune small", loss=losses) == 2
    assert kept("L3Prune large", loss=losses) == 6
    # of seven blocks the first three are the first half
    assert kept("L3Prune small", loss=(*losses[:4], 0.1, 4.0, 0.5, 9.0)) == 2
    assert kept("L3Prune large", loss=(*losses[:4], 0.1, 4.0, 0.5, 9.0)) == 4


def test_l3prune_of_a_single_block_keeps_it() -> None:
    for name in ("L3Prune small", "L3Prune large"):
        assert kept(name, loss=(0.0, 1.0)) == 1


def test_transformer_ranker_takes_the_best_block_by_h_score_or_else_by_logme() -> None:
    name, evidence, h_scores = "TransformerRanker bestlayer", (9.0, 1.0, 3.0, 2.0), (9.0, 1.0, 1.0, 2.0)
    assert kept(name, logme=evidence) == 2
    assert kept(name, logme=evidence, h_score=h_scores) == 3
    assert kept(name, logme=(0.0, 1.00001, 1.00004, 0.5)) == 1, "expected four decimals"


@pytest.mark.parametrize("name", ["L3Prune small", "L3Prune large", "TransformerRanker bestlayer"])
def test_they_need_labels_and_have_nothing_to_choose(name: str) -> None:
    assert rule(name).labelled
    assert rule(name).parameters == 0
    assert not rule(name).reads(ModelCurves(n_blocks=3, curves={}))
