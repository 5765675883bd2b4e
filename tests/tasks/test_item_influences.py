"""Influences for every kind of task, also of metrics without a formula."""

from pathlib import Path

import numpy as np
import pytest

from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.kind import KINDS
from tests.toy_kind import toy_kind
from tests.toy_task import OF_EXAMPLES


@pytest.mark.parametrize("kind", OF_EXAMPLES)
def test_every_metric_of_every_kind_has_influences_on_the_scale_of_its_scores(kind: str) -> None:
    rng, n, rules = np.random.default_rng(0), 60, KINDS[kind]
    binary = rules.threshold is not None
    targets = rng.integers(0, 2 if binary else 3, n).astype(float)
    alone = targets + rng.normal(size=n)
    outputs = alone if binary or not rules.labelled else np.eye(3)[targets.astype(int)] + rng.normal(size=(n, 3))
    threshold = 0.5 if binary else None
    scores = evaluate_outputs(kind, outputs, targets, threshold=threshold).metrics
    kept = np.arange(n) != 7
    without = evaluate_outputs(kind, outputs[kept], targets[kept], threshold=threshold).metrics
    for metric in rules.metrics:
        found = item_influences(kind, outputs, targets, metric=metric, threshold=threshold)
        assert found.sum() == pytest.approx(0, abs=1e-9)
        assert found[7] == pytest.approx((n - 1) * (scores[metric] - without[metric]), abs=4, rel=0.05)
    primary = item_influences(kind, outputs, targets, threshold=threshold)
    expected = item_influences(kind, outputs, targets, metric=rules.metrics[0], threshold=threshold)
    np.testing.assert_array_equal(primary, expected)


def test_a_metric_from_outside_is_computed_by_leaving_items_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The correlation of the toy kind has no formula of its own, and the same influences as that of sts."""
    rng = np.random.default_rng(0)
    targets = rng.normal(size=150)
    outputs = targets + rng.normal(size=150)
    with toy_kind(monkeypatch, tmp_path):
        found = item_influences("grading", outputs, targets)
        fit = item_influences("grading", outputs, targets, metric="fit")
    expected = item_influences("sts", outputs, targets, metric="pearson")
    assert np.corrcoef(found, expected)[0, 1] > 0.99
    assert found.std() == pytest.approx(expected.std(), rel=0.1)
    assert fit.sum() == pytest.approx(0, abs=1e-9)
