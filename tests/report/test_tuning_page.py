"""The page of fine-tuned models as text: complete and escaped, of one model on one task and of several."""

import dataclasses

import pytest

from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import compared, outcomes
from layerprobe.finetuning.values import FineTuningRun, TuningResult
from layerprobe.results.draw import DODGE
from layerprobe.results.page import declared_page, render
from layerprobe.results.style import text
from layerprobe.stats.values import AgainstBest, Floor
from tests.finetuning.test_differences import run_of

from .conftest import HOSTILE
from .test_page import Page


def rows(
    model: str, task: str, scores: dict[int, tuple[float, ...]], failed: tuple[int, int] | None = None
) -> list[FineTuningRun]:
    made = [
        dataclasses.replace(run_of(layer, seed, score, score), model=model, task=task)
        for layer, by_seed in scores.items()
        for seed, score in enumerate(by_seed)
    ]
    lost = [] if failed is None else [dataclasses.replace(made[0], layer=failed[0], seed=failed[1])]
    return made + [dataclasses.replace(run, validation={}, test={}, error="the loss became <nan>") for run in lost]


def result(
    *curves: list[FineTuningRun], against: AgainstBest | None = None, floor: Floor | None = None
) -> TuningResult:
    by_curve = [outcomes([run for run in runs if not run.error]) for runs in curves]
    return TuningResult(
        level=0.95,
        runs=tuple(run for runs in curves for run in runs),
        outcomes=tuple(outcome for curve in by_curve for outcome in curve),
        floors=(floor,) * len(curves),
        compared=(against,) * len(curves),
    )


RESULT = result(
    rows("org/a", "stsb", {1: (70.0, 71.0), 2: (80.0,)}, failed=(2, 1)),
    rows("org/a", "pairs", {1: (60.0,)}),
    rows(HOSTILE, "stsb", {3: (60.0,)}),
    rows(HOSTILE, "pairs", {3: (55.0,)}),
)


def test_a_finding_comes_first() -> None:
    page = Page(render(declared_page(RESULT)))
    finding = "a on stsb: Layer 2 is best by validation: test Spearman 80.00. Layers have different seeds, so"
    places = [page.text.index(part) for part in (finding, "6 of 7 runs finished", "the loss became <nan>")]
    assert places == sorted(places)
    assert RESULT.failures == ("org/a on stsb, layer 2, seed 1: the loss became <nan>",)


def test_what_is_said_of_layers_that_are_compared() -> None:
    against = AgainstBest(
        scores=(70.47, 70.7, 50.23),
        intervals=((69.0, 72.0), (69.56, 71.84), (49.0, 51.0)),
        behind=(0.8, 0.4, 21.0),
        candidates=(0, 1),
        level=0.95,
        tolerance=1.0,
        chosen=1,
    )
    scores = {1: (70.0, 71.0, 70.4), 2: (70.3, 71.2, 70.6), 3: (50.0, 50.5, 50.2)}
    alone = result(rows("org/a", "stsb", scores), against=against)
    page = Page(render(declared_page(alone)))
    assert "Layer 2 is best by validation" in page.text
    assert (
        "est Spearman 70.70 (95\u00a0% 69.56 to 71.84), 20.47 above layer 3. At 95\u00a0% "
        "confidence the best layer is 1 or 2, and layer 2 is at most 0.40 points behind it. Layer 1 is the smallest "
        "shown to be within 1 point of the best: 70.47, at most 0.80 behind."
    ) in page.text
    assert [*alone.table.data["flag"]] == ["may be best, smallest sufficient", "best by validation", None]


def test_validation_chooses_and_test_is_shown() -> None:
    runs = [run_of(1, 0, 90.0, 60.0), run_of(1, 1, 90.2, 60.0), run_of(2, 0, 70.0, 80.0), run_of(2, 1, 70.2, 80.0)]
    found = result(runs, against=compared(runs, outcomes(runs)))
    assert found.best_layer == 2
    assert (
        "Layer 2 is best by validation: test Spearman 70.10 (95% 68.83 to 71.37). At 95% confidence the best layer is "
        "1, and layer 2 is at most 20.00 points behind it."
    ) in found.sentence
    assert found.table.data["flag"] == ("may be best, smallest sufficient", "best by validation")


def test_a_layer_on_the_floor_is_not_recommended() -> None:
    floor = Floor(value=69.9, by="always naming the largest class")
    low = result(rows("org/a", "stsb", {1: (60.0, 61.0), 2: (70.0, 71.0)}), floor=floor)
    said = "No layer predicts better than always naming the largest class (Spearman 69.90): layer 2, the best by"
    assert low.sentence.startswith(said)
    assert "Best layer" not in declared_page(low).heading
    assert low.table.data["floor"] == (69.9, 69.9)
    assert low.table.marks == (None, None)
    assert from_json(TuningResult, to_json(low)) == low


def test_other_blocks_are_named() -> None:
    first = rows("org/a", "stsb", {2: (70.0, 71.0)})
    others = [dataclasses.replace(run, blocks=(1, 3), test={"spearman": 60.0}) for run in first]
    found = result(first + others)
    assert found.table.data["kept"] == ("2", "blocks 1, 3")
    assert found.sentence.startswith("Layer 2 is best by validation: test Spearman 70.50")
    assert "10.50 above blocks 1, 3" in found.sentence


def test_what_users_named_is_escaped() -> None:
    assert HOSTILE not in render(declared_page(RESULT)).split("<script")[0]


def test_the_table_has_every_run() -> None:
    of_a = [row for row in RESULT.table.records() if row["task"] == "stsb" and row["model"] == "a"]
    assert [(row["layer"], row["seeds"], row["seed_numbers"], row["by_seed"]) for row in of_a] == [
        (1, 2, (0, 1), (70.0, 71.0)),
        (2, 1, (0,), (80.0,)),
    ]
    assert sum(RESULT.table.data["seeds"]) == len(RESULT.scored)  # type: ignore[arg-type]


def test_a_curve_has_every_seed_and_the_mean_with_its_interval() -> None:
    figure = next(each for each in declared_page(RESULT).figures if each.name == "task-1").plot
    seeds, means = figure.data[:2]
    assert list(seeds.y) == [70.0, 71.0, 80.0]
    assert all(layer - 0.1 < x < layer + 0.5 for x, layer in zip(seeds.x, (1, 1, 2), strict=True))
    assert (list(means.x), list(means.y)) == (pytest.approx([1 - DODGE / 2, 2 - DODGE / 2]), [70.5, 80.0])
    low, high = RESULT.outcomes[0].interval or (0.0, 0.0)
    assert means.error_y.array[0] == high - 70.5
    assert means.error_y.arrayminus[0] == 70.5 - low
    assert (means.error_y.array[1], means.error_y.arrayminus[1]) == (0.0, 0.0)
    assert [trace.name for trace in figure.data if trace.showlegend] == ["a", text(HOSTILE)]
