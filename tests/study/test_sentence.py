"""What was found, in words, and how it compares with what was expected."""

from __future__ import annotations

import dataclasses
import re

import pytest

from layerprobe.errors import DataError
from layerprobe.study.sentence import expectation_sentence, found_drop_sentence, headline, proof_sentence, summary
from layerprobe.study.values import Finding, Study
from tests.report.conftest import confirmed, found, rendered, study


@pytest.fixture(scope="module")
def searched() -> Study:
    """Of 12 blocks: layer 9 is the best, 7 and 8 may be, and 10 to 12 drop, as was expected."""
    return found(study())


def expecting(searched: Study, recommended: int, drop: tuple[int, ...]) -> Study:
    onset = drop[0] if drop else None
    prediction = dataclasses.replace(searched.prediction, recommended_layer=recommended, drop_layers=drop, onset=onset)
    return dataclasses.replace(searched, prediction=prediction)


def finding_of(searched: Study) -> Finding:
    assert searched.finding
    return searched.finding


def with_last(finding: Finding, chance_within: float) -> Finding:
    """The same finding with another chance that the last layers are within the tolerance."""
    layers = [
        dataclasses.replace(each, chance_within=max(each.chance_within, chance_within))
        for each in finding.answer.layers
    ]
    worse = finding.answer.worse if chance_within <= 1 - finding.answer.settings.level else ()
    return dataclasses.replace(finding, answer=dataclasses.replace(finding.answer, layers=tuple(layers), worse=worse))


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


@pytest.mark.parametrize(
    ("value", "interval", "said"),
    [
        (0.5, (-1.0, 2.0), "no significant difference from the full model (+0.5 points, 95% interval -1.0 to +2.0)"),
        (-2.0, (-3.5, -1.0), "2.0 points below the full model (95% interval 1.0 to 3.5)"),
    ],
)
def test_only_what_the_test_split_shows_is_claimed(
    value: float, interval: tuple[float, float], said: str, searched: Study
) -> None:
    finding = finding_of(searched)
    assert finding.against_last
    difference = dataclasses.replace(finding.against_last.difference, value=value, interval=interval)
    tested = dataclasses.replace(finding, against_last=dataclasses.replace(finding.against_last, difference=difference))
    assert f"(Spearman x 100 on test), {said}, a fifth smaller" in tested.kept
    refuted = "Validation chose layer 9, but the full model scores higher on test"
    assert tested.headline == (refuted if value < 0 else GUESSED)


def test_without_a_test_score_the_expected_one_is_said_with_its_interval() -> None:
    finding = finding_of(found(study(), tuned=(), tested=False))
    best = finding.answer.layers[finding.best_layer]
    low, high = best.interval
    assert (
        f"expected score {best.mean:.1f} (Spearman x 100 on validation, 95% interval {low:.1f} to {high:.1f}), not "
        "compared with the full model on test"
    ) in finding.kept


def test_a_study_without_a_search_says_what_was_tested_or_is_expected() -> None:
    plain = study()
    assert headline(plain) == "Before training: look first at layer 9 of 12"
    assert summary(plain) == plain.prediction.sentence
    assert headline(study(drop=(), recommended=12)) == "Predicted before training: keep all 12 layers"
    tested = confirmed(plain)
    assert tested.confirmation
    assert (headline(tested), summary(tested)) == ("Keep layer 9 of 12", tested.confirmation.sentence)
    for verdict, said in ("refuted", "Keep all 12 layers"), ("undecided", "Layer 9 or layer 12 of 12: not decided"):
        confirmation = dataclasses.replace(tested.confirmation, verdict=verdict)
        assert headline(dataclasses.replace(tested, confirmation=confirmation)) == said
    held = dataclasses.replace(study(drop=(), recommended=12), confirmation=tested.confirmation)
    assert headline(held) == "Keep all 12 layers"  # what was confirmed is that nothing drops
    searched = found(plain)
    assert searched.finding
    assert headline(searched) == GUESSED
    assert summary(searched) == f"{searched.finding.promise}. {searched.finding.certainty}"


@pytest.mark.parametrize(("level", "percent"), [(0.999, "99.9"), (0.975, "97.5"), (0.9999, "99.99")])
def test_a_level_is_not_rounded(searched: Study, level: float, percent: str) -> None:
    finding, proof = finding_of(searched), finding_of(searched).against_last
    assert proof
    settings = dataclasses.replace(finding.answer.settings, level=level)
    finding = dataclasses.replace(
        finding,
        answer=dataclasses.replace(finding.answer, settings=settings),
        against_last=dataclasses.replace(proof, difference=dataclasses.replace(proof.difference, level=level)),
    )
    told = proof_sentence(finding), finding.kept, finding.certainty, found_drop_sentence(finding)
    assert [sentence for sentence in told if f"{percent}% " not in sentence] == []
    page = rendered(dataclasses.replace(searched, finding=finding))
    assert f"{percent}\u00a0% interval" in page
    assert f"{percent}\u00a0% sure" in page
    assert not re.search(r"\b(100|98)\W?% (interval|sure)", " ".join((*told, page)))


def test_a_smaller_layer_that_will_do_says_what_it_saves() -> None:
    finding = finding_of(found(study(), tolerance=1.0, scans=2, n_folds=1))
    assert finding.answer.smallest_sufficient == 8
    gains = "8 (a quarter smaller, 1.8 times as fast [1.7 to 1.9])."
    assert f"within 1 point of the best, 95% sure: {gains}" in finding.certainty
    itself = dataclasses.replace(finding.answer, smallest_sufficient=9)
    certainty = dataclasses.replace(finding, answer=itself).certainty
    assert "No smaller layer is 95% sure to be within 1 point of it." in certainty


def test_the_whole_model_saves_nothing() -> None:
    finding = finding_of(found(study(drop=(), recommended=12), peak=12))
    assert finding.kept == "Keep all 12 layers: 78.0 (Spearman x 100 on test)."
    assert proof_sentence(finding) == "The layer to keep is already the last one: there is nothing to compare it with."


def test_what_the_proof_cost_is_told_apart(searched: Study) -> None:
    finding = finding_of(searched)
    said = "Cost: 14.9% of a full sweep (every layer with 5 seeds)"
    assert finding.spent.startswith(f"{said}, 38% of it to compare with the last layer, ")
    assert dataclasses.replace(finding, proof_cost=0).spent.startswith(f"{said}, 9 min of training. ")


def test_what_was_not_tested_is_not_called_proof(searched: Study) -> None:
    finding = finding_of(searched)
    assert finding.against_last
    assert proof_sentence(finding) == finding.against_last.sentence
    untested = dataclasses.replace(finding, against_last=None)
    assert proof_sentence(untested) == "Layer 9 was not compared with the last layer, 12, on the test split."


@pytest.mark.parametrize(
    ("chance_within", "said"),
    [
        (
            0.0,
            "On validation, scores drop at layer 12: 95% sure that it is more than 0.5 points below the best.",
        ),
        (0.96, "On validation, scores do not drop: 95% sure that the last layer is within 0.5 points of the best."),
        (
            0.4,
            "On validation, it is unclear whether the last layers hurt: the chance that the last one is more than 0.5 "
            "points below the best is 60%.",
        ),
        (
            0.0501,
            "On validation, it is unclear whether the last layers hurt: the chance that the last one is more than 0.5 "
            "points below the best is 94.99%.",
        ),
    ],
)
def test_whether_the_model_drops(searched: Study, chance_within: float, said: str) -> None:
    assert found_drop_sentence(with_last(finding_of(searched), chance_within)).startswith(said)


def test_one_layer_drops() -> None:
    finding = finding_of(found(study(), peak=11))
    assert finding.drop_layers == (12,)
    assert "drop at layer 12: 95% sure that it is more than" in found_drop_sentence(finding)


# ---- what was expected ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recommended", "drop", "said"),
    [
        (9, (10, 11, 12), "agrees: layer 9 is the one to keep, and the drop is as expected."),
        (8, (10, 11, 12), "agrees: layer 8 may be the best, as layer 9 may, and the drop is as expected."),
        (9, (12,), "agrees: layer 9 is the one to keep, and the drop is as expected."),
        (
            *(8, (9, 10, 11, 12)),
            "agrees in part: layer 8 may be the best, as layer 9 may, and a drop was found at layer 12 only.",
        ),
        (12, (), "disagrees: layer 12 is 11.3 points below layer 9, and a drop was found at layer 12."),
    ],
)
def test_where_training_disagrees_is_said(searched: Study, recommended: int, drop: tuple[int, ...], said: str) -> None:
    sentence = expectation_sentence(expecting(searched, recommended, drop))
    flagged = f"layers {drop[0]} to 12" if len(drop) > 1 else "layer 12"
    expected = (
        f"Predicted before training: layer {recommended}{f' first, {flagged} flagged' if drop else ', and no drop'}. "
    )
    assert sentence == f"{expected}Training {said}"


@pytest.mark.parametrize(
    ("chance_within", "drop", "said"),
    [
        (0.96, (), "agrees: layer 9 is the one to keep, and no drop was found."),
        (0.4, (), "agrees in part: layer 9 is the one to keep, and it is unclear whether the last layer drops."),
        (0.96, (12,), "agrees in part: layer 9 is the one to keep, and no drop was found."),
    ],
)
def test_where_no_drop_was_found(searched: Study, chance_within: float, drop: tuple[int, ...], said: str) -> None:
    known = dataclasses.replace(searched, finding=with_last(finding_of(searched), chance_within))
    assert expectation_sentence(expecting(known, 9, drop)).endswith(f"Training {said}")


def test_without_a_search_there_is_nothing_to_compare() -> None:
    with pytest.raises(DataError, match="expected a study with a search, got none: run it without --no-fine-tuning"):
        expectation_sentence(study())
