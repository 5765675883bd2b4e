"""What was found, in words, and how it compares with what was expected."""

import dataclasses
import re

import pytest

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_dict, to_dict
from layerprobe.stats.sentences import against_last
from layerprobe.study.values import Finding, Study
from tests.report.conftest import confirmed, found, rendered, study


@pytest.fixture(scope="module")
def searched() -> Study:
    """Of 12 blocks: layer 9 is the best, 7 and 8 may be, and 10 to 12 drop, as was expected."""
    return found(study())


def finding_of(searched: Study) -> Finding:
    assert searched.finding
    return searched.finding


GUESSED = "Layer 9 of 12 is the best guess, with a chance of 77%"


# ---- what was found -------------------------------------------------------------------------------------


def test_the_answer_says_what_is_saved(searched: Study) -> None:
    finding = finding_of(searched)
    parameters = searched.comparison.model.parameters
    assert finding.saved(9) == 1 - parameters[9] / parameters[12]
    assert finding.speed(9) == pytest.approx((0.9 / 0.6, 1.4, 1.6))
    assert finding.kept == (
        "Layer 9 of 12 is the best guess, with a chance of 77%: 78.1 (Spearman x 100 on test), 7.5 points above the "
        "full model (95% interval 5.4 to 9.6), a fifth smaller, 1.5 times as fast [1.4 to 1.6]."
    )
    assert finding.sentence == " ".join((finding.kept, finding.certainty, finding.spent, finding.doubt))
    for unmeasured in ((), ((),) * 13):
        assert dataclasses.replace(finding, rounds_by_layer=unmeasured).kept.endswith(", a fifth smaller.")


def test_a_study_without_a_search_says_what_was_tested_or_is_expected() -> None:
    plain = study()
    assert plain.heading == "Before training: look first at layer 9 of 12"
    assert plain.rest == plain.prediction.sentence
    assert study(drop=(), recommended=12).heading == "Predicted before training: keep all 12 layers"
    tested = confirmed(plain)
    assert tested.confirmation
    assert (tested.heading, tested.rest) == ("Keep layer 9 of 12", tested.confirmation.sentence)
    for verdict, said in ("refuted", "Keep all 12 layers"), ("undecided", "Layer 9 or layer 12 of 12: not decided"):
        confirmation = dataclasses.replace(tested.confirmation, verdict=verdict)
        assert dataclasses.replace(tested, confirmation=confirmation).heading == said
    held = dataclasses.replace(study(drop=(), recommended=12), confirmation=tested.confirmation)
    assert held.heading == "Keep all 12 layers"  # what was confirmed is that nothing drops
    searched = found(plain)
    assert searched.finding
    assert searched.heading == GUESSED
    assert searched.rest == f"{searched.finding.promise}. {searched.finding.certainty}"


@pytest.mark.parametrize(("level", "percent"), [(0.999, "99.9"), (0.975, "97.5"), (0.9999, "99.99")])
def test_a_level_is_not_rounded(searched: Study, level: float, percent: str) -> None:
    finding, proof = finding_of(searched), finding_of(searched).against_last
    assert proof
    settings = dataclasses.replace(finding.answer.settings, level=level)
    finding = dataclasses.replace(
        finding,
        answer=dataclasses.replace(finding.answer, settings=settings),
        against_last=dataclasses.replace(proof, level=level),
    )
    told = finding.proof_sentence, finding.kept, finding.certainty, finding.drop_sentence
    assert [sentence for sentence in told if f"{percent}% " not in sentence] == []
    page = rendered(dataclasses.replace(searched, finding=finding))
    assert f"{percent}\u00a0% interval" in page
    assert f"{percent}\u00a0% sure" in page
    assert not re.search(r"\b(100|98)\W?% (interval|sure)", " ".join((*told, page)))


def test_what_was_not_tested_is_not_called_proof(searched: Study) -> None:
    finding = finding_of(searched)
    assert finding.against_last
    assert finding.proof_sentence == against_last(9, 12, finding.against_last, "spearman")
    untested = dataclasses.replace(finding, against_last=None)
    assert untested.proof_sentence == "Layer 9 was not compared with the last layer, 12, on the test split."


def test_one_layer_drops() -> None:
    finding = finding_of(found(study(), peak=11))
    assert finding.drop_layers == (12,)
    assert "drop at layer 12: 95% sure that it is more than" in finding.drop_sentence


# ---- what was expected ----------------------------------------------------------------------------------


def test_without_a_search_there_is_nothing_to_compare() -> None:
    with pytest.raises(DataError, match="expected a study with a search, got none: run it without --no-fine-tuning"):
        _ = study().expectation


def test_the_difference_from_the_last_layer_is_read_from_the_record_of_before(searched: Study) -> None:
    finding = finding_of(searched)
    data = to_dict(finding)
    older = {"layer": 9, "last": 12, "primary": "spearman", "difference": data["against_last"]}
    assert from_dict(Finding, data) == from_dict(Finding, {**data, "against_last": older}) == finding
    assert from_dict(Finding, {**data, "against_last": None}).against_last is None
