"""What a finding says: its case and verdict, its facts and checks, and how it compares with what was expected."""

from dataclasses import replace

import pytest

from layerprobe.results import words
from layerprobe.results.conclusion import Check, Choice, Verdict
from layerprobe.search.values import SearchAnswer
from layerprobe.study.values import Finding
from tests.report.conftest import FINDINGS, found, pair
from tests.results.contract import assert_keeps_contract


@pytest.fixture(scope="module")
def searched() -> Finding:
    """Of 12 blocks: layer 9 is the best guess, and 12 drops, as was expected."""
    return found(pair())


def check_of(finding: Finding, name: str) -> Check | None:
    return next((check for check in finding.conclusion.checks if check.name == name), None)


def line_of(finding: Finding, name: str) -> tuple[str, str]:
    check = check_of(finding, name)
    assert check is not None
    return words.line(check, finding.conclusion)


def several(*among: SearchAnswer) -> Finding:
    """Models of one and the same search, of which the last one is kept, with what is known among all."""
    *others, best = (replace(FINDINGS["found"](), among=answer) for answer in among)
    best = replace(best, model=replace(best.model, name="org/best"))
    return replace(best, others=tuple(others), place=len(others), share=0.1)


# ---- what was found -------------------------------------------------------------------------------------


def test_the_answer_says_what_is_gained_on_test_and_saved(searched: Finding) -> None:
    conclusion, parameters = searched.conclusion, searched.model.parameters
    assert [*conclusion.facts][:5] == ["gain", "parameters", "speed", "behind", "score"]
    assert {conclusion.facts[name].split for name in ("gain", "score")} == {"test"}
    assert (conclusion.facts["gain"].value, conclusion.facts["gain"].interval) == (7.5, (5.4, 9.6))
    assert conclusion.facts["parameters"].value == parameters[9] / parameters[12] - 1
    assert conclusion.facts["speed"].value == pytest.approx(0.9 / 0.6)
    assert conclusion.choice == Choice.upto(12, 9, searched.answer.candidates)
    assert line_of(searched, "test")[1] == "+7.5 points, 95 % 5.4 to 9.6, over 1,379 items and 2 seeds"
    for unmeasured in ((), ((),) * 13):
        assert "speed" not in replace(searched, rounds_by_layer=unmeasured).facts
    untested = replace(searched, against_last=None)
    assert untested.facts["gain"].split == "validation"
    assert (check_of(untested, "test"), check_of(searched, "not tested")) == (None, None)
    assert check_of(untested, "not tested") is not None


def test_the_last_layers_drop_or_do_not_or_that_is_open(searched: Finding) -> None:
    assert found(pair(), peak=11).drop_layers == (12,)
    assert line_of(searched, "last layers")[0] == "Scores drop at layer 12: 95 % sure, by more than 0.5 points"
    *others, last = replace(searched.answer, worse=()).layers
    for within, name, passed in ((0.04, "last layers", None), (0.5, "last layers", None), (0.96, "no drop", True)):
        layers = (*others, replace(last, chance_within=within))
        check = check_of(replace(searched, answer=replace(searched.answer, worse=(), layers=layers)), name)
        assert check is not None
        assert check.passed is passed
    without_run = (*others, replace(last, runs=0))
    finding = replace(searched, answer=replace(searched.answer, worse=(), layers=without_run))
    assert check_of(finding, "last layers") is None, "a layer without a run is not said to drop"


# ---- of several models ----------------------------------------------------------------------------------


def test_of_several_models_never_keep_is_said_of_what_is_undecided() -> None:
    """By itself the model has one candidate; among all of them another model may have the best layer."""
    answer = replace(FINDINGS["found"]().answer, candidates=(9,))
    layers = [replace(belief, chance_best=0.0, chance_within=0.5) for belief in answer.layers]
    layers[9] = replace(layers[9], chance_best=0.42)
    answer_of_model = replace(answer, layers=tuple(layers), smallest_sufficient=None, chance=0.9)
    finding = several(replace(answer_of_model, candidates=(3, 4)), answer_of_model)
    conclusion = finding.conclusion
    assert conclusion.verdict is Verdict.UNDECIDED
    assert "best guess" in finding.table.data["flag"]
    assert "keep" not in finding.table.data["flag"]
    assert conclusion.choice == Choice.upto(12, 9), "candidates of one model are not those of all"
    check = check_of(finding, "model")
    assert check is not None
    assert (check.passed, check.facts["has_best"].value) == (None, pytest.approx(0.42))
    assert check_of(finding, "rival") is None
    alone = several(replace(answer_of_model, candidates=()), answer_of_model)
    assert alone.conclusion.verdict is Verdict.DECIDED
    check = check_of(alone, "model")
    assert check is not None
    assert check.passed is True
    for one in (finding, alone):
        assert_keeps_contract(one)


# ---- what was expected ----------------------------------------------------------------------------------


def test_a_prediction_is_right_wrong_or_not_tested(searched: Finding) -> None:
    assert searched.prediction is not None
    assert check_of(replace(searched, prediction=None), "prediction") is None
    answer = replace(searched.answer, candidates=(9,))
    for expected, candidates, passed in ((9, (9,), True), (5, (5, 9), True), (8, (9,), False), (5, (9,), None)):
        prediction = replace(searched.prediction, recommended_layer=expected)
        finding = replace(searched, prediction=prediction, answer=replace(answer, candidates=candidates))
        check = check_of(finding, "prediction")
        assert check is not None
        assert check.passed is passed, expected
    *_, last = layers = [*answer.layers]
    layers[9] = replace(layers[9], runs=0)
    unseen = replace(searched, answer=replace(answer, layers=tuple(layers)))
    prediction = replace(searched.prediction, recommended_layer=last.layer)
    check = check_of(replace(unseen, prediction=prediction), "prediction")
    assert check is not None
    assert check.passed is None, "a layer is not called worse than one without a run"


def test_a_layer_that_is_lower_on_test_is_no_more_than_a_guess(searched: Finding) -> None:
    proof, best = searched.against_last, searched.best_layer
    assert proof is not None
    layers = [replace(one, chance_best=0.7 if one.layer == best else 0.0) for one in searched.answer.layers]
    likely = replace(searched, answer=replace(searched.answer, layers=tuple(layers), chance=0.7))

    below = replace(likely, against_last=replace(proof, value=-4.4, interval=(-9.0, 0.2)))

    assert likely.verdict is Verdict.PROBABLE
    assert below.verdict is Verdict.UNDECIDED
    assert below.flag(best) == "best guess"
