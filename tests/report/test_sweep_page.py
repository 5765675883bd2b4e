"""The page of a sweep as text: complete and escaped, while it runs and after."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from layerprobe.files.serialisation import from_json
from layerprobe.finetuning.outcomes import outcomes
from layerprobe.finetuning.values import FailedRun
from layerprobe.results.page import render, write_page
from layerprobe.sweeps.page import sweep_curves, sweep_page
from layerprobe.sweeps.values import SweepCurve, SweepResult, sweep_names
from tests.study.test_confirmation import run_of

from .conftest import HOSTILE
from .test_page import Page

FAILED = FailedRun(layer=2, seed=1, message="the loss became <nan>", step=3, versions={})


def curve(model: str, task: str, scores: dict[int, tuple[float, ...]], *, number: int = 1) -> SweepCurve:
    runs = [run_of(layer, seed, score) for layer, by_seed in scores.items() for seed, score in enumerate(by_seed)]
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


def test_the_page_says_what_is_done_and_what_failed() -> None:
    page = Page(render(sweep_page(RESULT)))
    assert "5 of 10 runs done, 1 failed, 4 to come, about 5 min." in page.text
    assert "on stsb, layer 2, seed 1 at step 3: the loss became <nan>" in page.text
    assert "no finished run" in page.text
    done = dataclasses.replace(RESULT, curves=RESULT.curves[1:2], n_runs=1, seconds_left=0.0)
    assert "1 of 1 run done." in Page(render(sweep_page(done))).text


def test_a_finding_comes_first() -> None:
    page = Page(render(sweep_page(RESULT)))
    finding = (
        "on stsb: layer 2 scores highest, 80.0 (Spearman x 100 on test); one seed: the spread over seeds is unknown."
    )
    assert page.text.index(finding) < page.text.index("5 of 10 runs done")
    alone = curve("org/a", "stsb", {1: (70.0, 71.0, 70.4), 2: (70.3, 71.2, 70.6), 3: (50.0, 50.5, 50.2)})
    page = Page(render(sweep_page(SweepResult(curves=(alone,), level=0.95, n_runs=9))))
    assert "Best layer: 2 of a" in page.text
    assert (
        "layer 2 scores highest, 70.7 (Spearman x 100 on test), 20.5 points above layer 3; layer 1 lies within its "
        "95\u00a0% interval."
    ) in page.text
    clear = dataclasses.replace(alone, outcomes=alone.outcomes[1:])
    page = Page(render(sweep_page(SweepResult(curves=(clear,), level=0.95, n_runs=6))))
    assert "above layer 3; no other layer lies within its 95\u00a0% interval." in page.text
    one = dataclasses.replace(alone, outcomes=alone.outcomes[:1])
    page = Page(render(sweep_page(SweepResult(curves=(one,), level=0.95, n_runs=3))))
    assert "layer 1 scores highest, 70.5 (Spearman x 100 on test); no other layer was run." in page.text


def test_tasks_of_one_folder_are_told_apart() -> None:
    twice = (curve("org/a", "data/sick", {1: (70.0,)}), curve("org/a", "data/sick", {1: (60.0,)}, number=2))
    page = Page(render(sweep_page(SweepResult(curves=twice, level=0.95, n_runs=2))))
    assert "sick (sts, task 1)" in page.text
    assert "sick (sts, task 2)" in page.text
    kinds = (twice[0], dataclasses.replace(twice[1], kind="entailment"))
    assert [task for _, task in sweep_names(kinds)] == ["sick (sts)", "sick (entailment)"]
    assert [sweep_names(RESULT.curves)[number][1] for number in (0, 2)] == ["stsb", "pairs.csv"]


def test_what_users_named_is_escaped() -> None:
    assert HOSTILE not in render(sweep_page(RESULT)).split("<script")[0]


def test_the_data_of_the_page_is_the_result(tmp_path: Path) -> None:
    path = write_page(sweep_page(RESULT), tmp_path / "new" / "sweep.html")
    page = path.read_text()
    data = page.split('<script type="application/json" id="study">')[1].split("</script>")[0]
    assert from_json(SweepResult, json.dumps(json.loads(data))) == RESULT


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
    figure = sweep_curves(RESULT.curves[:2], ["a", "b"])
    seeds, means = figure.data[:2]
    assert list(seeds.y) == [70.0, 71.0, 80.0]
    assert [tuple(each) for each in seeds.customdata] == [(1, 0), (1, 1), (2, 0)]
    assert all(layer < x < layer + 0.5 for x, (layer, _) in zip(seeds.x, seeds.customdata, strict=True))
    assert (list(means.x), list(means.y)) == ([1, 2], [70.5, 80.0])
    low, high = RESULT.curves[0].outcomes[0].interval or (0.0, 0.0)
    assert means.error_y.array[0] == high - 70.5
    assert means.error_y.arrayminus[0] == 70.5 - low
    assert (means.error_y.array[1], means.error_y.arrayminus[1]) == (0.0, 0.0)
    assert len(figure.data) == 4
