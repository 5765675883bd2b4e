"""Numbers of single texts: which files are of that kind, and what their outputs score."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import r2_score

from layerprobe.errors import TaskError
from layerprobe.metrics.scores import fit_scores
from layerprobe.tasks.kind import detect_kind
from layerprobe.tasks.loading import load_task


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0.5", "1", "2"], "regression"),
        (["1990.5", "-3"], "regression"),
        ([str(3 * i) for i in range(30)], "regression"),  # many, with gaps
        ([str(i) for i in range(150)], "classification"),  # the numbers of 150 classes
        (["1", "2", "3", "4", "5"], "classification"),
        (["1.0", "2.0"], "classification"),
        (["0", "10", "100"], "classification"),
        (["0.5", "yes"], "classification"),
    ],
)
def test_numbers_that_are_not_those_of_classes_are_values(cells: list[str], kind: str) -> None:
    assert detect_kind(cells, pairs=False) == kind


def prices(folder: Path, *values: float) -> Path:
    path = folder / "prices.csv"
    path.write_text("text,price\n" + "".join(f"text {i} here,{value}\n" for i, value in enumerate(values)))
    return path


def test_values_outside_of_usual_ranges_are_scaled_by_their_own(tmp_path: Path) -> None:
    path = prices(tmp_path, *(12.5 * i - 50 for i in range(60)))
    task = load_task(path)
    assert (task.kind, task.score_range, task.primary) == ("regression", (-50, 687.5), "spearman")
    assert "read as regression; scaled scores from -50 .. 687.5 to 0 .. 1, a range detected from the data" in task.notes
    targets = [target for split in (task.train, task.validation, task.test) for target in split.gold]
    assert (min(targets), max(targets)) == (0, 1)
    assert load_task(path, score_range=(-100, 900)).score_range == (-100, 900)


def test_whole_numbers_are_values_where_asked_for(tmp_path: Path) -> None:
    path = prices(tmp_path, *(i % 5 for i in range(60)))
    assert load_task(path).kind == "classification"
    task = load_task(path, kind="regression")
    assert (task.kind, task.score_range, task.labels) == ("regression", (0, 4), ())


def test_what_is_no_number_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"prices.csv, line 31: expected a finite score, got 'nan'"):
        load_task(prices(tmp_path, *(0.5 * i for i in range(29)), float("nan"), *range(30)))


def test_r2_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    targets, noise = rng.normal(size=50), rng.normal(size=50)
    for outputs in (targets + noise, 3 * noise, targets):
        assert fit_scores(outputs, targets)["r2"] == pytest.approx(r2_score(targets, outputs))
