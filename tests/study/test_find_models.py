"""Finding which layer of which model to keep: one budget, runs kept by model, and what is wrong in one line."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.encoders.architecture import count_parameters
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, TrainingError
from layerprobe.finetuning import runs
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.results import words
from layerprobe.results.conclusion import Verdict
from layerprobe.search.values import SearchAnswer
from layerprobe.study.find import block_costs, find, plan_find
from layerprobe.study.model_search import ModelSearch
from layerprobe.study.values import Finding, Weights
from layerprobe.tasks.values import Task
from tests.models import given, save_tiny
from tests.toy_task import toy_task_of

QUICK = Protocol(learning_rate=3e-3, epochs=1, batch_size=16)
TASK = toy_task_of("sts", train=48, validation=32, test=64)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Tiny models of six and of two blocks."""
    folder = tmp_path_factory.mktemp("two")
    return [
        save_tiny("bert", folder / "six", num_hidden_layers=6),
        save_tiny("electra", folder / "two", num_hidden_layers=2),
    ]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def found(models: list[Path], cache: Path, task: Task = TASK, **settings: Any) -> Finding:
    options = Model(device="cpu", cache_dir=cache)
    return find([given(str(model), options) for model in models], task, protocol=QUICK, **settings)


@pytest.fixture(scope="module")
def result(two: list[Path], cache: Path) -> Finding:
    return found(two, cache, budget=0.2, against_last=1)


def numbers(result: Finding) -> Finding:
    """A result without what differs from time to time."""
    made = [dataclasses.replace(m, run=dataclasses.replace(m.run, seconds=0.0, peak_memory=0)) for m in result.runs]
    untimed: dict[str, Any] = {"rounds_by_layer": (), "weights": Weights(directory="")}
    return dataclasses.replace(result, runs=tuple(made), others=tuple(map(numbers, result.others)), **untimed)


def among_all(result: Finding) -> list[SearchAnswer]:
    """What is known of each model's layers among those of all."""
    answers = [each.among for each in result.models if each.among is not None]
    assert len(answers) == len(result.models)
    return answers


def candidates(result: Finding) -> list[tuple[int, int]]:
    return [(i, layer) for i, among in enumerate(among_all(result)) for layer in among.candidates]


def test_it_says_which_layer_of_which_model(result: Finding, two: list[Path]) -> None:
    assert [each.model.name for each in result.models] == [*map(str, two)]
    means = [each.answer.layers[each.best_layer].mean for each in result.models]
    assert result.place == int(np.argmax(means))
    assert (result.place, result.best_layer) in candidates(result)
    chances = [[belief.chance_best for belief in among.layers] for among in among_all(result)]
    assert sum(sum(own) for own in chances) == pytest.approx(1)
    assert [len(own) for own in chances] == [each.model.n_layers for each in result.models]
    headline, label = words.headline(result.conclusion), result.labels[result.place]
    assert headline.endswith(f", {label}")
    assert headline.startswith("Best guess: ") == (result.verdict is Verdict.UNDECIDED)
    assert result.facts["places"].value == len(candidates(result))
    assert result.facts["chance"].value == among_all(result)[result.place].layers[result.best_layer].chance_best
    proofs = [each.proof_cost for each in result.others]
    assert proofs == [0], "expected a comparison with the last layer of the model to keep alone"
    front = sorted((row["parameters"], row["expected"]) for row in result.table.records() if row["front"])
    assert [score for _, score in front] == sorted(score for _, score in front)
    assert front[-1][1] == pytest.approx(max(means))


@pytest.mark.slow
def test_the_model_that_is_kept_is_compared_with_its_last_layer(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six blocks look best, until the runs of the comparison say otherwise."""
    alone, finding, asked = runs.fine_tune, ModelSearch.finding, list[str]()

    def scored(encoder: Encoder, layer: int, *arguments: Any, **options: Any) -> Any:
        (run,), outputs = alone(encoder, layer, *arguments, **options)
        highest = 80.0 if encoder.n_layers == 3 else 75.0 if asked else 81.0
        made = dataclasses.replace(run, validation=run.validation | {run.primary: highest - layer})
        return (made,), outputs

    def found_one(search: ModelSearch, *arguments: Any, **settings: Any) -> Any:
        asked.append(search.label)
        return finding(search, *arguments, **settings)

    monkeypatch.setattr(runs, "fine_tune", scored)
    monkeypatch.setattr(ModelSearch, "finding", found_one)
    result = found(two, tmp_path, budget=0.9, seeds=1, against_last=4, cross_validation=False)
    assert (asked, result.place) == ([*map(str, two)], 1)
    assert result.best_layer < 2
    assert result.against_last is not None
    assert "test" in {check.name for check in result.conclusion.checks}


def test_the_table_has_a_row_a_model_and_layer(result: Finding) -> None:
    rows = result.table.records()
    assert [(row["model"], row["layer"]) for row in rows] == [
        (label, layer)
        for label, each in zip(result.labels, result.models, strict=True)
        for layer in range(each.model.n_layers)
    ]
    (kept,) = [row for row in rows if row["kept"]]
    assert (kept["flag"], kept["chance_best"]) == (
        "best guess" if result.verdict is Verdict.UNDECIDED else "keep",
        result.facts["chance"].value,
    )
    assert {row["flag"] for row in rows} - {kept["flag"]} <= {"will do", "may be best", "best of its model", None}
    assert sum(row["candidate"] for row in rows) == len(candidates(result))


def test_the_budget_is_shared_by_what_a_block_has_of_parameters(result: Finding, two: list[Path]) -> None:
    checkpoints = [resolve(str(model)) for model in two]
    costs = block_costs(checkpoints)
    sizes = [count_parameters(each.config) for each in checkpoints]
    blocks = [(own[-1] - own[0]) / (len(own) - 1) for own in sizes]
    np.testing.assert_allclose(costs, np.array(blocks) / max(blocks))
    assert block_costs(checkpoints[:1]) == [1.0]
    whole = sum(cost * each.answer.full_sweep for cost, each in zip(costs, result.models, strict=True))
    spent = [cost * (each.answer.spent - each.proof_cost) for cost, each in zip(costs, result.models, strict=True)]
    assert 0 < sum(spent) <= 0.2 * whole
    of_all = sum(cost * each.answer.spent for cost, each in zip(costs, result.models, strict=True))
    assert result.share == pytest.approx(of_all / whole)


def test_blocks_that_share_their_weights_cost_something(tmp_path: Path) -> None:
    albert = resolve(str(save_tiny("albert", tmp_path / "albert")))
    (cost, _) = block_costs([albert, resolve(str(save_tiny("bert", tmp_path / "bert")))])
    assert cost > 0


def test_finished_runs_count_at_no_cost_and_choose_nothing(two: list[Path], tmp_path: Path) -> None:
    plain = found(two, tmp_path / "empty", budget=0.2, cross_validation=False)
    shutil.copytree(tmp_path / "empty", tmp_path / "cache")
    options = Model(device="cpu", cache_dir=tmp_path / "cache")
    finetune(given(str(two[0]), options), TASK, [5], seeds=4, protocol=QUICK)
    result = found(two, tmp_path / "cache", budget=0.2, cross_validation=False)
    asked, expected = (
        [[(made.layer, made.seed) for made in one.runs if not made.is_earlier] for one in result_of.models]
        for result_of in (result, plain)
    )
    assert asked == expected
    (six,) = [one for one in result.models if one.model.n_blocks == 6]
    earlier = [(made.layer, made.seed) for made in six.runs if made.is_earlier]
    assert earlier == [(5, seed) for seed in range(4) if (5, seed) not in asked[0]]
    assert six.answer.layers[5].runs == 4
    assert (result.share, result.facts["runs"]) == (plain.share, plain.facts["runs"])
    (check,) = [check for check in result.conclusion.checks if check.name == "earlier runs"]
    assert check.facts["earlier"].value == len(earlier) > 0


def test_a_plan_is_that_of_all(two: list[Path], cache: Path) -> None:
    options = Model(device="cpu", cache_dir=cache)
    models = [given(str(model), options) for model in two]
    how: dict[str, Any] = {"goes_on": False, "budget": 0.2, "protocol": QUICK}
    plan = plan_find(models, TASK, **how)
    alone = [plan_find([model], TASK, **how) for model in models]
    assert [each["block_steps"] for each in plan["plans"]] == [each["block_steps"] for each in alone]
    assert plan.sentence.count("takes at most about") == 2
    assert plan.sentence.endswith(" in total.")
    with pytest.raises(DataError, match="expected different models"):
        plan_find([models[0], models[0]], TASK, goes_on=False)


# ---- what goes wrong ------------------------------------------------------------------------------------


def test_a_model_that_fails_is_left_out_and_the_others_are_not_lost(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, tried = runs.fine_tune, []

    def failing(encoder: Encoder, layer: int, *arguments: Any, **options: Any) -> Any:
        if encoder.n_layers == 3:
            tried.append(layer)
            raise TrainingError("the loss became nan")
        return alone(encoder, layer, *arguments, **options)

    monkeypatch.setattr(runs, "fine_tune", failing)
    result = found(two, tmp_path, budget=0.25)
    assert [each.model.name for each in result.models] == [str(two[0])]
    assert len(tried) == 3
    assert result.failures[0].startswith(f"{two[1]} is left out: layer ")
    assert result.failures[0].endswith("failed: the loss became nan")
    assert among_all(result)[0].layers[result.best_layer].chance_best > 0


@pytest.mark.slow
def test_a_model_whose_first_run_the_budget_does_not_reach_is_left_out(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = runs.fine_tune

    def failing(encoder: Encoder, layer: int, *arguments: Any, **options: Any) -> Any:
        if encoder.n_layers == 3:
            raise TrainingError("the loss became nan")
        return alone(encoder, layer, *arguments, **options)

    monkeypatch.setattr(runs, "fine_tune", failing)
    options = Model(device="cpu", cache_dir=tmp_path / "cache", pooling="cls")  # every model has a note on layer 0
    models = [*two, save_tiny("roberta", tmp_path / "third", num_hidden_layers=6)]
    protocol = dataclasses.replace(QUICK, pooling="cls")
    result = find([given(str(each), options) for each in models], TASK, protocol=protocol, budget=0.03, start=2)
    assert [each.model.name for each in result.models] == [str(two[0])]
    assert result.failures[:2] == (
        f"{two[1]} is left out: layer 2 failed: the loss became nan",
        f"{models[2]} is left out: the budget was spent before its first run",
    )


@pytest.mark.slow
def test_nothing_is_claimed_of_spoilt_examples(two: list[Path], cache: Path) -> None:
    leaky = TASK.train.join(TASK.test.take(range(4)))
    result = found(two, cache, dataclasses.replace(TASK, train=leaky, keep_overlaps=True), budget=0.2)
    assert result.answer.spoilt
    assert len({belief.chance_best for among in among_all(result) for belief in among.layers}) == 1
    assert result.conclusion.case == "spoilt"
    assert not {"chance", "places", "behind", "gain"} & {*result.facts}
    assert {*result.table.data["chance_best"], *result.table.data["candidate"]} == {None}
