"""Finding the layer to keep: runs made where they decide, read where they are there, scored by their own fold."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerprobe.context import settings
from layerprobe.encoders import loading as first_use
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, InsufficientMemoryError, TrainingError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning import runs
from layerprobe.finetuning.outcomes import read_outputs
from layerprobe.finetuning.runs import agreed, run_folder
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.jobs.crew import HERE
from layerprobe.readings.source import read_curves
from layerprobe.results.conclusion import Fact
from layerprobe.search.ask import score_errors
from layerprobe.search.values import SearchSettings
from layerprobe.stats.crossed import crossed, item_covariance, item_units, least_variance, pooled_covariance
from layerprobe.study import find as find_module
from layerprobe.study import model_search
from layerprobe.study.find import find, folds_within, jobs_at_a_time, patient, search_folds
from layerprobe.study.model_search import _readings
from layerprobe.study.tables import runs_table
from layerprobe.study.values import Finding, Weights
from layerprobe.tasks.evaluation import item_influences, links_of
from layerprobe.tasks.splitting import folds_of
from layerprobe.tasks.values import Task
from tests.few import few
from tests.finetuning.finished import run_in
from tests.models import given, save_tiny
from tests.toy_task import toy_task_of

QUICK = Protocol(learning_rate=3e-3, epochs=1, batch_size=16)
TASK = toy_task_of("sts", train=48, validation=32, test=64)


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of six blocks."""
    return save_tiny("bert", tmp_path_factory.mktemp("six"), num_hidden_layers=6)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def found(model: Path, cache: Path, task: Task = TASK, **settings: Any) -> Finding:
    return find(given(str(model), Model(device="cpu", cache_dir=cache)), task, protocol=QUICK, **settings)


@pytest.fixture(scope="module")
def finding(six: Path, cache: Path) -> Finding:
    return found(six, cache, budget=0.3, against_last=2)


def numbers(finding: Finding) -> Finding:
    """A finding without what differs from time to time."""
    still = [dataclasses.replace(m, run=dataclasses.replace(m.run, seconds=0.0, peak_memory=0)) for m in finding.runs]
    return dataclasses.replace(finding, runs=tuple(still), rounds_by_layer=(), weights=Weights(directory=""))


@pytest.mark.parametrize(
    ("asked", "patience"),
    [
        (None, 2),
        (Protocol(epochs=4), 2),
        (Protocol(epochs=3), None),
        (Protocol(epochs=3, evaluations=2), 2),
        (Protocol(patience=0), None),
        (Protocol(patience=8), 8),
        (Protocol(patience=9), None),
    ],
)
def test_runs_of_a_search_are_patient_where_they_could_end_early(
    six: Path, asked: Protocol | None, patience: int | None
) -> None:
    """Otherwise they are those of `finetune`."""
    protocol, _ = agreed(patient(asked), resolve(Model(str(six), device="cpu")))
    assert protocol == dataclasses.replace(asked or Protocol(), patience=patience)
    assert agreed(asked, resolve(Model(str(six), device="cpu")))[0].patience in (patience, None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Layer and seed of the runs that are really made."""
    begun: list[tuple[int, int]] = []
    alone = runs.fine_tune

    def counting(encoder: Encoder, layer: int, *arguments: Any, seed: int, **options: Any) -> Any:
        begun.append((layer, seed))
        return alone(encoder, layer, *arguments, seed=seed, **options)

    monkeypatch.setattr(runs, "fine_tune", counting)
    return begun


# ---- the search ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_run_is_made_twice_and_the_budget_holds(finding: Finding) -> None:
    truncated = [(made.run.layer, made.run.seed) for made in finding.runs]
    assert len(set(truncated)) == len(truncated)
    assert finding.answer.full_sweep == 5 * 28
    assert finding.answer.spent == sum(layer + 1 for layer, _ in truncated)
    assert set(finding.answer.candidates) >= {finding.best_layer}
    assert finding.best_layer in {run.layer for run in finding.fine_tuned}
    assert finding.speed(6) == (1, 1, 1)
    assert {len(rounds) for rounds in finding.rounds_by_layer} == {0, 7}
    fast = finding.speed(finding.best_layer)
    assert fast is not None
    assert 0 < fast[1] <= fast[0] <= fast[2]
    assert finding.model.n_layers == 7


def test_readings_say_where_to_look(six: Path, cache: Path, finding: Finding, made: list[tuple[int, int]]) -> None:
    texts = TASK.texts()
    infonce = read_curves(given(str(six), Model(device="cpu", cache_dir=cache)), texts, ["InfoNCE"])["InfoNCE"]
    alone = found(six, cache, budget=0.3)
    assert alone.runs[0].run.layer == 1 + int(np.argmax(infonce.values[1:]))
    words = toy_task_of("entities", train=24, validation=12, test=12)
    assert _readings(words) == ["self CKA"], "expected nothing of sentences for words"
    assert _readings(TASK) == ["self CKA", "InfoNCE"]


def test_a_finding_survives_the_disk(finding: Finding) -> None:
    assert from_json(Finding, to_json(finding)) == finding


def test_what_is_done_is_not_done_again(six: Path, cache: Path, finding: Finding, made: list[tuple[int, int]]) -> None:
    again = found(six, cache, budget=0.3, against_last=2)
    assert numbers(again) == numbers(finding)
    assert made == []


@pytest.mark.slow
@pytest.mark.parametrize("stop", few([1, 2, 3], lambda stop: stop == 2))
def test_a_killed_search_goes_on_to_the_same_finding(
    six: Path, tmp_path: Path, finding: Finding, made: list[tuple[int, int]], stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = runs.save_finished

    def killed(*arguments: Any) -> None:
        if len(made) == stop:
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "save_finished", killed)
        with pytest.raises(KeyboardInterrupt):
            found(six, tmp_path, budget=0.3, against_last=2)
    again = found(six, tmp_path, budget=0.3, against_last=2)
    assert numbers(again) == numbers(finding)
    assert len(made) == len(set(made)) + 1


@pytest.mark.slow
def test_several_at_a_time_are_the_same_search_whoever_is_faster(six: Path, tmp_path: Path) -> None:
    """Two processes, then this one alone with their runs: the order of runs depends on scores, not on speed."""
    reported: list[float] = []
    with settings(progress=lambda task, done, total: reported.append(done / total)):
        finding = found(six, tmp_path, budget=0.25, jobs=2, against_last=1)
    again = found(six, tmp_path, budget=0.25, jobs=2, against_last=1)
    assert numbers(again) == numbers(finding)
    assert max(reported) == 1
    assert finding.answer.spent - finding.proof_cost <= 0.25 * finding.answer.full_sweep
    with pytest.raises(DataError, match="a number of parallel runs, such as 2, got 0"):
        found(six, tmp_path, jobs=0)


@pytest.mark.parametrize(
    ("best", "spoilt"),
    few([(6, False), (3, True), (3, False)], lambda case: case == (3, False)),
    ids=["rising", "spoilt", "compared"],
)
def test_whatever_is_asked_for_beside_others_counts(
    six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: int, spoilt: bool
) -> None:
    """Also runs of the last layer that turns out to be the one to keep, or where there is no comparison."""
    alone, plans = runs.fine_tune, list[dict[runs.RunJob, float]]()

    def scored(encoder: Encoder, layer: int, *arguments: Any, **options: Any) -> Any:
        (run,), outputs = alone(encoder, layer, *arguments, **options)
        scores = run.validation | {run.primary: 90.0 - 5 * abs(layer - best)}
        return (dataclasses.replace(run, validation=scores),), outputs

    def planned(sets: Any, jobs: Any, **about: Any) -> Any:
        plans.append(jobs)
        return runs.runs_plan(sets, jobs, **about)

    monkeypatch.setattr(runs, "fine_tune", scored)
    monkeypatch.setattr(model_search, "runs_plan", planned)
    monkeypatch.setattr(find_module, "choose_workers", lambda *_, **__: HERE)
    leaky = dataclasses.replace(TASK, train=TASK.train.join(TASK.test.take(range(4))), keep_overlaps=True)
    finding = found(six, tmp_path, leaky if spoilt else TASK, budget=0.3, jobs=4, against_last=4)
    (asked,) = plans
    assert {(job.layer, job.seed) for job in asked} == {(run.layer, run.seed) for run in finding.fine_tuned}
    assert finding.answer.spent == sum(asked.values())
    assert finding.answer.spent - finding.proof_cost <= 0.3 * finding.answer.full_sweep
    assert (finding.best_layer == 6) == (best == 6)
    assert (finding.against_last is None) == (spoilt or best == 6)


@pytest.mark.parametrize(
    ("budget", "seeds", "n_blocks", "n_folds"),
    [
        (None, 5, [12], 2),
        (None, 5, [4], 5),
        (0.01, 5, [12], 2),
        (0.4, 5, [12], 2),
        (0.6, 5, [12], 3),
        (1.0, 5, [12], 5),
        (1.0, 2, [12], 2),
        (1.0, 1, [12], 1),
        (None, 5, [12, 24], 2),
    ],
)
def test_there_are_as_many_folds_as_a_layer_has_runs(
    budget: float | None, seeds: int, n_blocks: list[int], n_folds: int
) -> None:
    settings = SearchSettings(budget=budget, seeds=seeds)
    assert folds_within(settings, n_blocks) == n_folds
    few, many = (toy_task_of("sts", train=32, validation=n, test=8) for n in (32, 1000))
    assert len(search_folds(few, settings, n_blocks)) == n_folds
    assert search_folds(many, settings, n_blocks) == (many,)


def test_runs_are_validated_by_folds_in_turn(six: Path, cache: Path, finding: Finding) -> None:
    folds = folds_of(TASK, 2)
    assert finding.n_folds == 2
    checkpoint = resolve(str(six))
    options = Model(device="cpu", cache_dir=cache)
    for each in finding.runs:
        assert each.fold == each.run.seed % 2
        folder = run_folder(given(checkpoint, options), folds[each.fold], QUICK)
        assert run_in(folder, each.run.layer, each.run.seed) == each.run


def test_the_last_layer_is_held_against_on_the_test_split(six: Path, cache: Path, finding: Finding) -> None:
    proof = finding.against_last
    assert (proof is None) == (finding.best_layer == 6)
    if proof is None:
        pytest.skip("the last layer is the best of this tiny model")
    checkpoint, options = resolve(str(six)), Model(device="cpu", cache_dir=cache)
    targets = np.array(TASK.test.targets)
    values, influences = [], []
    for seed, fold in enumerate(folds_of(TASK, 2)):
        folder = run_folder(given(checkpoint, options), fold, QUICK)
        kept, last = (run_in(folder, layer, seed) for layer in (finding.best_layer, 6))
        assert kept is not None
        assert last is not None
        values.append(kept.test["spearman"] - last.test["spearman"])
        outputs = [read_outputs(run.directory) for run in (kept, last)]
        both = [item_influences("sts", out.of(out.layers[0]), targets) for out in outputs if out is not None]
        influences.append(both[0] - both[1])
    assert proof == crossed(values, np.array(influences), unit="pair", metric="spearman")
    assert finding.facts["gain"] == Fact.of(proof, split="test", better="higher")
    assert finding.facts["gain"].over == ("64 pairs", "2 seeds")


# ---- other models and tasks ---------------------------------------------------------------------------


def test_a_score_that_is_the_same_for_all_items_is_not_without_error() -> None:
    n = len(TASK.validation)
    varied = np.linspace(-150, 150, n)
    links = links_of(TASK.validation)
    covariance = score_errors([(0, np.zeros(n)), (1, varied), (0, varied), (1, None)], [(n, links)] * 2)
    plain, least = item_covariance(varied[None], links)[0, 0], least_variance(n, links)
    assert plain > least >= (100 / n) ** 2
    own, units = np.diag([least, plain, plain, 0]), 2 * item_units(n, links)
    np.testing.assert_allclose(covariance, pooled_covariance(own, [n] * 4, units))


# ---- what goes wrong ----------------------------------------------------------------------------------


def test_a_run_that_fails_is_reported_and_the_search_goes_on(
    six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, tried, failed = runs.fine_tune, list[int](), list[int]()

    def failing(encoder: Encoder, layer: int, *arguments: Any, **options: Any) -> Any:
        tried.append(layer)
        failed[:] = failed or [layer]
        if layer in failed:
            raise TrainingError("the loss became nan")
        return alone(encoder, layer, *arguments, **options)

    monkeypatch.setattr(runs, "fine_tune", failing)
    finding = found(six, tmp_path, budget=0.3)
    assert f"layer {failed[0]} failed: the loss became nan" in finding.failures
    assert set(tried) - {*failed}
    table = runs_table(finding).data
    assert table["layer"] == tuple(tried)
    assert [score is None for score in table["test"]] == [place in failed for place in tried]
    assert table["spent"][-1] == finding.answer.share, "expected what failed runs cost"
    assert from_json(Finding, to_json(finding)) == finding


@pytest.mark.parametrize("n_failed", [1, pytest.param(99, marks=pytest.mark.slow)], ids=["one", "all"])
def test_a_run_that_did_not_train_is_no_evidence_unless_none_does(
    six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_failed: int
) -> None:
    called: list[tuple[int, int]] = []

    def sign(run: FineTuningRun, *_: Any) -> str:
        called.append((run.layer, run.seed))
        return "its loss did not fall" if len(called) <= n_failed else ""

    monkeypatch.setattr(model_search, "not_trained", sign)
    finding = found(six, tmp_path, budget=0.4)
    layer, seed = called[0]
    said = finding.failures[-2 if n_failed > 1 and [of for of, _ in called].count(6) > 1 else -1]
    assert said.startswith(
        f"{min(n_failed, len(called))} of {len(called)} runs did not train: layer {layer}, seed {seed} ("
    )
    passed_over = [made.run is None for made in finding.runs]
    assert sum(passed_over) == min(n_failed, 2)
    assert all(passed_over[: min(n_failed, 2)])
    assert finding.answer.spent == sum(layer + 1 for layer, _ in called)


def test_where_no_run_gives_a_score_the_last_reason_is_told(
    six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any, **options: Any) -> Any:
        raise TrainingError("the loss became nan")

    monkeypatch.setattr(runs, "fine_tune", failing)
    with pytest.raises(TrainingError, match=r"no run gave a score: layer \d failed: the loss became nan"):
        found(six, tmp_path, budget=0.1)


def test_a_layer_without_a_checkpoint_is_left_out_where_models_are_saved(tmp_path: Path) -> None:
    model = save_tiny("modernbert", tmp_path / "model", num_hidden_layers=2)
    finding = found(model, tmp_path, seeds=1, save_models=True)
    assert {made.run.layer for made in finding.runs} == {1, 2}
    assert finding.answer.first_layer == 1
    assert finding.weights.kept
    (said,) = [each for each in finding.failures if "layer 0" in each]
    assert said.endswith("does not run without a block, so layer 0 has no checkpoint to save")


def test_what_ends_the_search_ends_it_at_once(
    six: Path, cache: Path, finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof has six more runs to make; after the first one without memory there is no second."""
    tried = []

    def full(encoder: Encoder, layer: int, *arguments: Any, **options: Any) -> Any:
        tried.append(layer)
        raise InsufficientMemoryError("no memory is left")

    monkeypatch.setattr(runs, "fine_tune", full)
    assert finding.best_layer != 6
    with pytest.raises(InsufficientMemoryError, match="no memory is left"):
        found(six, cache, budget=0.3, against_last=5)
    assert len(tried) == 1


@pytest.mark.parametrize(("device", "jobs"), [("cpu", 3), ("cuda", 2), ("cuda:1", 1), ("mps", 1)])
def test_as_many_jobs_at_a_time_as_there_are_devices(
    six: Path, device: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_module, "MOST_JOBS", 4)
    monkeypatch.setattr(find_module, "resolve_device", torch.device)
    monkeypatch.setattr(find_module, "available_cores", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    model = resolve(given(str(six), Model(device=device)))
    assert jobs_at_a_time(None, model) == jobs
    assert jobs_at_a_time(7, model) == 7


def test_runs_begin_when_the_gpu_holds_nothing_of_the_readings(
    six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, held = list[weakref.ref[Any]](), list[int]()

    def loading(*arguments: Any, **settings: Any) -> Encoder:
        encoder = load_encoder(*arguments, **settings)
        loaded.append(weakref.ref(encoder.model))
        return encoder

    def refused(*_: Any, **__: Any) -> None:
        raise TrainingError(f"begun after {held}")

    monkeypatch.setattr(first_use, "load_encoder", loading)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append(sum(each() is not None for each in loaded)))
    monkeypatch.setattr(model_search, "make_crew", refused)
    with pytest.raises(TrainingError, match=r"begun after \[0\]"):
        found(six, tmp_path)
    assert loaded
