"""Chains of tiny models: what a step starts from, what is shared, what is left after a kill, and what is refused."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.comparison.compare import compare
from layerprobe.context import settings
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError, TaskError, UnsupportedArchitectureError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.saved import MODEL
from layerprobe.finetuning.tuning import finetune, items_of, saved_models
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.lab.chains.run import plan_chain, run_chain
from layerprobe.lab.chains.values import Chain, ChainResult, FinetuneStep
from layerprobe.lab.pretraining.run import adapt
from layerprobe.results.estimate import Estimate
from layerprobe.stats.crossed import crossed
from layerprobe.tasks.loading import load_corpus, load_settings
from tests.lab.chains.jobs import ADAPTATION, FAST, adaptation, numbers, pairs, run_here, whole_chain, words
from tests.models import given, save_tiny


def short(model: Path, steps: tuple[Any, ...], **changes: Any) -> Chain:
    settings: dict[str, Any] = {"name": "short", "layers": (1, 3), "seeds": (0, 1), "cka": False, **changes}
    return Chain(model=str(model), steps=steps, **settings)


def plan(chain: Chain, cache: Path) -> Estimate:
    return plan_chain(chain, options=Model(device="cpu", cache_dir=cache))


def stored(chain: Chain, cache: Path) -> list[tuple[int, int]]:
    return [(step["stored"], step["trainings"]) for step in plan(chain, cache).jobs]


def scores(outcomes: tuple[LayerOutcome, ...]) -> dict[int, tuple[float, ...]]:
    return {outcome.layer: outcome.scores for outcome in outcomes}


@pytest.fixture(scope="module")
def by_hand(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The steps of the whole chain one by one, by the functions that know nothing of chains."""
    root = tmp_path_factory.mktemp("by-hand")
    options = Model(device="cpu", cache_dir=root / "cache")
    first, second = (load_settings(step.task) for step in (words(data), pairs(data)))
    adapt(given(model, options), load_corpus([data / "texts.txt"]), root / "adapted", protocol=ADAPTATION)
    found: dict[str, Any] = {"words": {}, "pairs": {}, "direct": {}, "influences": {}, "curve": {}}
    before = extract(given(model, options), second.test.texts)
    for layer in (1, 3):
        for seed in (0, 1):
            common: dict[str, Any] = {"seeds": [seed], "protocol": FAST, "save_models": True}
            runs = finetune(given(root / "adapted", options), first, [layer], **common)
            left = saved_models(given(root / "adapted", options), runs, first)[0] / MODEL
            further = finetune(given(left, options), second, [layer], **common)
            found["words"][layer, seed] = runs[0].test["spearman"]
            direct = finetune(given(model, options), second, [layer], **common)
            found["pairs"][layer, seed] = further[0].test["spearman"]
            found["direct"][layer, seed] = direct[0].test["spearman"]
            after, alone = (
                items_of(given(start, options), runs, second).of(runs)
                for start, runs in ((left, further), (model, direct))
            )
            assert after is not None
            assert alone is not None
            found["influences"][layer, seed] = (after - alone)[0]
            if seed == 0:
                last = saved_models(given(left, options), further, second)[0] / MODEL
                comparison = compare(extract(given(last, options), before.texts), before, device="cpu")
                found["curve"][layer] = [comparison.map.values[index][index] for index in range(layer + 1)]
    return found


@pytest.mark.slow
def test_a_chain_is_its_steps_one_by_one(whole: ChainResult, by_hand: dict[str, Any]) -> None:
    for outcomes, name in (*zip(whole.trail.outcomes, ("words", "pairs"), strict=True), (whole.direct, "direct")):
        expected = {layer: tuple(by_hand[name][layer, seed] for seed in (0, 1)) for layer in (1, 3)}
        assert scores(outcomes) == expected


@pytest.mark.slow
def test_the_effect_is_the_paired_difference_over_seeds(whole: ChainResult, by_hand: dict[str, Any]) -> None:
    for layer, (value, effect) in whole.added.items():
        differences = [by_hand["pairs"][layer, s] - by_hand["direct"][layer, s] for s in (0, 1)]
        psi = np.stack([by_hand["influences"][layer, s] for s in (0, 1)])
        expected, joint = (
            crossed(differences, psi, level=level, metric="spearman", unit="pair") for level in (0.95, 0.975)
        )  # one of two layers
        assert expected is not None
        assert joint is not None
        assert value == pytest.approx(np.mean(differences))
        assert effect == expected
        assert whole.joint(expected).interval == pytest.approx(joint.interval)
    assert "together" not in whole.effect_sentence
    assert "95% intervals over new pairs and new seeds, 2 seeds after one adaptation)" in whole.effect_sentence


@pytest.mark.slow
def test_cka_is_that_of_the_first_seed_with_the_start(whole: ChainResult, by_hand: dict[str, Any]) -> None:
    found = whole.similarities
    assert found is not None
    assert [each.layer for each in found.trained] == [None, 1, 3]
    for each in found.trained[1:]:
        assert each.layer is not None
        assert each.seed == 0
        np.testing.assert_allclose(each.to_start.values, by_hand["curve"][each.layer], atol=1e-12)
        assert each.to_start.lower is not None
        assert each.to_start.upper is not None
        assert all(
            low < v < high
            for low, v, high in zip(each.to_start.lower, each.to_start.values, each.to_start.upper, strict=True)
        )


def test_a_reference_of_another_depth_is_met_at_the_depth_of_the_whole_model(whole: ChainResult) -> None:
    found = whole.similarities
    assert found is not None
    assert found.start_to_reference is not None
    assert found.start_to_reference.other_layers == (0, 2, 3, 5)
    for each in found.trained[1:]:
        assert each.to_reference is not None
        assert each.layer is not None
        assert each.to_reference.other_layers == (0, 2, 3, 5)[: each.layer + 1]


def test_cka_is_of_texts_that_are_cut_as_in_the_last_step(
    model: Path, reference: Path, data: Path, tmp_path: Path
) -> None:
    first, step = (
        dataclasses.replace(each, protocol=dataclasses.replace(each.protocol, max_length=length))
        for each, length in ((words(data), 8), (pairs(data), 4))
    )
    chain = short(model, (first, step), layers=(1,), seeds=(0,), cka=True, reference=str(reference))
    found = run_here(chain, tmp_path / "cache").similarities
    assert found is not None
    assert found.start_to_reference is not None
    options = Model(device="cpu", cache_dir=tmp_path, max_length=4)
    texts = load_settings(step.task).test.texts
    ours, theirs = (extract(given(name, options), texts) for name in (model, reference))
    values = compare(ours, theirs, device="cpu").map.values
    expected = [values[layer][other] for layer, other in enumerate(found.start_to_reference.other_layers)]
    np.testing.assert_allclose(found.start_to_reference.values, expected, atol=1e-12)


def test_the_control_has_random_weights_in_every_step(
    whole: ChainResult, model: Path, data: Path, tmp_path: Path
) -> None:
    (control,) = whole.controls
    assert control.random_init == 7
    chain = whole_chain(model, data, random_init=7, control=(), cka=False, baseline=False)
    alone = run_here(chain, tmp_path)
    assert scores(control.outcomes[-1]) == scores(alone.outcomes)
    assert scores(control.outcomes[-1]) != scores(whole.outcomes)


@pytest.mark.slow
def test_what_is_done_is_read(model: Path, data: Path, tmp_path: Path) -> None:
    chain = whole_chain(model, data)
    assert stored(chain, tmp_path) == [(0, 1), (0, 4), (0, 4)] * 2 + [(0, 4)]
    first = run_here(chain, tmp_path)
    assert stored(chain, tmp_path) == [(1, 1), (4, 4), (4, 4)] * 2 + [(4, 4)]
    told: list[str] = []
    with settings(progress=lambda task, done, total: told.append(task)):
        again = run_here(chain, tmp_path)
    assert numbers(again) == numbers(first)
    assert told == []


@pytest.mark.slow
def test_chains_share_the_steps_that_they_begin_with(model: Path, data: Path, tmp_path: Path) -> None:
    run_here(short(model, (adaptation(data), words(data), words(data)), baseline=False), tmp_path)
    other = short(model, (adaptation(data), words(data), pairs(data)), seeds=(0, 1, 2))
    assert stored(other, tmp_path) == [(1, 1), (4, 6), (0, 6), (0, 6)]
    run_here(short(model, (pairs(data),)), tmp_path)
    assert stored(other, tmp_path) == [(1, 1), (4, 6), (0, 6), (4, 6)]


@pytest.mark.slow
def test_weights_that_are_missing_are_made_again(model: Path, data: Path, tmp_path: Path) -> None:
    chain = short(model, (words(data), pairs(data)))
    run_here(dataclasses.replace(chain, steps=chain.steps[:1]), tmp_path)  # keeps none
    assert stored(chain, tmp_path) == [(0, 4), (0, 4), (0, 4)]
    again = run_here(chain, tmp_path)
    assert scores(again.trail.outcomes[0]) == scores(run_here(chain, tmp_path / "other").trail.outcomes[0])


def test_one_step_has_no_effect_to_tell(model: Path, data: Path, tmp_path: Path) -> None:
    result = run_here(short(model, (pairs(data),)), tmp_path)
    assert (result.direct, result.effects, result.effect_sentence, result.cka_sentence) == ((), (), "", "")


def test_one_seed_has_an_interval_over_items_alone(model: Path, data: Path, tmp_path: Path) -> None:
    result = run_here(short(model, (words(data), pairs(data)), seeds=(4,)), tmp_path)
    assert "over new pairs only, as there is one seed, 1 seed)" in result.effect_sentence
    assert [effect and effect.seeds_error for effect in result.effects] == [None, None]
    assert "1 seed)" in result.effect_sentence


def test_a_layer_without_any_block(model: Path, data: Path, tmp_path: Path) -> None:
    result = run_here(short(model, (words(data), pairs(data)), layers=(0,), seeds=(0,), cka=True), tmp_path)
    assert result.similarities is not None
    assert len(result.similarities.trained[0].to_start.values) == 1


# ---- killed, and two at once -----------------------------------------------------------------------------


def job(model: Path, data: Path, cache: Path, *, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.lab.chains.jobs", str(model), str(data), str(cache), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def wait_for(process: subprocess.Popen[str], start: str) -> None:
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith(start):
        assert line, f"the chain ended before {start}"


@pytest.fixture(scope="module")
def uninterrupted(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> ChainResult:
    return run_here(whole_chain(model, data), tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills with SIGKILL")
def test_a_chain_killed_again_and_again_gives_the_same(
    model: Path, data: Path, tmp_path: Path, uninterrupted: ChainResult
) -> None:
    chain = whole_chain(model, data)
    seen = []
    for when in ("adapting", "TMFT layer 3 seed 0", "TMFT layer 3 seed 1"):
        with job(model, data, tmp_path, pause=0.02) as process:
            wait_for(process, when)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        seen.append(sum(done for done, _ in stored(chain, tmp_path)))
    assert seen[0] == 0
    assert 0 < seen[1] < seen[2] < 22
    assert numbers(run_here(chain, tmp_path)) == numbers(uninterrupted)


@pytest.mark.slow
def test_a_second_process_waits_for_the_first(
    model: Path, data: Path, tmp_path: Path, uninterrupted: ChainResult
) -> None:
    with job(model, data, tmp_path, pause=0.01) as process:
        wait_for(process, "adapting")
        ours = run_here(whole_chain(model, data), tmp_path)
        process.communicate()
    assert process.returncode == 0
    assert numbers(ours) == numbers(uninterrupted)


# ---- refused ---------------------------------------------------------------------------------------------


def test_a_layer_that_does_not_exist(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected layers from 0 to 3"):
        run_here(short(model, (pairs(data),), layers=(4,)), tmp_path)


def test_layer_zero_of_an_architecture_that_needs_a_block(data: Path, tmp_path: Path) -> None:
    deberta = save_tiny("deberta-v2", tmp_path / "deberta")
    two = short(deberta, (words(data), pairs(data)), layers=(0, 1))
    with pytest.raises(UnsupportedArchitectureError, match=r"deberta-v2 does not run without a block.*layers from 1"):
        run_here(two, tmp_path / "cache")
    with pytest.raises(UnsupportedArchitectureError, match=r"deberta-v2 does not run without a block.*layers from 1"):
        plan(two, tmp_path / "cache")
    assert run_here(dataclasses.replace(two, steps=two.steps[1:]), tmp_path / "cache").outcomes[0].layer == 0


def test_a_model_that_cannot_fill_in_masks(data: Path, tmp_path: Path) -> None:
    gpt2 = save_tiny("gpt2", tmp_path / "gpt2")
    with pytest.raises(ModelError, match="masked"):
        run_here(short(gpt2, (adaptation(data), pairs(data))), tmp_path / "cache")


def test_a_task_that_is_not_there_is_told_before_any_training(model: Path, data: Path, tmp_path: Path) -> None:
    missing = FinetuneStep(task=dataclasses.replace(pairs(data).task, source=str(data / "nothing.csv")))
    with pytest.raises(TaskError, match=r"nothing\.csv"):
        run_here(short(model, (adaptation(data), missing)), tmp_path)
    assert not (tmp_path / "adapted").exists()


def test_a_level_that_is_none(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="level"), settings(level=95):
        run_chain(short(model, (pairs(data),)), options=Model(cache_dir=tmp_path))
