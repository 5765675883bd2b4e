"""What is said of fine-tuned models, of one model on one task and of several."""

import dataclasses

import pytest

from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import compared, outcomes
from layerprobe.finetuning.values import FineTuningRun, TuningResult
from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from layerprobe.results.document import render
from layerprobe.results.draw import DODGE, figures
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


def test_what_failed_is_counted_and_says_why() -> None:
    assert RESULT.failures == ("org/a on stsb, layer 2, seed 1: the loss became <nan>",)
    text = Page(render(RESULT)).text
    assert "1 run of 7 failed" in text
    assert "layer 2, seed 1: the loss became <nan>" in text


def said(result: TuningResult) -> tuple[str, str, str]:
    """Return the headline, how certain it is, and the sentence."""
    about = result.conclusion
    return words.headline(about), words.certainty(about), words.sentence(about)


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
    assert said(alone) == (
        "Layer 2 is best by validation",
        "At most 0.4 points behind the best, which is 1 or 2",
        "On test it scores 70.7, 20.5 above layer 3.",
    )
    assert alone.facts["score"].interval == pytest.approx((69.56, 71.84), abs=0.01)
    (enough,) = (check for check in alone.conclusion.checks if check.name == "enough")
    assert words.line(enough, alone.conclusion)[0] == ("Layer 1 is the smallest within 1 point of the best (95 % sure)")
    assert [*alone.table.data["flag"]] == ["may be best, smallest sufficient", "best by validation", None]


def test_validation_chooses_and_test_says_that_another_layer_is_better() -> None:
    runs = [run_of(1, 0, 90.0, 60.0), run_of(1, 1, 90.2, 60.0), run_of(2, 0, 70.0, 80.0), run_of(2, 1, 70.2, 80.0)]
    tuned = result(runs, against=compared(runs, outcomes(runs)))
    assert tuned.best_layer == 2
    assert tuned.verdict is Verdict.UNDECIDED
    assert said(tuned) == (
        "Layer 2 is best by validation",
        "Not decided: the best may be 1, at most 20.0 points better",
        "On test it scores 70.1.",
    )
    assert tuned.table.data["flag"] == ("may be best, smallest sufficient", "best by validation")


def test_a_layer_on_the_floor_is_not_recommended() -> None:
    floor = Floor(value=69.9, by="always predicting the largest class")
    low = result(rows("org/a", "stsb", {1: (60.0, 61.0), 2: (70.0, 71.0)}), floor=floor)
    assert low.verdict is Verdict.FAILED
    assert (
        low.summary
        == "No layer beats a trivial baseline (70.5 at best; always predicting the largest class scores 69.9)"
    )
    assert low.conclusion.choice is None
    assert low.table.data["floor"] == (69.9, 69.9)
    assert low.table.marks == (None, None)
    assert from_json(TuningResult, to_json(low)) == low


def test_other_blocks_are_named() -> None:
    first = rows("org/a", "stsb", {2: (70.0, 71.0)})
    others = [dataclasses.replace(run, blocks=(1, 3), test={"spearman": 60.0}) for run in first]
    both = result(first + others)
    assert both.table.data["kept"] == ("2", "blocks 1, 3")
    assert said(both)[0] == "Layer 2 is best by validation"
    assert words.tiles(both.conclusion)[1] == ("+10.5", "points over blocks 1, 3 on test")
    swapped = [dataclasses.replace(run, validation={"spearman": 90.0}) for run in others]
    assert said(result(first + swapped))[::2] == ("Blocks 1, 3 are best by validation", "On test they score 60.0.")


def test_the_table_has_every_run() -> None:
    of_a = [row for row in RESULT.table.records() if row["task"] == "stsb" and row["model"] == "a"]
    assert [(row["layer"], row["seeds"], row["seed_numbers"], row["by_seed"]) for row in of_a] == [
        (1, 2, (0, 1), (70.0, 71.0)),
        (2, 1, (0,), (80.0,)),
    ]
    assert sum(RESULT.table.data["seeds"]) == len(RESULT.scored)  # type: ignore[arg-type]


def test_a_curve_has_every_seed_and_the_mean_with_its_interval() -> None:
    figure = next(drawing for drawing in figures(RESULT) if drawing.name == "task-1").plot
    seeds, means = figure.data[:2]
    assert list(seeds.y) == [70.0, 71.0, 80.0]
    assert all(layer - 0.1 < x < layer + 0.5 for x, layer in zip(seeds.x, (1, 1, 2), strict=True))
    assert (list(means.x), list(means.y)) == (pytest.approx([1 - DODGE / 2, 2 - DODGE / 2]), [70.5, 80.0])
    low, high = RESULT.outcomes[0].interval or (0.0, 0.0)
    assert means.error_y.array[0] == high - 70.5
    assert means.error_y.arrayminus[0] == 70.5 - low
    assert (means.error_y.array[1], means.error_y.arrayminus[1]) == (0.0, 0.0)
    assert [trace.name for trace in figure.data if trace.showlegend] == ["a", text(HOSTILE)]
