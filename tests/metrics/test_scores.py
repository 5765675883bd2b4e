"""Metrics against scikit-learn and by hand, and the threshold against all that there are."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as peer

from layerprobe.errors import DataError
from layerprobe.metrics.scores import best_threshold, f1, macro_f1
from layerprobe.tasks.evaluation import evaluate_outputs

Array = NDArray[np.float64]

# few values, so that outputs tie
DECISIONS = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=30).map(
    lambda rows: (np.array([row[0] / 4 for row in rows]), np.array([float(row[1]) for row in rows]))
)


@given(DECISIONS)
def test_f1_is_that_of_scikit_learn(rows: tuple[Array, Array]) -> None:
    outputs, targets = rows
    predicted = outputs > 0
    assert f1(predicted, targets == 1) == pytest.approx(peer.f1_score(targets, predicted, zero_division=0))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_macro_f1_is_that_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, targets = np.array(rows).T
    expected = peer.f1_score(targets, predicted, average="macro", zero_division=0)
    assert macro_f1(predicted, targets.astype(float)) == pytest.approx(expected)


@given(DECISIONS.filter(lambda rows: rows[1].any()))
def test_no_threshold_is_better_than_the_best(rows: tuple[Array, Array]) -> None:
    outputs, targets = rows

    def score(threshold: float) -> float:
        return f1(outputs >= threshold, targets == 1)

    best = best_threshold(outputs, targets)
    every = [*outputs, *(outputs + 1e-9), outputs.max() + 1]
    assert score(best) == max(map(score, every))
    higher = [threshold for threshold in every if set(outputs >= threshold) and threshold > best]
    same = outputs >= best
    assert all(score(t) < score(best) or ((outputs >= t) == same).all() for t in higher), "of equals the highest"


def test_the_threshold_lies_between_two_outputs() -> None:
    outputs, targets = np.array([0.1, 0.5, 0.9, 0.3]), np.array([0.0, 1.0, 1.0, 0.0])
    assert best_threshold(outputs, targets) == pytest.approx(0.4)
    assert best_threshold(outputs, np.ones(4)) == 0.1
    ties = np.array([0.5, 0.5, 0.5])
    assert best_threshold(ties, np.array([1.0, 0.0, 1.0])) == 0.5
    close = np.array([0.5, np.nextafter(0.5, 0)])
    assert best_threshold(close, np.array([1.0, 0.0])) == 0.5


def test_paraphrase_by_hand() -> None:
    outputs, targets = np.array([0.9, 0.8, 0.7, 0.2]), np.array([1.0, 0.0, 1.0, 0.0])
    found = evaluate_outputs("paraphrase", outputs, targets)
    assert found.threshold == pytest.approx(0.45)
    # three predicted, two of them right; precision 1 at recall 1/2 and 2/3 at recall 1
    assert found.metrics == pytest.approx(
        {"f1": 100 * 2 * 2 / (3 + 2), "average precision": 100 * (0.5 + 0.5 * 2 / 3), "accuracy": 75.0}
    )
    given = evaluate_outputs("paraphrase", outputs, targets, threshold=0.85)
    assert given.threshold == 0.85
    assert given.metrics == pytest.approx(
        {"f1": 100 * 2 / 3, "average precision": found.metrics["average precision"], "accuracy": 75.0}
    )


def test_average_precision_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=50), rng.integers(0, 2, 50).astype(float)
    found = evaluate_outputs("paraphrase", outputs, targets)
    assert found.metrics["average precision"] == 100 * peer.average_precision_score(targets, outputs)


@pytest.mark.parametrize("kind", ["entailment", "classification"])
def test_classes_by_hand(kind: str) -> None:
    outputs = np.array([[3.0, 1, 0], [0, 2, 1], [0, 5, 1], [0, 0, 1]])  # 0, 1, 1, 2
    found = evaluate_outputs(kind, outputs, np.array([0.0, 1.0, 2.0, 2.0]))
    assert found.metrics == pytest.approx({"accuracy": 75.0, "macro f1": 100 * (1 + 2 / 3 + 2 / 3) / 3})
    assert next(iter(found.metrics)) == {"entailment": "macro f1", "classification": "accuracy"}[kind]
    assert found.threshold is None


@pytest.mark.parametrize(("kind", "shape"), [("sts", (4,)), ("paraphrase", (4,)), ("entailment", (4, 2))])
def test_outputs_that_are_not_finite_are_refused(kind: str, shape: Any) -> None:
    outputs = np.zeros(shape)
    outputs[1] = np.nan
    with pytest.raises(DataError, match="expected finite outputs, got NaN or infinity"):
        evaluate_outputs(kind, outputs, np.array([0.0, 1.0, 1.0, 0.0]))
