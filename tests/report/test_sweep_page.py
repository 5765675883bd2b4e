"""The page of a sweep as text: complete and escaped, while it runs and after."""

import dataclasses

import pytest

from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import compared, outcomes
from layerprobe.finetuning.values import FailedRun
from layerprobe.results.declared import declared_page
from layerprobe.results.draw import DODGE
from layerprobe.results.page import render
from layerprobe.results.style import text
from layerprobe.stats.values import AgainstBest, Floor
from layerprobe.sweeps.values import SweepCurve, SweepResult, sweep_names
from tests.study.test_confirmation import run_of

from .conftest import HOSTILE
from .test_page import Page

FAILED = FailedRun(layer=2, seed=1, message="the loss became <nan>", step=3, versions={})


def curve(model: str, task: str, scores: dict[int, tuple[float, ...]], *, number: int = 1) -> SweepCurve:
    runs = [
        run_of(layer, seed, score, score) for layer, by_seed in scores.items() for seed, score in enumerate(by_seed)
    ]
    return SweepCurve(
        model=model, task=task, kind="sts", task_number=number, primary="spearman", outcomes=outcomes(runs)
    )


RESULT = SweepResult(
    curves=(
        dataclasses.replace(curve("org/a", "stsb", {1: (70.0, 71.0), 2: (80.0,)}), failed=(FAILED,)),
        curve(HOSTILE, "stsb", {3: (60.0,)}),
        curve("org/a", "data/pairs.csv", {}, number=2),
        curve(HOSTILE, "data/pairs.csv", {3: (55.0,)}, number=2),
    ),
    level=0.95,
    n_runs=10,
    seconds_left=300.0,
)


def test_a_finding_comes_first() -> None:
    page = Page(render(declared_page(RESULT)))
    finding = "on stsb: Layer 2 is best by validation: test Spearman 80.00. Layers have different seeds,"
    places = [page.text.index(part) for part in (finding, "5 of 10 runs done", "the loss became <nan>")]
    assert places == sorted(places)
    alone = curve("org/a", "stsb", {1: (70.0, 71.0, 70.4), 2: (70.3, 71.2, 70.6), 3: (50.0, 50.5, 50.2)})
    against = AgainstBest(
        scores=(70.47, 70.7, 50.23),
        intervals=((69.0, 72.0), (69.56, 71.84), (49.0, 51.0)),
        behind=(0.8, 0.4, 21.0),
        candidates=(0, 1),
        level=0.95,
        tolerance=1.0,
        chosen=1,
    )
    alone = dataclasses.replace(alone, compared=against)
    result = SweepResult(curves=(alone,), level=0.95, n_runs=9)
    page = Page(render(declared_page(result)))
    assert "Best layer by validation: 2 of a" in page.text
    assert (
        "Layer 2 is best by validation: test Spearman 70.70 (95\u00a0% 69.56 to 71.84), 20.47 above layer 3. "
        "At 95\u00a0% "
        "confidence the best layer is 1 or 2, and layer 2 is at most 0.40 points behind it. Layer 1 is the smallest "
        "shown to be within 1 point of the best: 70.47, at most 0.80 behind."
    ) in page.text
    assert [*result.table.data["flag"]] == ["may be best, smallest sufficient", "best by validation", None]
    alone = dataclasses.replace(alone, compared=None)
    one = dataclasses.replace(alone, outcomes=alone.outcomes[:1])
    page = Page(render(declared_page(SweepResult(curves=(one,), level=0.95, n_runs=3))))
    assert "is best by validation: test Spearman 70.47 (95\u00a0% " in page.text
    assert "No other layer was run." in page.text


def test_validation_chooses_and_test_is_shown() -> None:
    runs = [run_of(1, 0, 90.0, 60.0), run_of(1, 1, 90.2, 60.0), run_of(2, 0, 70.0, 80.0), run_of(2, 1, 70.2, 80.0)]
    by_layer = outcomes(runs)
    other = dataclasses.replace(curve("org/a", "stsb", {}), outcomes=by_layer, compared=compared(runs, by_layer))
    result = SweepResult(curves=(other,), level=0.95, n_runs=4)
    page = Page(render(declared_page(result)))
    assert "Best layer by validation: 2 of a" in page.text
    assert (
        "Layer 2 is best by validation: test Spearman 70.10 (95\u00a0% 68.83 to 71.37). "
        "At 95\u00a0% confidence the best layer is "
        "1, and layer 2 is at most 20.00 points behind it."
    ) in page.text
    assert result.table.data["flag"] == ("may be best, smallest sufficient", "best by validation")


def test_a_layer_on_the_floor_is_not_recommended() -> None:
    floor = Floor(value=69.9, by="always naming the largest class")
    low = dataclasses.replace(curve("org/a", "stsb", {1: (60.0, 61.0), 2: (70.0, 71.0)}), floor=floor)
    result = SweepResult(curves=(low,), level=0.95, n_runs=4)
    assert "No layer predicts better than always naming the largest class (Spearman 69.90): layer 2, the best by" in (
        Page(render(declared_page(result))).text
    )
    assert "Best layer" not in declared_page(result).heading
    assert result.table.data["floor"] == (69.9, 69.9)
    assert result.table.data["flag"] == (None, None)
    assert from_json(SweepResult, to_json(result)) == result
    assert "floor" not in to_json(RESULT), "files of older versions have none"


def test_tasks_of_one_folder_are_told_apart() -> None:
    twice = (curve("org/a", "data/sick", {1: (70.0,)}), curve("org/a", "data/sick", {1: (60.0,)}, number=2))
    page = Page(render(declared_page(SweepResult(curves=twice, level=0.95, n_runs=2))))
    assert "sick (sts, task 1)" in page.text
    assert "sick (sts, task 2)" in page.text
    kinds = (twice[0], dataclasses.replace(twice[1], kind="entailment"))
    assert [task for _, task in sweep_names(kinds)] == ["sick (sts)", "sick (entailment)"]
    assert [sweep_names(RESULT.curves)[number][1] for number in (0, 2)] == ["stsb", "pairs.csv"]


def test_what_users_named_is_escaped() -> None:
    assert HOSTILE not in render(declared_page(RESULT)).split("<script")[0]


def test_the_table_has_every_run() -> None:
    rows = [row for row in RESULT.table.records() if row["task"] == "stsb" and row["model"] == "a"]
    assert [(row["layer"], row["seeds"], row["seed_numbers"], row["scores"]) for row in rows] == [
        (1, 2, (0, 1), (70.0, 71.0)),
        (2, 1, (0,), (80.0,)),
    ]
    assert sum(RESULT.table.data["seeds"]) == RESULT.n_done
    assert RESULT.table.data["failed"] == (None, 1, None, None)
    assert RESULT.failures == ("a on stsb, layer 2, seed 1 at step 3: the loss became <nan>",)


def test_a_layer_whose_runs_all_failed_has_a_row_without_scores() -> None:
    lost = dataclasses.replace(RESULT.curves[0], failed=(dataclasses.replace(FAILED, layer=3),))
    row = dataclasses.replace(RESULT, curves=(lost,)).table.records()[-1]
    assert (row["layer"], row["test"], row["scores"], row["failed"]) == (3, None, None, 1)


def test_a_curve_has_every_seed_and_the_mean_with_its_interval() -> None:
    figure = next(each for each in declared_page(RESULT).figures if each.name == "task-1").plot
    seeds, means = figure.data[:2]
    assert list(seeds.y) == [70.0, 71.0, 80.0]
    assert all(layer - 0.1 < x < layer + 0.5 for x, layer in zip(seeds.x, (1, 1, 2), strict=True))
    assert (list(means.x), list(means.y)) == (pytest.approx([1 - DODGE / 2, 2 - DODGE / 2]), [70.5, 80.0])
    low, high = RESULT.curves[0].outcomes[0].interval or (0.0, 0.0)
    assert means.error_y.array[0] == high - 70.5
    assert means.error_y.arrayminus[0] == 70.5 - low
    assert (means.error_y.array[1], means.error_y.arrayminus[1]) == (0.0, 0.0)
    assert [trace.name for trace in figure.data if trace.showlegend] == ["a", text(HOSTILE)]
