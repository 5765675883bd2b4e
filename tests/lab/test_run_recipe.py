"""A recipe against its steps one by one; done once, shared, killed and resumed; and what is refused."""

import dataclasses
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.comparison.compare import compare
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError, TaskError, UnsupportedArchitectureError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import run_items
from layerprobe.finetuning.runs import MODEL
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import best_by_validation
from layerprobe.lab.pretraining.run import adapt
from layerprobe.lab.recipe import AverageStep, Recipe, RecipeModel
from layerprobe.lab.results import RecipeResult, RecipeRow
from layerprobe.lab.run import plan_recipe, run_recipe
from layerprobe.stats.crossed import crossed
from layerprobe.tasks.loading import load_corpus, load_settings
from tests.lab.recipes import ADAPTATION, FAST, adaptation, chain, numbers, task, whole_chain, words
from tests.models import given, save_tiny
from tests.results.contract import assert_keeps_contract


def stored(recipe: Recipe) -> list[tuple[int, int]]:
    return [(step["stored"], step["trainings"]) for step in plan_recipe(recipe).jobs]


def scores(rows: list[RecipeRow]) -> dict[int, tuple[float, ...]]:
    return {row.outcome.layer: row.outcome.scores for row in rows}


def rows_of(result: RecipeResult, step: str, *, alone: bool = False) -> list[RecipeRow]:
    return [row for row in result.rows if (row.step, row.alone) == (step, alone)]


WORDS, PAIRS = "fine-tuning on words-train.csv", "fine-tuning on pairs-train.csv"


@pytest.fixture(scope="module")
def by_hand(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The steps of the whole chain one by one, by the functions that know nothing of recipes."""
    root = tmp_path_factory.mktemp("by-hand")
    options = Model(device="cpu", cache_dir=root / "cache")
    first, second = (load_settings(task(data, name).settings) for name in ("words", "pairs"))
    adapt(given(model, options), load_corpus([data / "texts.txt"]), root / "adapted", protocol=ADAPTATION)
    found: dict[str, Any] = {"words": {}, "pairs": {}, "direct": {}, "influences": {}, "curve": {}}
    before = extract(given(model, options), second.test.texts)
    for layer in (1, 3):
        for seed in (0, 1):
            common: dict[str, Any] = {"seeds": [seed], "protocol": FAST, "save_models": True}
            runs = finetune(given(root / "adapted", options), first, [layer], **common).runs
            left = runs[0].directory / MODEL
            further = finetune(given(left, options), second, [layer], **common).runs
            found["words"][layer, seed] = runs[0].test["spearman"]
            direct = finetune(given(model, options), second, [layer], **common).runs
            found["pairs"][layer, seed] = further[0].test["spearman"]
            found["direct"][layer, seed] = direct[0].test["spearman"]
            after, alone = (run_items(second, runs).of(runs) for runs in (further, direct))
            assert after is not None
            assert alone is not None
            found["influences"][layer, seed] = (after - alone)[0]
            if seed == 0:
                last = further[0].directory / MODEL
                comparison = compare(extract(given(last, options), before.texts), before, device="cpu")
                found["curve"][layer] = [comparison.map.values[index][index] for index in range(layer + 1)]
    return found


@pytest.mark.slow
def test_a_recipe_is_its_steps_one_by_one(whole: RecipeResult, by_hand: dict[str, Any]) -> None:
    direct = rows_of(whole, PAIRS, alone=True)
    for rows, name in ((rows_of(whole, WORDS), "words"), (rows_of(whole, PAIRS), "pairs"), (direct, "direct")):
        assert scores(rows) == {layer: tuple(by_hand[name][layer, seed] for seed in (0, 1)) for layer in (1, 3)}


@pytest.mark.slow
def test_what_is_added_is_the_paired_difference_over_seeds(whole: RecipeResult, by_hand: dict[str, Any]) -> None:
    for row in rows_of(whole, PAIRS):
        layer = row.outcome.layer
        differences = [by_hand["pairs"][layer, s] - by_hand["direct"][layer, s] for s in (0, 1)]
        psi = np.stack([by_hand["influences"][layer, s] for s in (0, 1)])
        assert row.added == crossed(differences, psi, level=0.95, metric="spearman", unit="pair")
    best = best_by_validation([row.outcome for row in rows_of(whole, PAIRS)])
    conclusion, added = whole.conclusion, next(row.added for row in rows_of(whole, PAIRS) if row.outcome is best)
    assert added is not None
    assert (conclusion.case, conclusion.names["layer"]) == ("added", best.layer)
    assert (conclusion.facts["added"].value, conclusion.facts["added"].interval) == (added.value, added.interval)
    assert conclusion.facts["added"].over == ("24 pairs", "2 seeds")
    assert conclusion.facts["alone"].value == pytest.approx(
        statistics.fmean(scores(rows_of(whole, PAIRS, alone=True))[best.layer])
    )


@pytest.mark.slow
def test_cka_is_that_of_the_first_seed_with_the_start(whole: RecipeResult, by_hand: dict[str, Any]) -> None:
    trained = [one for one in whole.cka if one.after and one.other is None]
    assert list(dict.fromkeys((one.kept, one.seed) for one in trained)) == [(None, 0), (1, 0), (3, 0)]
    for layer, curve in by_hand["curve"].items():
        of = [one for one in trained if one.kept == layer]
        np.testing.assert_allclose([one.value for one in of], curve, atol=1e-12)
        assert all(one.interval and one.interval[0] < one.value < one.interval[1] for one in of)


def test_a_reference_of_another_depth_is_met_at_the_depth_of_the_whole_model(
    whole: RecipeResult, reference: Path
) -> None:
    of = [one for one in whole.cka if one.other == str(reference)]
    assert [one.other_layer for one in of if not one.after] == [0, 2, 3, 5]
    assert [one.other_layer for one in of if one.kept == 1] == [0, 2]


def test_it_shows_itself_and_reads_back(whole: RecipeResult) -> None:
    assert from_json(RecipeResult, to_json(whole)) == whole
    assert_keeps_contract(whole, long_names=True)


def test_an_adaptation_whose_loss_does_not_fall_has_failed(whole: RecipeResult) -> None:
    ((done,),) = whole.adaptations.values()
    assert_keeps_contract(done, is_read=False)
    assert done.verdict == "decided"
    assert dataclasses.replace(done, metrics=done.metrics[::-1]).verdict == "failed"


@pytest.mark.slow
def test_cka_is_of_texts_that_are_cut_as_on_the_task(model: Path, reference: Path, data: Path, tmp_path: Path) -> None:
    short = dataclasses.replace(FAST, max_length=4)
    recipe = chain(
        *(model, data, tmp_path),
        **{"reference": str(reference), "layers": (1,), "seeds": (0,), "cka": True, "budgets": {"fast": short}},
    )
    of = [one for one in run_recipe(recipe).cka if not one.after]
    options = Model(device="cpu", cache_dir=tmp_path, max_length=4)
    texts = load_settings(task(data).settings).test.texts
    ours, theirs = (extract(given(name, options), texts) for name in (model, reference))
    values = compare(ours, theirs, device="cpu").map.values
    np.testing.assert_allclose([one.value for one in of], [values[o.layer][o.other_layer] for o in of], atol=1e-12)


@pytest.mark.slow
def test_averages_are_of_each_model_and_task(model: Path, data: Path, tmp_path: Path) -> None:
    averages = [AverageStep(of=of) for of in ("layers", "scans", "seeds", "models")]  # type: ignore[arg-type]
    models = [RecipeModel(name=name, model=Model(str(model), random_init=at)) for at, name in enumerate("ab")]
    recipe = chain(model, data, tmp_path, *averages, models=tuple(models), scans={"falling": (0, 1)})
    found = run_recipe(recipe)
    layers = ["layer 1", "layer 3"]
    assert [(each.model, [member.label for member in each.members]) for each in found.averages] == [
        *((name, layers) for name in "ab"),
        *((name, [f"layer {layer}" for layer in range(4)]) for name in "ab"),
        *((f"{name}, {layer}", [f"{layer} seed 0", f"{layer} seed 1"]) for name in "ab" for layer in layers),
        ("all models", [f"{name} {layer}" for name in "ab" for layer in layers]),
    ]
    assert found.averages[0].gain is not None
    assert found.averages[0].gain.n_seeds == 2


@pytest.mark.parametrize(("value", "verdict"), [(3.0, "decided"), (-3.0, "failed"), (0.5, "undecided")])
def test_training_first_that_costs_points_has_failed(whole: RecipeResult, value: float, verdict: str) -> None:
    def moved(row: RecipeRow) -> RecipeRow:
        if row.added is None:
            return row
        added = dataclasses.replace(row.added, value=value, interval=(value - 1, value + 1))
        return dataclasses.replace(row, added=added)

    assert dataclasses.replace(whole, rows=tuple(map(moved, whole.rows))).verdict == verdict


def test_the_command(layerprobe: Any, model: Path, data: Path, tmp_path: Path) -> None:
    file, page = tmp_path / "one.toml", tmp_path / "one.html"
    protocol = "learning_rate = 3e-3\nepochs = 2\nbatch_size = 8"
    file.write_text(
        f'layers = [1, 3]\nseeds = 1\n[[models]]\nid = "{model}"\n[[tasks]]\nsource = "{data}/pairs-train.csv"\n'
        f"[budget.fast]\n{protocol}\n"
    )
    planned = layerprobe("lab", "run", file, "--dry-run").out
    assert layerprobe("lab", "run", file, "--dry-run", "--json", "--cache-dir", tmp_path).json["recipe"]["name"]
    assert "fine-tuning on pairs-train.csv, budget fast" in planned
    done = layerprobe("lab", "run", file, "--device", "cpu", "--report", page)
    assert done.code == 0, done.err
    assert "Scores by layer" in page.read_text()
    assert layerprobe("lab", "run", tmp_path / "none.toml").error.startswith("error: cannot read the recipe")


def job(model: Path, data: Path, cache: Path, *, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.lab.recipes", str(model), str(data), str(cache), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def wait_for(process: subprocess.Popen[str], start: str) -> None:
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith(start):
        assert line, f"the recipe ended before {start}"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills with SIGKILL")
def test_a_recipe_killed_again_and_again_gives_the_same(model: Path, data: Path, tmp_path: Path) -> None:
    recipe = whole_chain(model, data, tmp_path / "killed")
    seen = []
    for when in ("adapting", "TMFT layer 3 seed 0", "TMFT layer 3 seed 1"):
        with job(model, data, tmp_path / "killed", pause=0.02) as process:
            wait_for(process, when)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        seen.append(sum(done for done, _ in stored(recipe)))
    assert seen[0] == 0
    assert 0 < seen[1] < seen[2] < 13
    uninterrupted = run_recipe(whole_chain(model, data, tmp_path / "whole"))
    assert numbers(run_recipe(recipe)) == numbers(uninterrupted)


def test_a_layer_that_does_not_exist(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected layers from 0 to 3"):
        run_recipe(chain(model, data, tmp_path, layers=(4,)))


def test_layer_zero_of_an_architecture_that_needs_a_block(data: Path, tmp_path: Path) -> None:
    deberta = save_tiny("deberta-v2", tmp_path / "deberta")
    with pytest.raises(UnsupportedArchitectureError, match=r"does not run without a block.*layers from 1"):
        plan_recipe(chain(deberta, data, tmp_path, words(data), layers=(0, 1)))


def test_what_is_not_there_is_told_before_any_training(model: Path, data: Path, tmp_path: Path) -> None:
    missing = dataclasses.replace(task(data).settings, source=str(data / "nothing.csv"))
    with pytest.raises(TaskError, match=r"nothing\.csv"):
        run_recipe(
            chain(model, data, tmp_path, adaptation(data), tasks=(dataclasses.replace(task(data), settings=missing),))
        )
    with pytest.raises(ModelError, match="the reference of bert cannot be used"):
        run_recipe(chain(model, data, tmp_path, reference=str(tmp_path / "none")))
    with pytest.raises(DataError, match="expected a reference other than bert itself"):
        run_recipe(chain(model, data, tmp_path, reference=f"{model}/../bert"))
    assert not (tmp_path / "adapted").exists()
