"""What was found, in words, and how it compares with what was expected."""

import dataclasses
import re

import pytest

from layerprobe.stats.sentences import against_last
from layerprobe.study.values import Finding
from tests.report.conftest import found, pair, rendered


@pytest.fixture(scope="module")
def searched() -> Finding:
    """Of 12 blocks: layer 9 is the best, 7 and 8 may be, and 10 to 12 drop, as was expected."""
    return found(pair())


GUESSED = "Layer 9 of 12 is the best guess, with a chance of 77%"


# ---- what was found -------------------------------------------------------------------------------------


def test_the_answer_says_what_is_saved(searched: Finding) -> None:
    finding, parameters = searched, searched.model.parameters
    assert finding.saved(9) == 1 - parameters[9] / parameters[12]
    assert finding.speed(9) == pytest.approx((0.9 / 0.6, 1.4, 1.6))
    assert finding.kept == (
        "Layer 9 of 12 is the best guess, with a chance of 77%: 78.1 (Spearman x 100 on test), 7.5 points above the "
        "full model (95% interval 5.4 to 9.6), a fifth smaller, 1.5 times as fast [1.4 to 1.6]."
    )
    assert finding.sentence == " ".join((finding.kept, finding.certainty, finding.spent, finding.doubt))
    for unmeasured in ((), ((),) * 13):
        assert dataclasses.replace(finding, rounds_by_layer=unmeasured).kept.endswith(", a fifth smaller.")


def test_the_heading_is_the_start_and_the_rest_is_the_promise(searched: Finding) -> None:
    assert searched.heading == GUESSED
    assert searched.rest == f"{searched.promise}. {searched.certainty}"


@pytest.mark.parametrize(("level", "percent"), [(0.999, "99.9"), (0.975, "97.5"), (0.9999, "99.99")])
def test_a_level_is_not_rounded(searched: Finding, level: float, percent: str) -> None:
    finding, proof = searched, searched.against_last
    assert proof
    settings = dataclasses.replace(finding.answer.settings, level=level)
    finding = dataclasses.replace(
        finding,
        answer=dataclasses.replace(finding.answer, settings=settings),
        against_last=dataclasses.replace(proof, level=level),
    )
    told = finding.proof_sentence, finding.kept, finding.certainty, finding.drop_sentence
    assert [sentence for sentence in told if f"{percent}% " not in sentence] == []
    page = rendered(finding)
    assert f"{percent}\u00a0% interval" in page
    assert f"{percent}\u00a0% sure" in page
    assert not re.search(r"\b(100|98)\W?% (interval|sure)", " ".join((*told, page)))


def test_what_was_not_tested_is_not_called_proof(searched: Finding) -> None:
    finding = searched
    assert finding.against_last
    assert finding.proof_sentence == against_last(9, 12, finding.against_last, "spearman")
    untested = dataclasses.replace(finding, against_last=None)
    assert untested.proof_sentence == "Layer 9 was not compared with the last layer, 12, on the test split."


def test_one_layer_drops() -> None:
    finding = found(pair(), peak=11)
    assert finding.drop_layers == (12,)
    assert "drop at layer 12: 95% sure that it is more than" in finding.drop_sentence


# ---- what was expected ----------------------------------------------------------------------------------


def test_without_a_prediction_nothing_is_said_of_it(searched: Finding) -> None:
    assert searched.expectation.startswith("Predicted before training: layer 9 first, layers 10 to 12 flagged.")
    assert dataclasses.replace(searched, prediction=None).expectation == ""
