"""Ensembles of runs against the same by hand: averages, thresholds, gains, costs; what does not fit is refused."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.finetuning.outputs import RunOutputs, read_outputs
from layerprobe.finetuning.saved import ORIGIN
from layerprobe.finetuning.tuning import finetune, saved_models, scan
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.ensembles import _chosen, ensemble
from layerprobe.profiling.values import ProfileSettings
from layerprobe.tasks.kind import KINDS as REGISTERED
from tests.models import given, save_tiny
from tests.shown import assert_shows_itself
from tests.toy_task import toy_task_of

PROTOCOL = Protocol(epochs=1, learning_rate=1e-3, batch_size=8)
KINDS = ("sts", "paraphrase", "entailment")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def scans(model: Path, options: Model) -> dict[str, list[Path]]:
    """By kind the directories of two seeds of a scan."""
    found = {}
    for kind in KINDS:
        task = toy_task_of(kind)
        runs = scan(given(str(model), options), task, seeds=(0, 1), protocol=PROTOCOL)
        found[kind] = saved_models(given(str(model), options), runs, task)
    return found


@pytest.fixture(scope="module")
def single(model: Path, options: Model) -> list[Path]:
    """Directories of layers 1 and 2 with seeds 0 and 1."""
    task = toy_task_of("sts")
    runs = finetune(given(str(model), options), task, (1, 2), seeds=(0, 1), protocol=PROTOCOL)
    return saved_models(given(str(model), options), runs, task)


def outputs_of(directory: Path) -> RunOutputs:
    outputs = read_outputs(directory)
    assert outputs is not None
    return outputs


# ---- against the same by hand --------------------------------------------------------------------------


def test_two_layers_of_a_scan_are_averaged_on_the_line(scans: dict[str, list[Path]]) -> None:
    task = toy_task_of("sts")
    result = ensemble(scans["sts"], task, layers=(1, 3))
    outputs = [outputs_of(each) for each in scans["sts"]]

    def score(split: str, weight: float, seed: int) -> float:
        first, second = (outputs[seed].of(layer, split) for layer in (1, 3))  # type: ignore[arg-type]
        gold = task.split(split).targets  # type: ignore[arg-type]
        return 100 * float(stats.spearmanr(weight * first + (1 - weight) * second, gold).statistic)

    course = [np.mean([score("validation", part / 20, seed) for seed in (0, 1)]) for part in range(21)]
    (weight,) = (each.weight for each in result.members if each.layer == 1)
    assert np.mean(result.validation["spearman"]) == pytest.approx(max(course))
    assert result.test["spearman"] == pytest.approx([score("test", weight, seed) for seed in (0, 1)])
    assert result.choice == "line"
    assert result.seeds == (0, 1)
    best = max((0.0, 1.0), key=lambda weight: np.mean([score("validation", weight, seed) for seed in (0, 1)]))
    single = [score("test", best, seed) for seed in (0, 1)]
    assert result.single.test == pytest.approx(single)
    assert result.gain is not None
    assert result.gain.value == pytest.approx(np.mean(np.array(result.test["spearman"]) - single))
    assert (result.gain.n_items, result.gain.n_seeds) == (32, 2)


def test_without_layers_the_best_pair_of_a_scan_is_taken(scans: dict[str, list[Path]]) -> None:
    task = toy_task_of("sts")
    result = ensemble(scans["sts"][:1], task)
    pairs = [ensemble(scans["sts"][:1], task, layers=pair) for pair in itertools.combinations(range(4), 2)]
    assert result.choice == "pair"
    assert result.validation["spearman"] == max(pair.validation["spearman"] for pair in pairs)
    assert len(result.members) == 4
    assert sum(bool(each.weight) for each in result.members) <= 2
    assert result.gain is not None
    assert result.gain.seeds_error is None
    assert "over new pairs only" in result.sentence or len(result.used) == 1


def test_the_threshold_is_chosen_anew_on_validation(scans: dict[str, list[Path]]) -> None:
    task = toy_task_of("paraphrase")
    result = ensemble(scans["paraphrase"][:1], task, layers=(2, 3))
    outputs = outputs_of(scans["paraphrase"][0])
    weights = [each.weight for each in result.members]
    validation, test = (
        np.tensordot(weights, [outputs.of(layer, split) for layer in (2, 3)], 1) for split in ("validation", "test")
    )
    (threshold,) = result.thresholds
    assert threshold is not None
    gold = np.array(task.validation.targets)
    best = max(f1_score(gold, validation >= each) for each in validation)
    assert f1_score(gold, validation >= threshold) == pytest.approx(best)
    assert result.test["f1"][0] == pytest.approx(100 * f1_score(task.test.targets, test >= threshold))


def test_classes_are_averaged_as_probabilities(scans: dict[str, list[Path]]) -> None:
    task = toy_task_of("entailment")
    result = ensemble(scans["entailment"][:1], task, layers=(0, 1, 3))
    assert result.choice == "greedy"
    outputs = outputs_of(scans["entailment"][0])
    averaged = np.zeros((32, 3))
    for each in result.members:
        logits = outputs.of(each.layer)
        averaged += each.weight * np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = f1_score(task.test.targets, averaged.argmax(axis=1), average="macro")
    assert result.test["macro f1"][0] == pytest.approx(100 * expected)


def test_runs_of_truncated_models_have_a_member_a_layer_and_an_ensemble_a_seed(
    scans: dict[str, list[Path]], single: list[Path]
) -> None:
    result = ensemble(single, toy_task_of("sts"))
    assert [(each.label, each.layer) for each in result.members] == [("layer 1", 1), ("layer 2", 2)]
    assert result.seeds == (0, 1)
    everything = ensemble([single[0].parent], toy_task_of("sts"), layers=(1, 2))
    assert everything == ensemble([*scans["sts"], *single], toy_task_of("sts"), layers=(1, 2))


def test_seeds_of_one_layer_are_the_members(single: list[Path]) -> None:
    of_one = [each for each in single if each.name.startswith("layer-002")]
    result = ensemble(of_one, toy_task_of("sts"))
    assert [each.label for each in result.members] == ["layer 2 seed 0", "layer 2 seed 1"]
    assert result.seeds == ()
    assert len(result.test["spearman"]) == 1
    assert result.gain is not None
    assert result.gain.seeds_error is None


def test_layers_of_one_scan_share_their_blocks_and_others_do_not(
    scans: dict[str, list[Path]], single: list[Path]
) -> None:
    task = toy_task_of("sts")
    shared, apart = ensemble(scans["sts"], task, layers=(1, 2)), ensemble(single, task)
    parameters = {each.layer: each.parameters for each in apart.members}
    deepest = max(each.layer for each in shared.used)
    assert (shared.cost.blocks, shared.cost.parameters) == (deepest, parameters[deepest])
    assert apart.cost.blocks == sum(each.layer for each in apart.used)
    assert apart.cost.parameters == sum(each.parameters for each in apart.used)
    both = ensemble([*scans["sts"], *single], task, layers=(2,))
    assert [each.label for each in both.members] == ["layer 2 by itself", "layer 2 of the scan"]


def test_time_is_that_of_the_models_which_are_run(
    single: list[Path], options: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ProfileSettings(batch_sizes=(1,), rounds=1, repeats=1, warmup=0)
    monkeypatch.setattr("layerprobe.lab.ensembles.ALONE", quick)
    result = ensemble(single, toy_task_of("sts"), profile=True, options=options)
    assert result.cost.flops is not None
    assert result.single_cost.flops is not None
    assert result.cost.seconds is not None
    if len(result.used) == 2:
        assert result.cost.flops > result.single_cost.flops
    assert result.cost.length == 64


def test_it_shows_itself(scans: dict[str, list[Path]], tmp_path: Path) -> None:
    assert_shows_itself(ensemble(scans["sts"], toy_task_of("sts")), tmp_path)


class KnownKinds(dict[str, Any]):
    """A registry of kinds of which all can be used."""

    usable = dict.copy


def test_kinds_without_a_mean_are_refused(monkeypatch: pytest.MonkeyPatch, scans: dict[str, list[Path]]) -> None:
    known = {"paraphrase": REGISTERED["paraphrase"], "sts": replace(REGISTERED["sts"], averages=None)}
    monkeypatch.setattr("layerprobe.lab.ensembles.KINDS", KnownKinds(known))
    with pytest.raises(DataError, match="whose outputs have a mean, of kind paraphrase, got one of kind sts"):
        ensemble(scans["sts"], toy_task_of("sts"))


# ---- what is refused -----------------------------------------------------------------------------------


def test_runs_of_other_tasks_are_refused(scans: dict[str, list[Path]]) -> None:
    with pytest.raises(DataError, match=r"expected runs of one task with one split, got .* toy sts and toy paraphrase"):
        ensemble([*scans["sts"], *scans["paraphrase"]])
    with pytest.raises(DataError, match="expected the task that the runs are of, toy sts as it was read then, got oth"):
        ensemble(scans["sts"], toy_task_of("paraphrase"))
    with pytest.raises(DataError, match="got other texts or targets from toy sts"):
        ensemble(scans["sts"], toy_task_of("sts", test=31))
    with pytest.raises(DataError, match="expected the task of the runs, toy sts, give it by --task"):
        ensemble(scans["sts"])


def test_seeds_and_layers_that_do_not_fit_are_refused(scans: dict[str, list[Path]], single: list[Path]) -> None:
    task = toy_task_of("sts")
    with pytest.raises(DataError, match=r"expected runs of the same seeds for each layer, .* got seeds 0 and 0, 1"):
        ensemble([*scans["sts"][:1], *single], task)
    with pytest.raises(DataError, match="expected layers that the runs have, got 9"):
        ensemble(scans["sts"], task, layers=(1, 9))
    with pytest.raises(DataError, match="expected at least two runs, or layers of a scan, to average, got one"):
        ensemble(single[:1], task)


def test_a_copy_of_a_run_is_refused(single: list[Path], tmp_path: Path) -> None:
    copy = shutil.copytree(single[0].parent, tmp_path / single[0].parent.name) / single[0].name
    with pytest.raises(
        DataError, match=f"expected different runs, got {copy}, a copy of {single[0]}: give one of them"
    ):
        ensemble([single[0], copy], toy_task_of("sts"))


def test_a_pair_is_taken_only_where_it_scores_more() -> None:
    choice, weights = _chosen(lambda weights: float(weights[2] > 0), 4, pair=True)
    assert (choice, weights.tolist()) == ("pair", [0, 0, 1, 0])


def test_the_sentence_says_what_it_is_compared_with(scans: dict[str, list[Path]]) -> None:
    result = ensemble(scans["sts"], toy_task_of("sts"))
    members = tuple(replace(each, weight=0.25) for each in result.members)
    assert result.gain is not None
    for interval, verdict in (((-1.0, 1.0), "no significant gain"), ((0.5, 1.0), "a gain")):
        said = replace(result, members=members, gain=replace(result.gain, interval=interval)).sentence
        assert f"compared with {result.single.label}, the best single one by validation (" in said
        assert f"): {verdict}. It runs" in said


def test_what_is_no_run_is_refused(scans: dict[str, list[Path]], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the directory of a finished run, or a folder of such, got"):
        ensemble([tmp_path])
    origin = scans["sts"][0].parent / ORIGIN
    text = origin.read_bytes()
    origin.unlink()
    try:
        with pytest.raises(DataError, match="repeat the command that made it, which reads the run and writes that"):
            ensemble(scans["sts"], toy_task_of("sts"))
    finally:
        origin.write_bytes(text)


def test_runs_that_are_read_note_what_they_are_of(model: Path, options: Model, scans: dict[str, list[Path]]) -> None:
    origin = scans["sts"][0].parent / ORIGIN
    text = origin.read_bytes()
    for damaged in (None, text[:-9]):
        origin.unlink()
        if damaged is not None:
            origin.write_bytes(damaged)
        scan(given(str(model), options), toy_task_of("sts"), seeds=(0,), protocol=PROTOCOL)
        assert origin.read_bytes() == text


def test_prompts_of_models_may_differ(model: Path, options: Model, single: list[Path]) -> None:
    task = toy_task_of("sts")
    prompted = replace(options, prompt="a ")
    runs = finetune(given(str(model), prompted), task, (2,), seeds=(0, 1), protocol=PROTOCOL)
    others = saved_models(given(str(model), prompted), runs, task)
    result = ensemble([*single[:1], single[2], *others], task)
    assert len(result.members) == 2
