"""cv and random_state mean what they do in scikit-learn, and scoring names a metric."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    RepeatedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)

from layerprobe.errors import DataError
from layerprobe.probing.run import probe
from layerprobe.probing.values import Probing
from tests.probing.data import layered, scores_of

N = 90
EMBEDDINGS, SIGNAL = layered(N, width=6, strengths=(0.2, 1.0, 0.6))
SCORES = scores_of(SIGNAL)
CLASSES = np.where(SCORES > 0, "high", "low")
GROUPS = np.arange(N) // 3


@pytest.fixture(scope="module", autouse=True)
def no_refits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.probing.probes.REFITTED_NUMBERS", 0)
        yield


def probed(targets: Any = SCORES, **how: Any) -> Probing:
    return probe(EMBEDDINGS, targets, **{"weighted_sum": False, "foldings": 1, **how})


def scores_by_layer(result: Probing) -> list[float]:
    return [layer.metrics[result.primary] for layer in result.layers]


def test_a_splitter_is_as_its_splits_and_as_the_number_of_its_folds() -> None:
    splitter = KFold(5, shuffle=True, random_state=0)
    for cv in (splitter, list(splitter.split(EMBEDDINGS)), splitter.split(EMBEDDINGS)):
        assert scores_by_layer(probed(cv=cv)) == scores_by_layer(probed(cv=5))
    stratified = StratifiedKFold(4, shuffle=True, random_state=7)
    assert scores_by_layer(probed(CLASSES, cv=stratified)) == scores_by_layer(probed(CLASSES, cv=4, random_state=7))
    assert scores_by_layer(probed(cv=None)) == scores_by_layer(probed(cv=np.int64(5)))


def test_repeated_splits_are_foldings() -> None:
    result = probed(cv=RepeatedKFold(n_splits=4, n_repeats=2, random_state=0))
    assert (result.settings.folds, result.settings.foldings) == (4, 2)
    assert result.sources["Folds"] == "2 x 4 folds"


def test_groups_are_the_splitters_and_are_not_divided() -> None:
    result = probed(cv=GroupKFold(4), groups=GROUPS)
    assert (result.n_groups, result.settings.folds) == (30, 4)
    assert probed(cv=PredefinedSplit(GROUPS % 5), groups=GROUPS).settings.folds == 5
    with pytest.raises(DataError, match="splits that divide no group, such as GroupKFold's"):
        probed(cv=KFold(4, shuffle=True, random_state=0), groups=GROUPS)


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (ShuffleSplit(5), "expected splits that test each row once, or equally often, and train on all others"),
        (TimeSeriesSplit(5), "expected splits that test each row once"),
        ([(np.arange(60), np.arange(60, 90))], "got 1 splits of 90 rows that do not"),
        ([*KFold(3).split(EMBEDDINGS), *KFold(4).split(EMBEDDINGS)], "expected splits that test"),
        ([(np.arange(60), np.arange(60, 99))], "indices of the 90 rows: 'index 90 is out of bounds"),
        (LeaveOneOut, "a splitter of scikit-learn, or .train, test. indices of the 90 rows"),
        ("kfold", "Expected `cv` as an integer"),
        (StratifiedKFold(3), "Supported target types are"),
        (KFold(200), "Cannot have number of splits n_splits=200"),
        (2, r"expected 3 to 100 folds \(one of them chooses penalties\), got 2"),
        (KFold(2), "expected 3 to 100 folds"),
        (2.5, "Expected `cv` as an integer"),
    ],
)
def test_other_splits_are_one_line(cv: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        probed(cv=cv)


def test_cosines_have_no_folds() -> None:
    pairs = np.column_stack([np.arange(45), np.arange(45, 90), SCORES[:45]])
    with pytest.raises(DataError, match="expected no splits for pairs, which are scored by cosines"):
        probed(pairs, kind="pairs", cv=KFold(3))


@pytest.mark.parametrize(
    ("targets", "scoring", "primary"),
    [
        (SCORES, "r2", "r2"),
        (CLASSES, "f1_macro", "macro f1"),
        ((SIGNAL[:, :2] > 0).astype(int), "f1_macro", "f1"),
    ],
)
def test_names_of_scorers_are_the_metrics_they_are(targets: Any, scoring: str, primary: str) -> None:
    usual, result = probed(targets), probed(targets, scoring=scoring)
    assert result.primary == primary
    assert [layer.metrics[primary] for layer in usual.layers] == scores_by_layer(result)
    assert all(layer.error for layer in result.layers)


@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "accuracy", 3])
def test_other_metrics_are_one_line(scoring: Any) -> None:
    with pytest.raises(DataError, match="expected scoring as one of spearman, pearson, r2, got"):
        probed(SCORES, scoring=scoring)


def test_seeds_are_whole_numbers() -> None:
    assert probed(random_state=3).settings.seed == 3
    for wrong in ("x", None, np.random.RandomState(1)):
        with pytest.raises(DataError, match="expected random_state as a whole number, got"):
            probed(random_state=wrong)
