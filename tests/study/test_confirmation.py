"""The verdict over seeds: Student's t against scipy, the rule by hand, coverage by simulation."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import outcomes
from layerprobe.finetuning.outputs import RunItems
from layerprobe.finetuning.values import MARGIN, Confirmation, FineTuningRun, Place, Protocol
from layerprobe.metrics.names import bounded
from layerprobe.prediction.rules import plateau_rule
from layerprobe.prediction.values import DropPrediction
from layerprobe.similarity.values import SimilarityCurve
from layerprobe.stats.crossed import crossed
from layerprobe.stats.links import Links
from layerprobe.stats.values import seed_scores
from layerprobe.study.confirmation import confirmation, layers_to_confirm, level_at_look

N_BLOCKS = 6
ALONE = "over new seeds only, as outputs by item were not kept"
SCORES = st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=6)


def run_of(layer: int, seed: int, test: float, validation: float = 80.0) -> FineTuningRun:
    return FineTuningRun(
        layer=layer,
        seed=seed,
        protocol=Protocol(),
        parameters=1000 * (layer + 1),
        best_epoch=1,
        primary="spearman",
        validation={"spearman": validation, "pearson": validation},
        test={"spearman": test, "pearson": test},
        epochs=(),
        seconds=1.0,
        peak_memory=1,
    )


def runs_at(layer: int, scores: Sequence[float]) -> list[FineTuningRun]:
    return [run_of(layer, seed, score) for seed, score in enumerate(scores)]


def prediction_of(values: Sequence[float], *, best_zero_shot: int | None = None) -> DropPrediction:
    curve = SimilarityCurve(values=tuple(values), reference_layers=tuple(range(len(values))), alignment="same-index")
    prediction = plateau_rule(curve)
    if best_zero_shot is None:
        return prediction
    return dataclasses.replace(prediction, baselines={**prediction.baselines, "best zero-shot layer": best_zero_shot})


DROP = prediction_of([0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.4])
NO_DROP = prediction_of([0.9] * 7)


def confirmed(
    prediction: DropPrediction, earlier: Sequence[float], last: Sequence[float], **options: Any
) -> Confirmation:
    layer, _ = layers_to_confirm(prediction, N_BLOCKS)
    runs = [*runs_at(N_BLOCKS, last), *runs_at(layer, earlier)]
    return confirmation(prediction, runs, N_BLOCKS, **options)


# ---- which layers -------------------------------------------------------------------------------------


def test_of_flagged_layers_only_the_last_decides() -> None:
    assert DROP.drop_layers == (5, 6)
    assert layers_to_confirm(DROP, N_BLOCKS) == (4, 6)


def test_without_a_drop_the_rival_is_what_a_baseline_takes() -> None:
    assert NO_DROP.baselines["fixed fraction of depth"] == 5
    assert layers_to_confirm(NO_DROP, N_BLOCKS) == (5, 6)
    assert layers_to_confirm(prediction_of([0.9] * 7, best_zero_shot=2), N_BLOCKS) == (2, 6)


def test_a_rival_at_the_last_layer_is_no_rival() -> None:
    assert layers_to_confirm(prediction_of([0.9] * 7, best_zero_shot=6), N_BLOCKS) == (5, 6)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=25))
def test_an_earlier_layer_is_held_against_the_last(values: list[float]) -> None:
    prediction, n_blocks = prediction_of(values), len(values) - 1
    earlier, last = layers_to_confirm(prediction, n_blocks)
    assert earlier < last == n_blocks
    if prediction.drops:
        assert earlier == prediction.recommended_layer


# ---- intervals ----------------------------------------------------------------------------------------


@given(SCORES, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_of_the_effect_is_scipys(scores: list[tuple[float, float]], level: float) -> None:
    earlier, last = zip(*scores, strict=True)
    result = confirmed(DROP, earlier, last, level=level)
    assert result.effect == pytest.approx(np.mean(earlier) - np.mean(last), abs=1e-9)
    assert result.interval is not None
    assert result.level == level
    if np.ptp(np.subtract(earlier, last)) > 1e-6:
        expected = stats.ttest_rel(earlier, last).confidence_interval(level)
        ends = np.clip((expected.low, expected.high), -200, 200)  # which no two correlations differ by more than
        np.testing.assert_allclose(result.interval, ends, rtol=1e-6, atol=1e-9)


def test_the_interval_of_a_mean_by_hand() -> None:
    """t(0.975, 4) = 2.776 of the tables; mean 3, standard deviation sqrt(2.5), standard error sqrt(0.5)."""
    error = crossed([1.0, 2.0, 3.0, 4.0, 5.0], None)
    assert error is not None
    assert error.interval == pytest.approx((3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5), abs=1e-3)
    assert crossed([1.0], None) is None


@pytest.mark.parametrize("n_seeds", [3, 5])
def test_intervals_cover_the_true_effect(n_seeds: int) -> None:
    """4,000 studies with an effect of 1.5 points, layers that share a part of each seed's luck."""
    rng = np.random.default_rng(n_seeds)
    covered = 0
    for _ in range(4000):
        luck = rng.normal(0, 2, n_seeds)
        earlier, last = (80 + luck + rng.normal(0, 1, n_seeds) for _ in range(2))
        error = crossed((earlier - (last - 1.5)).tolist(), None)
        covered += error is not None and error.interval[0] <= 1.5 <= error.interval[1]
    assert 0.93 < covered / 4000 < 0.97


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "verdict"), [(0.0, "confirmed"), (MARGIN, "refuted")])
def test_a_false_verdict_is_as_rare_as_the_level_says(effect: float, verdict: str) -> None:
    """2.5 % of studies: only one side of the 95 % counts."""
    rng = np.random.default_rng(0)
    false = [
        confirmed(DROP, *(rng.normal(80 + shift, 1.0, 3) for shift in (effect, 0.0))).verdict == verdict
        for _ in range(1000)
    ]
    assert np.mean(false) < 0.04


# ---- the verdict --------------------------------------------------------------------------------------

# the effects of three seeds -> the verdict on a predicted drop, on the prediction of none
VERDICTS = {
    "clearly better before": ((2.0, 2.1, 1.9), "confirmed", "refuted"),
    "hardly better before, but surely": ((0.10, 0.11, 0.12), "confirmed", "refuted"),
    "no better before": ((0.01, -0.01, 0.0), "refuted", "confirmed"),
    "worse before": ((-2.0, -2.1, -1.9), "refuted", "confirmed"),
    "perhaps": ((3.0, 0.0, 1.0), "undecided", "undecided"),
    "all over the place": ((9.0, -9.0, 1.0), "undecided", "undecided"),
    "the very same": ((0.0, 0.0, 0.0), "refuted", "confirmed"),
}


@pytest.mark.parametrize(("effects", "on_drop", "on_none"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict(effects: tuple[float, ...], on_drop: str, on_none: str) -> None:
    last = (80.0, 79.0, 81.5)
    earlier = [score + effect for score, effect in zip(last, effects, strict=True)]
    assert confirmed(DROP, earlier, last).verdict == on_drop
    assert confirmed(NO_DROP, earlier, last).verdict == on_none


@given(SCORES)
def test_the_verdict_follows_from_the_interval(scores: list[tuple[float, float]]) -> None:
    earlier, last = zip(*scores, strict=True)
    drop, none = confirmed(DROP, earlier, last), confirmed(NO_DROP, earlier, last)
    assert drop.interval is not None
    low, high = drop.interval
    assert drop.verdict == ("confirmed" if low > 0 else "refuted" if high < MARGIN else "undecided")
    opposite = {"confirmed": "refuted", "refuted": "confirmed", "undecided": "undecided"}
    assert none.verdict == opposite[drop.verdict]


@pytest.mark.parametrize("prediction", [DROP, NO_DROP])
def test_a_single_seed_decides_nothing(prediction: DropPrediction) -> None:
    result = confirmed(prediction, [90.0], [10.0])
    assert (result.verdict, result.interval, result.effect) == ("undecided", None, 80.0)
    assert result.outcomes[0].interval is None
    assert result.outcomes[0].std is None
    assert "(effect +80.00 Spearman x 100, no interval; 1 seed)" in result.sentence


# ---- one look a seed ----------------------------------------------------------------------------------


def test_no_interval_is_not_adjusted() -> None:
    found = confirmed(DROP, [80.0, 81.0], [70.0, 70.9], planned=5)
    assert "x 100, no interval; 2 of 5 seeds)." in found.sentence


def test_a_settled_verdict_says_of_how_many_seeds_it_is() -> None:
    earlier, last = [80.0, 81.0, 80.5], [70.0, 70.9, 70.6]
    runs = [*runs_at(4, earlier), *runs_at(6, last), *runs_at(5, last)]
    found = confirmation(DROP, runs, N_BLOCKS, planned=5)
    assert found.verdict == "confirmed"
    assert found.planned_seeds == 5
    assert found.interval is not None
    assert found.sentence.endswith(
        f"95% interval {found.interval[0]:+.2f} to {found.interval[1]:+.2f} {ALONE}; adjusted to 3 looks; "
        "3 of 5 seeds). Of the 2 flagged layers, only the last was compared with layer 4."
    )
    assert from_json(Confirmation, to_json(found)) == found


def test_a_look_has_a_wider_interval() -> None:
    scores = ([80.0, 81.0, 80.5], [78.0, 81.2, 79.5])
    found = confirmed(DROP, *scores, planned=5)
    assert found.verdict == "undecided"
    assert np.ptp(found.interval or ()) > np.ptp(confirmed(DROP, *scores).interval or ())


def test_two_seeds_settle_nothing_where_more_are_planned() -> None:
    found = confirmed(DROP, [80.0, 80.1], [70.0, 70.1], planned=3)
    assert (found.verdict, found.interval) == ("undecided", None)


@pytest.mark.parametrize("planned", [2, 3])
def test_with_few_seeds_there_is_one_look_and_the_ordinary_interval(planned: int) -> None:
    scores = ([80.0, 81.0, 80.5][:planned], [78.0, 79.2, 78.5][:planned])
    assert confirmed(DROP, *scores, planned=planned) == confirmed(DROP, *scores)


def test_all_planned_seeds_have_a_wider_interval_than_one_look() -> None:
    scores = ([80.0, 81.0, 80.5, 80.7, 80.1], [78.0, 79.2, 79.5, 79.1, 80.0])
    looked, once = confirmed(DROP, *scores, planned=5), confirmed(DROP, *scores)
    assert looked.effect == once.effect
    assert np.ptp(looked.interval or ()) / np.ptp(once.interval or ()) == pytest.approx(1.144, abs=0.002)
    assert once.planned_seeds is None


def test_more_seeds_than_planned_are_an_error() -> None:
    with pytest.raises(DataError, match="expected at most the 3 seeds that were planned, got 4"):
        confirmed(DROP, [80.0] * 4, [70.0] * 4, planned=3)


# ---- items as the other source of error ---------------------------------------------------------------


def items_of(n: int, spread: float, *, runs: int = 3, links: Links | None = None) -> RunItems:
    """Influences of n pairs, as large as `spread`, on runs at layers 4 and 6, most of them common to the seeds."""
    rng = np.random.default_rng(0)
    common = {layer: rng.normal(size=n) for layer in (4, 6)}
    influences: dict[Place, Any] = {}
    for layer, seed in itertools.product((4, 6), range(runs)):
        own = common[layer] + 0.3 * rng.normal(size=n)
        influences[(layer, ()), seed] = spread * (own - own.mean())
    return RunItems(unit="pair", influences={"test": influences, "validation": influences}, links={"test": links})


EARLIER, LAST = (80.0, 80.1, 79.9), (78.0, 78.2, 77.9)


def test_the_effect_carries_the_error_of_the_test_items() -> None:
    items = items_of(70, 20.0)
    found, alone = confirmed(DROP, EARLIER, LAST, items=items), confirmed(DROP, EARLIER, LAST)
    assert (alone.verdict, found.verdict) == ("confirmed", "undecided")
    psi = items.influences["test"]
    expected = crossed(
        np.subtract(EARLIER, LAST).tolist(),
        np.stack([psi[(4, ()), seed] - psi[(6, ()), seed] for seed in range(3)]),
        unit="pair",
        metric="spearman",
    )
    assert found.error == expected
    assert expected is not None
    assert found.interval == expected.interval
    assert "over new pairs and new seeds, most of the error from the 70 pairs; 3 seeds)." in found.sentence
    assert found.sentence.endswith(
        f"70 pairs and 3 seeds can detect a difference of {expected.visible:.1f} points or more."
    )
    assert expected.visible > 2 * abs(found.effect)


@pytest.mark.parametrize(("n", "verdict"), [(70, "undecided"), (7000, "confirmed")])
def test_equal_outputs_are_known_to_one_item(n: int, verdict: str) -> None:
    equal: dict[Place, Any] = {((layer, ()), seed): np.zeros(n) for layer in range(7) for seed in range(3)}
    items = RunItems(unit="pair", influences={"test": equal, "validation": equal})
    found = confirmed(NO_DROP, (80.0,) * 3, (80.0,) * 3, items=items)
    assert found.error is not None
    assert found.error.standard_error == pytest.approx(100 / n)
    assert found.interval is not None
    assert found.interval[0] < 0 < found.interval[1]
    assert found.verdict == verdict


def test_intervals_stay_inside_what_the_metric_can_be() -> None:
    perfect = confirmed(DROP, (100.0, 100.0, 99.0), (-100.0, 90.0, 80.0), items=items_of(70, 60.0))
    for each in perfect.outcomes:
        assert each.interval is not None
        assert -100 <= each.interval[0] <= each.interval[1] <= 100
        assert each.error is not None
        assert each.error.interval == each.interval
    assert perfect.interval is not None
    assert perfect.interval[1] <= 200
    assert seed_scores([100.0, 70.0], metric="accuracy").interval == (0, 100)
    assert bounded("r2", (-400.0, 130.0)) == (-400.0, 100)


def test_means_of_layers_carry_both_errors_on_both_splits() -> None:
    items = items_of(70, 20.0)
    one = confirmed(DROP, EARLIER, LAST, items=items).outcomes[0]
    psi = np.stack([items.influences["test"][(4, ()), seed] for seed in range(3)])
    assert one.error == crossed(list(EARLIER), psi, unit="pair", metric="spearman", difference=False)
    assert one.interval == (one.error and one.error.interval)
    assert one.validation_error == crossed([80.0] * 3, psi, unit="pair", metric="spearman", difference=False)


def test_pairs_that_share_texts_count_for_less() -> None:
    few = Links(sides=(np.arange(70) // 7,))
    apart, linked = (confirmed(DROP, EARLIER, LAST, items=items_of(70, 20.0, links=links)) for links in (None, few))
    assert np.ptp(linked.interval or ()) > np.ptp(apart.interval or ())


def test_one_seed_has_an_interval_over_items_and_no_verdict() -> None:
    found = confirmed(DROP, EARLIER[:1], LAST[:1], items=items_of(7000, 20.0))
    assert found.verdict == "undecided"
    assert (found.interval or (0, 0))[0] > 0
    assert "over new pairs only, as there is one seed; 1 seed)" in found.sentence
    assert " 7,000 pairs can detect a difference of " in found.sentence


def test_where_one_run_has_no_outputs_the_interval_is_over_seeds_alone() -> None:
    alone = confirmed(DROP, EARLIER, LAST)
    one_text = Links(sides=(np.zeros(9, dtype=int),))
    for items in (items_of(70, 20.0, runs=2), items_of(1, 1.0), items_of(9, 1.0, links=one_text)):
        found = confirmed(DROP, EARLIER, LAST, items=items)
        assert (found.interval, found.sentence) == (alone.interval, alone.sentence)


def test_looks_have_levels_of_their_own() -> None:
    found = confirmed(DROP, EARLIER, LAST, items=items_of(300, 20.0), planned=5)
    assert found.error is not None
    assert found.error.level == level_at_look(3, 0.95, planned=5)
    assert found.level == 0.95
    assert from_json(Confirmation, to_json(found)) == found


def test_seeds_that_agree_by_chance_settle_nothing() -> None:
    """Three differences of a count over items are often the same; an interval without width would decide."""
    for n, effects in ((3, [0.4] * 3), (4, [0.4] * 4)):
        last = [70.0 + seed for seed in range(n)]
        earlier = [score + effect for score, effect in zip(last, effects, strict=True)]
        assert confirmed(DROP, earlier, last, planned=5).interval is None
    assert confirmed(DROP, [70.4, 70.4, 70.5], [70.0] * 3, planned=5).interval is not None
    found = confirmed(DROP, [70.4] * 5, [70.0] * 5, planned=5)
    assert found.interval == pytest.approx((0.4, 0.4))


# ---- outcomes -----------------------------------------------------------------------------------------


def test_outcomes_are_sorted_by_layer_and_seed() -> None:
    scores = {(6, 1): 61.0, (4, 0): 40.0, (6, 0): 60.0, (4, 1): 41.5, (5, 7): 50.0}
    found = outcomes([run_of(layer, seed, score, score + 1) for (layer, seed), score in scores.items()])
    assert [result.layer for result in found] == [4, 5, 6]
    assert [result.seeds for result in found] == [(0, 1), (7,), (0, 1)]
    assert found[0].scores == found[0].test["spearman"] == (40.0, 41.5)
    assert found[0].validation["spearman"] == (41.0, 42.5)
    assert found[0].parameters == 5000
    assert found[0].mean == pytest.approx(40.75)
    assert found[0].std == pytest.approx(np.std([40.0, 41.5], ddof=1))
    assert found[0].interval == pytest.approx(stats.t.interval(0.95, 1, 40.75, 0.75))


def test_further_layers_are_shown_and_do_not_change_the_verdict() -> None:
    runs = [*runs_at(4, (80.0, 81.0)), *runs_at(6, (70.0, 71.5)), *runs_at(2, (99.0, 98.0))]
    result = confirmation(DROP, runs, N_BLOCKS)
    assert [found.layer for found in result.outcomes] == [2, 4, 6]
    assert result.compared_layers == (4, 6)
    assert result.effect == pytest.approx(9.75)


def test_flagged_layers_that_have_a_score_are_not_said_to_be_untested() -> None:
    runs = [*runs_at(4, (80.0, 81.0)), *runs_at(5, (75.0, 74.0)), *runs_at(6, (70.0, 71.5))]
    sentence = confirmation(DROP, runs, N_BLOCKS).sentence
    assert "Of the 2 flagged layers, only the last was compared with layer 4." in sentence
    assert "tested" not in sentence


def test_missing_layers_are_an_error() -> None:
    with pytest.raises(DataError, match=r"expected runs at layers 4 and 6, got layers \[4, 5\]"):
        confirmation(DROP, [*runs_at(4, (80.0,)), *runs_at(5, (70.0,))], N_BLOCKS)
    with pytest.raises(DataError, match=r"expected runs at layers 4 and 6, got layers \[\]"):
        confirmation(DROP, [], N_BLOCKS)


@pytest.mark.parametrize("last", [[70.0], [70.0, 71.0, 72.0]])
def test_unequal_seeds_are_an_error(last: list[float]) -> None:
    with pytest.raises(DataError, match="expected the same seeds at layers 4 and 6"):
        confirmed(DROP, [80.0, 81.0], last)


def test_the_sentence_contains_the_numbers() -> None:
    result = confirmed(DROP, [80.0, 81.0, 80.5], [70.0, 70.5, 71.0])
    assert result.interval is not None
    assert result.sentence == (
        "Fine-tuning confirms that the last layer, 6, scores lower than layer 4: layer 4 scores 80.50 and the last "
        f"layer 70.50 (effect +10.00 Spearman x 100, 95% interval {result.interval[0]:+.2f} to "
        f"{result.interval[1]:+.2f} {ALONE}; 3 seeds). Of the 2 flagged layers, only the last was compared with "
        "layer 4."
    )


# what is claimed of the last layer, by prediction and verdict
CLAIMS = {
    "drop, lower": (DROP, (2.0, 2.1, 1.9), "confirms that the last layer, 6, scores lower than layer 4: "),
    "drop, not lower": (
        DROP,
        (0.0, 0.1, -0.1),
        "refutes the prediction: the last layer, 6, scores less than 0.5 below layer 4: ",
    ),
    "drop, undecided": (
        DROP,
        (3.0, 0.0, 1.0),
        "is inconclusive on whether the last layer, 6, scores lower than layer 4: ",
    ),
    "none, lower": (NO_DROP, (2.0, 2.1, 1.9), "refutes the prediction: the last layer, 6, scores lower than layer 5: "),
    "none, not lower": (
        NO_DROP,
        (0.0, 0.1, -0.1),
        "confirms that the last layer, 6, scores less than 0.5 below layer 5: ",
    ),
}


@pytest.mark.parametrize(("prediction", "effects", "claim"), CLAIMS.values(), ids=CLAIMS)
def test_no_more_is_claimed_than_was_tested(prediction: DropPrediction, effects: tuple[float, ...], claim: str) -> None:
    sentence = confirmed(prediction, [70.0 + effect for effect in effects], [70.0] * 3).sentence
    assert sentence.startswith(f"Fine-tuning {claim}layer ")
    assert ("flagged" in sentence) == prediction.drops


def test_a_prediction_that_flags_the_last_layer_alone_was_tested_whole() -> None:
    alone = dataclasses.replace(DROP, drop_layers=(6,), onset=6)
    assert "flagged" not in confirmed(alone, [80.0, 81.0], [70.0, 71.0]).sentence
