"""Entries of other packages: they see what they pay for, and nothing that they are scored on."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.errors import DataError
from layerprobe.lab.dropbench.bench import Redraws, bench_predictors, score_strategies
from layerprobe.lab.dropbench.results import Contestant, shown_strategies
from layerprobe.lab.dropbench.strategies import Answer, Recorded, Trial, entry_strategy, load_entry, sweep
from layerprobe.lab.dropbench.zoo import write_zoo
from tests.cli.conftest import Layerprobe, layerprobe  # noqa: F401

from .zoos import DROPPING, RISING, entry, known_zoo, recorded, zoo

INFONCE = (1.0, 1.1, 1.2, 1.4, 1.3, 1.0, 0.9)
OUTSIDE = Path(__file__).parents[2] / "outside"


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of tests/outside can be imported."""
    monkeypatch.syspath_prepend(str(OUTSIDE))


@pytest.fixture(scope="module")
def models() -> list[Recorded]:
    curves: dict[str, Any] = {"metrics": {"InfoNCE": INFONCE}, "labelled": {"probe": RISING}}
    made = [recorded(f"m{number}", "ab"[number % 2], DROPPING, seed=number, **curves) for number in range(4)]
    return [Recorded(entry=model, tuned=model.budgets["converged"]) for model in made]


def play(models: list[Recorded], function: Any) -> Contestant:
    (scores,) = score_strategies(
        models, [entry_strategy("toy", function)], Redraws(counts=np.ones((1, len(models))), level=0.95)
    )
    return scores


def test_an_entry_does_what_the_same_strategy_of_the_lab_does(models: list[Recorded]) -> None:
    """A sweep, written as an entry: same layers, costs and seeds."""

    def one_seed(trial: Trial) -> int:
        return max(range(trial.n_layers), key=lambda layer: (trial.tune(layer), -layer))

    for model in models:
        theirs, ours = entry_strategy("toy", one_seed).choose(model), sweep(1).choose(model)
        assert [(answer.layer, answer.seeds) for answer in theirs] == [(answer.layer, answer.seeds) for answer in ours]
        assert [answer.cost for answer in theirs] == pytest.approx([answer.cost for answer in ours])


def test_what_was_paid_is_not_paid_again(models: list[Recorded]) -> None:
    trial, sweep_steps = Trial(models[0]), 5 * 28
    first = trial.tune(3)
    assert trial.tune(3) == first
    assert trial.spent == pytest.approx(4 / sweep_steps)
    trial.tune(2, epochs=1)
    assert trial.spent == pytest.approx((4 + 1.5) / sweep_steps)
    trial.tune(2)
    assert trial.spent == pytest.approx((4 + 3) / sweep_steps)
    trial.scan()
    trial.scan()
    assert trial.spent == pytest.approx((4 + 3 + 7) / sweep_steps)


def test_a_trial_has_what_was_recorded_and_no_name(models: list[Recorded]) -> None:
    model, trial = models[1], Trial(models[1], first=1)
    assert (trial.n_layers, trial.n_seeds, trial.n_epochs, trial.metric) == (7, 3, 2, "spearman")
    assert trial.readings == ("InfoNCE", "probe")
    assert trial.reading("InfoNCE") == INFONCE
    assert trial.tune(4, seed=2) == model.tuned.validation[4][0], "expected seeds from the second recorded one on"
    assert trial.tune(4, seed=1, epochs=1) == model.tuned.epochs[4][2][0]
    assert trial.scan() == model.tuned.scans[1].validation
    public = [name for name in dir(trial) if not name.startswith("_")]
    seen = {value for name in public if not callable(value := getattr(trial, name))}
    assert model.entry.name not in seen
    assert model.entry.family not in seen


def test_an_entry_needs_the_most_that_it_looks_at(models: list[Recorded]) -> None:
    def reading(name: str) -> Any:
        return lambda trial: int(np.argmax(trial.reading(name)))

    assert play(models, lambda trial: 2).needs == "nothing"
    assert play(models, reading("InfoNCE")).needs == "readings"
    assert play(models, reading("probe")).needs == "labels"
    assert play(models, lambda trial: int(trial.tune(0) > 0)).needs == "training"
    assert play(models, lambda trial: trial.n_layers - 1).cost.value == 0


def test_an_answer_is_scored_on_seeds_that_it_did_not_look_at(models: list[Recorded]) -> None:
    def looks(trial: Trial) -> Answer:
        trial.tune(3)
        return Answer(layer=3, stated=(4, 3), sufficient=3)

    scores = play(models, looks)
    assert scores.fresh
    assert scores.set_size == 2
    assert scores.sufficient is not None
    for model, outcome in zip(models, scores.outcomes, strict=True):
        test = np.array(model.tuned.test)
        means = [np.delete(test, seed, axis=1).mean(axis=1) for seed in range(3)]
        assert outcome.distances == pytest.approx([mean.max() - mean[3] for mean in means])
    assert not play(models, lambda trial: max(range(3), key=lambda seed: trial.tune(3, seed=seed))).fresh


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda trial: 7, "the entry toy failed on m0: expected a layer from 0 to 6, got 7"),
        (
            lambda trial: 2.0,
            "failed on m0: TypeError: 'float' object cannot be interpreted as an integer",
        ),
        (lambda trial: Answer(layer=1, stated=(-1,)), "expected a layer from 0 to 6, got -1"),
        (lambda trial: trial.tune(0, seed=3), "expected a seed from 0 to 2, got 3"),
        (lambda trial: trial.tune(0, epochs=0), "expected epochs from 1 to 2, got 0"),
        (lambda trial: trial.reading("InfoNce"), "expected a reading of InfoNCE, probe, got 'InfoNce'"),
        (lambda trial: trial.scan("sandwich"), "expected a model with sandwich scans, got one without"),
        (lambda trial: trial.scan("steep"), "weighting is 'steep', expected one of 'falling'"),
        (lambda trial: 1 // 0, "the entry toy failed on m0: ZeroDivisionError: integer division or modulo by zero"),
    ],
)
def test_an_entry_that_fails_is_named_in_one_line(function: Any, message: str, models: list[Recorded]) -> None:
    with pytest.raises(DataError) as caught:
        play(models, function)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_epochs_that_were_not_kept_cannot_be_had() -> None:
    model = Recorded(entry=known_zoo().entries[0], tuned=known_zoo().entries[0].budgets["gentle"])
    assert Trial(model).tune(4) == 80
    with pytest.raises(DataError, match="this zoo has no scores by epoch"):
        Trial(model).tune(4, epochs=1)


@pytest.mark.usefixtures("outside")
def test_an_entry_is_found_by_its_package() -> None:
    data = zoo(entry("a", "a", DROPPING, metrics={"InfoNCE": INFONCE}), entry("b", "b", metrics={"InfoNCE": INFONCE}))
    strategies = [load_entry("toy_strategy:middle"), load_entry("toy_strategy:uphill")]
    (budget,) = bench_predictors(data, strategies=strategies, draws=10).budgets
    shown = {each.name: each for each in shown_strategies(budget)}
    assert shown["toy_strategy:middle"].source == "The layer in the middle: it looks at nothing."
    assert [outcome.layers for outcome in shown["toy_strategy:middle"].outcomes] == [(3,) * 3] * 2
    assert [outcome.layers for outcome in shown["toy_strategy:uphill"].outcomes] == [(4,) * 3] * 2
    assert shown["toy_strategy:uphill"].needs == "training"
    assert math.isclose(shown["toy_strategy:uphill"].cost.value, (4 + 5) / 140)


@pytest.mark.usefixtures("outside")
def test_the_command_plays_entries(layerprobe: Layerprobe, tmp_path: Path) -> None:  # noqa: F811
    data = zoo(entry("a", "a", DROPPING, metrics={"InfoNCE": INFONCE}), entry("b", "b", metrics={"InfoNCE": INFONCE}))
    write_zoo(data, tmp_path / "zoo.json")
    arguments = ("lab", "bench", tmp_path / "zoo.json", "--entry", "toy_strategy:middle", "-e", "toy_strategy:uphill")
    printed = layerprobe(*arguments)
    assert printed.code == 0, printed.err
    rows = [line.split("  ")[0] for line in printed.out.splitlines() if line.startswith("toy_strategy:")]
    assert rows == ["toy_strategy:middle", "toy_strategy:uphill"]
    failed = layerprobe("lab", "bench", tmp_path / "zoo.json", "--entry", "toy_strategy:broken")
    assert failed.code == 1
    assert failed.error.startswith("error: the entry toy_strategy:broken failed on a: ZeroDivisionError")
    assert "a layer from 0 to 6, got 7" in layerprobe(*arguments[:3], "--entry", "toy_strategy:beyond").error
