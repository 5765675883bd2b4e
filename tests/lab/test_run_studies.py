"""A recipe that pretrains is done, done again for nothing, interrupted, shared, and goes on without what fails."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.embedded import embedded_task
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.values import Protocol
from layerprobe.lab import run as module
from layerprobe.lab.dropbench.bench import bench_predictors
from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.lab.recipe import Recipe, RecipeModel, RecipeTask
from layerprobe.lab.results import RecipeResult
from layerprobe.lab.run import plan_recipe, run_recipe
from layerprobe.results.document import render
from layerprobe.tasks.values import TaskSettings
from tests.lab.recipes import SMALL, chain, study
from tests.results.contract import assert_keeps_contract


def entries(result: RecipeResult) -> tuple[Any, ...]:
    assert result.zoo is not None
    return result.zoo.entries


def test_every_model_becomes_an_entry(result: RecipeResult, folder: Path) -> None:
    assert [entry.name for entry in entries(result)] == [model.name for model in SMALL.everything]
    by_name = {entry.name: entry for entry in entries(result)}
    assert set(by_name["s-rtd-seed0"].cka) == {"mlm twin, same seed", "mlm twin, other seed"}
    assert set(by_name["s-mlm-seed0"].cka) == {"mlm twin, other seed"}
    assert set(by_name["s-random-seed1"].budgets) == {"gentle", "fast"}
    assert result.failures == ()
    assert {each.family for each in result.effects} == {"rtd", "random"}
    assert result.pretrainings["s-rtd-seed1"].protocol.objective == "rtd"
    assert len(result.rows) == 6 * 2 * 3


def test_files_read_back(result: RecipeResult, folder: Path) -> None:
    assert read_zoo(folder / "zoo.json").entries == entries(result)
    assert from_json(RecipeResult, to_json(result)) == result
    assert len(bench_predictors(read_zoo(folder / "zoo.json"), strategies=(), draws=5).budgets) == 2


def test_every_objective_is_compared_with_its_twin_under_every_budget(result: RecipeResult) -> None:
    assert_keeps_contract(result, long_names=True)
    conclusion = result.conclusion
    assert conclusion.case == "objective"
    assert (conclusion.names["objective"], conclusion.names["budget"]) == ("rtd", "fast")
    others = [(check.names["objective"], check.names["budget"]) for check in conclusion.checks]
    assert others == [("random", "fast"), ("rtd", "gentle"), ("random", "gentle")]
    of_fast = next(effect for effect in result.effects if not effect.size and effect.budget == "fast")
    assert conclusion.facts["difference"].value == of_fast.mean
    assert conclusion.facts["pairs"].value == 2
    page = render(result)
    assert "Does the last layer drop?" in page
    assert "Differences from the MLM twin" in page


def test_a_pretraining_whose_loss_does_not_fall_has_failed(result: RecipeResult) -> None:
    for done in result.pretrainings.values():
        assert_keeps_contract(done, is_read=False)
    done = result.pretrainings["s-rtd-seed1"]
    assert dataclasses.replace(done, metrics=done.metrics[::-1]).verdict == "failed"
    assert result.pretrainings["s-random-seed0"].conclusion.case == "untrained"


def test_a_second_time_nothing_is_made(result: RecipeResult, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.lab.pretraining.loop.train", None)
    monkeypatch.setattr("layerprobe.finetuning.runs.RunWorker.__call__", None)
    again = run_recipe(SMALL, folder)
    assert (entries(again), again.effects) == (entries(result), result.effects)


def test_a_plan_says_what_is_there(result: RecipeResult, folder: Path, tmp_path: Path) -> None:
    def stored(recipe: Recipe, out: Path) -> set[tuple[int, int]]:
        return {(job["stored"], job["trainings"]) for job in plan_recipe(recipe, out).jobs}

    # a pretraining, and three layers with one seed under each of two budgets
    assert stored(SMALL, folder) == {(1, 1), (3, 3)}
    assert stored(study(seeds=(0, 1, 2)), folder) == {(1, 1), (3, 9)}
    assert stored(SMALL, tmp_path / "none") == {(0, 1), (0, 3)}
    assert not (tmp_path / "none").exists()


def test_another_study_in_the_folder_is_refused(result: RecipeResult, folder: Path) -> None:
    (step,) = SMALL.steps
    other = study({"protocol": dataclasses.replace(step.protocol, steps=4)})  # type: ignore[union-attr, type-var]
    with pytest.raises(DataError, match=r"s-mlm-seed0 has another pretrained model: .* settings differ"):
        run_recipe(other, folder)


def exploding(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Give the model of this name a learning rate with which its loss is not finite."""
    whole = module.pretrain

    def pretrain(out: Path, *arguments: Any, protocol: Any, **values: Any) -> Any:
        if out.name == name:
            protocol = dataclasses.replace(protocol, learning_rate=1e38, steps=30, warmup=0.0)
        return whole(out, *arguments, protocol=protocol, **values)

    monkeypatch.setattr(module, "pretrain", pretrain)


def without(folder: Path, name: str, to: Path) -> Path:
    """Copy the folder of a study, with all but one model."""
    return Path(shutil.copytree(folder, to / "copy", ignore=shutil.ignore_patterns(name)))


@pytest.mark.slow
def test_a_loss_that_is_not_finite_leaves_out_that_model_alone(
    result: RecipeResult, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exploding(monkeypatch, "s-mlm-seed1")
    found = run_recipe(SMALL, without(folder, "s-mlm-seed1", tmp_path))
    assert [each["model"] for each in found.failures] == ["s-mlm-seed1"]
    assert found.failures[0]["reason"].startswith("the loss became nan at step ")
    references = {entry.name: set(entry.cka) for entry in entries(found) if "random" not in entry.name}
    assert references == {
        "s-mlm-seed0": set(),
        "s-rtd-seed0": {"mlm twin, same seed"},
        "s-rtd-seed1": {"mlm twin, other seed"},
    }


def test_a_corpus_smaller_than_a_batch_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"line {number}" for number in range(7)))
    with pytest.raises(DataError, match="expected at least 8 distinct texts, a batch, got 7"):
        run_recipe(study({"corpus": (str(texts),)}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_every_model_and_task_becomes_an_entry(tmp_path: Path) -> None:
    """Two tasks, one of whose test pairs are all that are not used otherwise, with scans; files without folders."""
    pairs, texts, told = tmp_path / "pairs.csv", tmp_path / "texts.txt", embedded_task(train=60).train
    assert told.second is not None
    rows = zip(told.first, told.second, told.targets, strict=True)
    pairs.write_text("\n".join(f"{first},{second},{5 * target}" for first, second, target in rows))
    texts.write_text("\n".join(f"the {number} dogs of number {number}" for number in range(60)))
    settings = TaskSettings(source=str(pairs), score_range=(0.0, 5.0))
    both = study(
        {"objectives": ("mlm", "rtd"), "corpus": (str(texts),)},
        tasks=(
            RecipeTask(name="words", examples=(24, 20, 20)),
            RecipeTask(settings=settings, examples=(20, 10, None)),
        ),
        budgets={"fast": SMALL.budgets["fast"]},
        scans={"falling": (0, 1), "sandwich": (0,)},
        seeds=(0, 1),
    )
    result = run_recipe(both, tmp_path / "out", workers=2)
    names = [f"{model.name}-{task}" for model in both.everything for task in ("words", "pairs.csv")]
    assert [entry.name for entry in entries(result)] == names
    assert {(entry.corpus, entry.task) for entry in entries(result)} == {
        ("texts.txt", "words"),
        ("texts.txt", "pairs.csv"),
    }
    assert str(tmp_path) not in (tmp_path / "out" / "zoo.json").read_text()
    for entry in entries(result):
        tuned = entry.budgets["fast"]
        assert [(scan.weighting, scan.seed) for scan in tuned.scans] == [
            *(("falling", seed) for seed in (0, 1)),
            ("sandwich", 0),
        ]
        assert tuned.validation_errors is not None
        assert tuned.test_errors is not None
        expected = (20, 20) if entry.task == "words" else (10, 30)
        assert (tuned.validation_errors.n_items, tuned.test_errors.n_items) == expected
        np.testing.assert_allclose(np.array(tuned.epochs).max(axis=2), tuned.validation)
        assert len(tuned.halves) == 2
    assert {(each.task, len(each.values)) for each in result.effects} == {("words", 2), ("pairs.csv", 2)}
    assert result.conclusion.checks[0].names == {"objective": "rtd", "task": "pairs.csv", "budget": "fast"}


@pytest.mark.slow
def test_models_that_exist_become_a_zoo(model: Path, reference: Path, data: Path, tmp_path: Path) -> None:
    """As in the contest: each against a reference, on which every rule can be played."""
    models = [
        RecipeModel(name=name, model=Model(str(one)), family=family, reference=str(other))
        for name, one, family, other in (("a", model, "mlm", reference), ("b", reference, "rtd", model))
    ]
    found = run_recipe(
        chain(model, data, tmp_path / "cache", models=tuple(models), layers=None, budgets={"one": Protocol(epochs=1)}),
        tmp_path / "out",
    )
    made = read_zoo(tmp_path / "out" / "zoo.json")
    assert [(each.name, each.family, each.n_blocks) for each in made.entries] == [("a", "mlm", 3), ("b", "rtd", 5)]
    assert entries(found) == made.entries
    assert found.effects == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray opens what it closes when its process ends
@pytest.mark.parametrize("ray", [None, "local"])
def test_two_processes_give_the_same(result: RecipeResult, tmp_path: Path, ray: str | None) -> None:
    if ray:
        pytest.importorskip("ray")
    assert entries(run_recipe(SMALL, tmp_path, workers=2, ray=ray)) == entries(result)
