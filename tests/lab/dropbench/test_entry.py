"""A tiny model becomes an entry of the zoo, from the store the second time; and the ridge probe on pairs."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from layerprobe.comparison.compare import compare
from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.dropbench.entry import tuned_layers, zoo_entry
from layerprobe.lab.dropbench.zoo import ZooEntry
from layerprobe.scoring import probes
from layerprobe.scoring.probes import ridge_features, ridge_probe
from layerprobe.scoring.score import probed, zero_shot
from layerprobe.tasks.values import Examples, Task
from tests.models import N_BLOCKS, given, save_tiny
from tests.toy_task import toy_task, toy_task_of

BUDGETS = {"gentle": Protocol(epochs=1, learning_rate=1e-3, batch_size=20), "long": Protocol(epochs=2, batch_size=20)}
SEEDS = (0, 3)


@pytest.fixture(scope="module")
def task() -> Task:
    return toy_task(train=48, validation=24, test=24)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    tiny = {name: str(save_tiny(name, root / name, seed=len(name))) for name in ("electra", "bert")}
    return {**tiny, "other": str(save_tiny("bert", root / "other", seed=9))}


def made(folders: dict[str, str], task: Task, options: Model, *, references: dict[str, str] | None = None) -> ZooEntry:
    return zoo_entry(
        given(folders["electra"], options),
        references or {"twin": folders["bert"], "other twin": folders["other"]},
        task,
        BUDGETS,
        name="electra 0",
        family="rtd",
        size="tiny",
        seed=0,
        corpus="toy",
        seeds=SEEDS,
        n_altered=12,
    )


@pytest.fixture(scope="module")
def entry(folders: dict[str, str], task: Task, options: Model) -> ZooEntry:
    return made(folders, task, options)


def test_of_several_evaluations_an_epoch_the_last_counts(folders: dict[str, str], task: Task, options: Model) -> None:
    protocol, model = Protocol(epochs=2, batch_size=20, evaluations=3), given(folders["electra"], options)
    # a length of the model is that of its readings alone
    cut = given(folders["electra"], dataclasses.replace(options, max_length=4))
    tuned = tuned_layers(cut, task, protocol, seeds=(0,), scans={"falling": (0,)})
    runs = {run.layer: run for run in finetune(model, task, range(N_BLOCKS + 1), seeds=(0,), protocol=protocol).runs}
    for layer, run in runs.items():
        assert len(run.epochs) == 6
        ends = [run.epochs[end].validation["spearman"] for end in (2, 5)]
        assert tuned.epochs[layer][0] == pytest.approx(ends, abs=1e-2)
    assert len(tuned.scans[0].epochs) == 2


def test_an_entry_is_what_the_stages_give(entry: ZooEntry, folders: dict[str, str], task: Task, options: Model) -> None:
    runs = finetune(
        given(folders["electra"], options), task, range(N_BLOCKS + 1), seeds=SEEDS, protocol=BUDGETS["long"]
    ).runs
    expected = {(run.layer, run.seed): run.test["spearman"] for run in runs}
    long = entry.budgets["long"]
    result = {(layer, seed): row[k] for layer, row in enumerate(long.test) for k, seed in enumerate(long.seeds)}
    assert result == pytest.approx(expected, abs=1e-4)
    assert (long.steps, entry.budgets["gentle"].steps) == (6, 3)
    assert (entry.n_blocks, entry.metric, entry.task) == (N_BLOCKS, "spearman", "toy")
    validated = extract(given(folders["electra"], options), task.validation.texts)
    scores = zero_shot(validated, task, split="validation").scores
    assert entry.labelled["zero-shot"].values == pytest.approx(scores, rel=1e-5)
    texts = task.test.texts
    tested, base = (extract(given(folders[each], options), texts) for each in ("electra", "other"))
    assert entry.cka["other twin"].values == pytest.approx(compare(tested, base).curve.values, rel=1e-5)
    errors = entry.cka["twin"].standard_errors
    assert errors is not None
    assert min(errors) > 0


def test_a_second_time_nothing_is_computed_by_a_model(
    entry: ZooEntry, folders: dict[str, str], task: Task, options: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise AssertionError("this was to be read from the store")

    monkeypatch.setattr("layerprobe.encoders.loading.load_encoder", fail)
    assert made(folders, task, options) == entry


def test_other_kinds_have_no_probe(folders: dict[str, str], options: Model, entry: ZooEntry) -> None:
    other = zoo_entry(
        given(folders["electra"], options),
        {},
        toy_task_of("paraphrase"),
        {"gentle": BUDGETS["gentle"]},
        name="m",
        family="rtd",
        size="tiny",
        seed=0,
        corpus="toy",
        seeds=(0,),
        n_altered=12,
    )
    assert other.labelled.keys() == {"zero-shot"}
    assert other.cka == {}


def test_the_probe_is_ridge_regression_with_the_best_penalty_left_out() -> None:
    """By hand: each penalty's errors with every pair left out once, in the closed form of the normal equations."""
    rng = np.random.default_rng(0)
    train, new = rng.normal(size=(30, 5)) * 3 + 1, rng.normal(size=(7, 5))
    targets = train @ rng.normal(size=5) * 0.05 + rng.normal(size=30)
    z = (train - train.mean(axis=0)) / train.std(axis=0)

    def fitted(rows: np.ndarray, penalty: float) -> tuple[np.ndarray, float, np.ndarray]:
        x, y = z[rows], targets[rows]
        centred = x - x.mean(axis=0)
        weights = np.linalg.solve(centred.T @ centred + penalty * np.eye(5), centred.T @ (y - y.mean()))
        return weights, float(y.mean()), x.mean(axis=0)

    def left_out(penalty: float) -> float:
        errors = []
        for i in range(30):
            weights, level, centre = fitted(np.delete(np.arange(30), i), penalty)
            errors.append((targets[i] - level - (z[i] - centre) @ weights) ** 2)
        return float(np.mean(errors))

    best = min((10.0**power for power in range(7)), key=left_out)
    weights, level, centre = fitted(np.arange(30), best)
    expected = level + ((new - train.mean(axis=0)) / train.std(axis=0) - centre) @ weights
    np.testing.assert_allclose(ridge_probe(train, targets, new), expected, rtol=1e-4, atol=1e-6)


def test_the_probe_scores_every_layer_and_is_kept(
    folders: dict[str, str], task: Task, options: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = (*task.train.texts, *task.validation.texts)
    embeddings = extract(given(folders["bert"], options), everything)
    result = probed(embeddings, task, split="validation")
    assert (result.split, result.method, result.primary) == ("validation", "probe", "spearman")
    layer = 2
    outputs = ridge_probe(
        pair_features(embeddings, layer, task.train),
        np.array(task.train.targets),
        pair_features(embeddings, layer, task.validation),
    )
    expected = stats.spearmanr(outputs, task.validation.targets).statistic
    assert result.scores[layer] == pytest.approx(100 * expected)
    monkeypatch.setattr(probes, "RIDGE", dataclasses.replace(probes.RIDGE, fit=lambda *_: pytest.fail("fitted again")))
    assert probed(embeddings, task, split="validation") == result


def pair_features(embeddings: Embeddings, layer: int, pairs: Examples) -> np.ndarray:
    assert pairs.second is not None
    values = embeddings.layer(layer)
    return ridge_features(values[embeddings.rows(pairs.first)], values[embeddings.rows(pairs.second)])
