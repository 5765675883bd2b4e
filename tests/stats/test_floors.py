"""Floors: closed forms against the metrics themselves, of trivial answers and of many random orders."""

import numpy as np
import pytest

from layerprobe.kinds.retrieval import ndcg, recall, reciprocal_rank
from layerprobe.metrics.scores import class_scores, decision_scores
from layerprobe.stats.floors import class_floors, decision_floors, has_rare_class, ranking_floors


@pytest.mark.parametrize("sizes", [(5, 2), (3, 3, 3), (97, 3), (1, 40, 9, 2)])
def test_class_floors_are_what_the_largest_class_scores(sizes: tuple[int, ...]) -> None:
    gold = np.repeat(np.arange(len(sizes)), sizes).astype(float)
    outputs = np.tile(np.eye(len(sizes))[int(np.argmax(sizes))], (len(gold), 1))
    expected = {name: 100 * value for name, value in class_scores(outputs, gold).items()}
    assert {name: floor.value for name, floor in class_floors(gold).items()} == pytest.approx(expected)


@pytest.mark.parametrize("ones", [1, 80, 300])
def test_decision_floors_are_what_one_answer_for_all_scores(ones: int) -> None:
    gold = (np.arange(400) < ones).astype(float)
    floors = {name: floor.value for name, floor in decision_floors(gold).items()}
    always = {name: 100 * value for name, value in decision_scores(np.ones(400), gold, 0.5).items()}
    never = 100 * decision_scores(np.zeros(400), gold, 0.5)["accuracy"]
    assert floors == pytest.approx({**always, "accuracy": max(always["accuracy"], never)})


@pytest.mark.parametrize(("n", "gains"), [(4, [1.0]), (12, [2.0, 1.0, 1.0]), (60, [1.0]), (60, [3.0, 1.0] * 8)])
def test_floors_of_rankings_are_the_means_of_random_orders(n: int, gains: list[float]) -> None:
    rng, draws = np.random.default_rng(1), 4000
    ranks = [rng.permutation(n)[: len(gains)] + 1 for _ in range(draws)]
    scores = [
        {"ndcg@10": ndcg(at, np.array(gains)), "mrr@10": reciprocal_rank(at), "recall@10": recall(at)} for at in ranks
    ]
    floors = ranking_floors([gains], [n])
    assert set(floors) >= {"ndcg@10", "mrr@10", "recall@10"}
    for name, floor in floors.items():
        if name not in scores[0]:
            continue
        values = 100 * np.array([each[name] for each in scores])
        error = max(values.std() / draws**0.5, 1e-9)
        assert abs(floor.value - values.mean()) < 4 * error, name


def test_floors_of_rankings_are_means_over_queries() -> None:
    one, other, both = (
        ranking_floors(*each) for each in (([[1.0]], [5]), ([[1.0, 2.0]], [9]), ([[1.0], [1.0, 2.0]], [5, 9]))
    )
    for name, floor in both.items():
        assert floor.value == pytest.approx((one[name].value + other[name].value) / 2)


def test_a_class_is_rare_below_a_fifth_of_the_largest() -> None:
    assert [has_rare_class(each) for each in ([100, 20], [100, 19], [50] * 20, [7])] == [False, True, False, False]
