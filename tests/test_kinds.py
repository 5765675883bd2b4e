"""Tasks of every kind through the whole pipeline, and their zero-shot scores by hand."""

import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as peer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layerprobe.context import settings
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.metrics.names import metric_title
from layerprobe.scoring import probes
from layerprobe.scoring.score import score_split, zero_shot
from layerprobe.study.find import find
from layerprobe.study.values import Finding
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, check_task
from tests.models import given, save_tiny
from tests.toy_task import toy_task_of

LABELLED: tuple[str, ...] = ("paraphrase", "entailment", "classification")
SHORT = Protocol(learning_rate=3e-3, epochs=1, batch_size=16)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("bert", "electra")):
        save_tiny(name, root / name, seed=seed)
    return {name: str(root / name) for name in ("bert", "electra")}


def embed(models: dict[str, str], examples: Examples, options: Model) -> Embeddings:
    return extract(given(models["bert"], options), examples.texts)


def sides(embeddings: Embeddings, layer: int, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    row = {text: i for i, text in enumerate(embeddings.texts)}
    values = embeddings.layer(layer).astype(np.float64)
    second = examples.second or examples.first
    return values[[row[text] for text in examples.first]], values[[row[text] for text in second]]


def test_paraphrase_is_told_at_the_threshold_of_the_validation_split(models: dict[str, str], options: Model) -> None:
    task = toy_task_of("paraphrase")
    tested, validated = embed(models, task.test, options), embed(models, task.validation, options)
    scores = zero_shot(tested, task, fitted=validated)
    assert (scores.method, scores.primary, tuple(scores.metrics)) == ("cosine", "f1", KINDS["paraphrase"].metrics)

    def cosines(embeddings: Embeddings, examples: Examples) -> np.ndarray:
        u, v = sides(embeddings, 2, examples)
        return (u * v).sum(axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)

    chosen, outputs = cosines(validated, task.validation), cosines(tested, task.test)
    candidates = [(peer.f1_score(task.validation.targets, chosen >= t), t) for t in chosen]
    lowest = max(candidates)[1]
    below = chosen[chosen < lowest]
    threshold = (lowest + below.max()) / 2 if len(below) else lowest
    predicted = outputs >= threshold
    assert scores.scores[2] == pytest.approx(100 * peer.f1_score(task.test.targets, predicted))
    expected = 100 * peer.accuracy_score(task.test.targets, predicted)
    assert scores.metrics["accuracy"][2] == pytest.approx(expected)
    expected = 100 * peer.average_precision_score(task.test.targets, outputs)
    assert scores.metrics["average precision"][2] == pytest.approx(expected)
    own = zero_shot(validated, task, split="validation")
    assert own.scores[2] == pytest.approx(100 * max(candidates)[0])


@pytest.mark.parametrize("kind", ["entailment", "classification"])
def test_classes_are_told_by_a_probe_on_the_train_split(models: dict[str, str], options: Model, kind: str) -> None:
    task = toy_task_of(kind)
    tested, trained = embed(models, task.test, options), embed(models, task.train, options)
    scores = zero_shot(tested, task, fitted=trained)
    assert (scores.method, scores.primary) == ("probe", KINDS[kind].metrics[0])

    def features(embeddings: Embeddings, examples: Examples) -> np.ndarray:
        u, v = sides(embeddings, 3, examples)
        return u if examples.second is None else np.hstack([u, v, np.abs(u - v)])

    train, test = features(trained, task.train), features(tested, task.test)
    by_hand = make_pipeline(StandardScaler(), LogisticRegression(C=10 / train.shape[1], max_iter=1000))
    predicted = by_hand.fit(train, task.train.targets).predict(test)
    assert scores.metrics["accuracy"][3] == pytest.approx(100 * peer.accuracy_score(task.test.targets, predicted))
    macro = 100 * peer.f1_score(task.test.targets, predicted, average="macro")
    assert scores.metrics["macro f1"][3] == pytest.approx(macro)


def test_a_probe_is_fitted_once(models: dict[str, str], options: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy_task_of("classification", train=48)
    tested, trained = embed(models, task.test, options), embed(models, task.train, options)
    told: list[tuple[float, float]] = []
    with settings(progress=lambda _, done, total: told.append((done, total))):
        first = zero_shot(tested, task, fitted=trained)
    assert [done / total for done, total in told] == sorted(done / total for done, total in told)
    assert told[-1][0] == told[-1][1]
    refusing = dataclasses.replace(probes.LOGISTIC, fit=lambda *_: pytest.fail("fitted again"))
    monkeypatch.setattr(probes, "LOGISTIC", refusing)
    assert zero_shot(tested, task, fitted=trained) == first


def test_a_layer_whose_probe_cannot_be_scored_is_named(
    models: dict[str, str], options: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = toy_task_of("classification", train=24)
    everything = extract(given(models["bert"], options), [*task.train.texts, *task.test.texts])
    broken = dataclasses.replace(
        probes.LOGISTIC, fit=lambda train, targets, features: np.full((len(features), 2), np.nan)
    )
    monkeypatch.setattr(probes, "LOGISTIC", broken)
    with pytest.raises(DataError, match=r"layer 0 of .*bert cannot be scored: "):
        zero_shot(everything, task)


def test_a_probe_of_features_that_are_constant_finds_the_commonest_class() -> None:
    targets = np.array([0.0, 1, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = probes.logistic_probe(np.ones((4, 3), np.float32), targets, np.ones((2, 3), np.float32))
    assert outputs.argmax(axis=1).tolist() == [1, 1]
    np.testing.assert_allclose(outputs.sum(axis=1), 1)


@pytest.mark.parametrize("present", [(0, 2), (2,), (0,)])
def test_a_probe_of_classes_some_of_which_do_not_occur(present: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    targets = np.array(present * 20, dtype=float)
    train = np.eye(3, 5, dtype=np.float32)[targets.astype(int)] + 0.1 * rng.normal(size=(len(targets), 5))
    outputs = probes.logistic_probe(train.astype(np.float32), targets, train[:9].astype(np.float32))
    np.testing.assert_array_equal(outputs.argmax(axis=1), targets[:9])
    np.testing.assert_allclose(outputs.sum(axis=1), 1)
    assert outputs.shape[1] == max(2, max(present) + 1)


@pytest.fixture(scope="module", params=(*LABELLED, "retrieval", "triplets"))
def finding(request: pytest.FixtureRequest, models: dict[str, str], options: Model) -> Finding:
    task = toy_task_of(request.param, train=32, validation=24, test=24)
    return find(given(models["electra"], options), task, reference=models["bert"], seeds=2, protocol=SHORT)


def test_a_finding_of_any_kind_holds_together(finding: Finding) -> None:
    kind = finding.kind
    assert from_json(Finding, to_json(finding)) == finding
    assert finding.primary == KINDS[kind].metrics[0]
    assert len(finding.untrained) == 4
    assert finding.conclusion.names["metric"] == f"{metric_title(finding.primary)} x 100"
    for outcome in finding.outcomes:
        assert tuple(outcome.test) == KINDS[kind].metrics
        assert outcome.mean == pytest.approx(np.mean(outcome.test[finding.primary]))
        assert all(0 <= score <= 100 for scores in outcome.test.values() for score in scores)


PAIRS, TEXTS = toy_task_of("entailment").test, toy_task_of("classification").test


@pytest.mark.parametrize("text", ["stsb", Path(__file__), Path("pairs.csv")])
def test_a_task_given_as_text_is_to_be_loaded_first(text: Any, models: dict[str, str], options: Model) -> None:
    expected = re.escape(f"got the text '{text}': load it first, task = layerprobe.load_task('{text}')")
    if text == Path("pairs.csv"):
        expected = r"pairs\.csv does not exist: expected a Task from layerprobe\.load_task"
    for call in (
        lambda: score_split(given(models["bert"], options), text),
        lambda: finetune(given(models["bert"], options), text, [1]),
    ):
        with pytest.raises(DataError, match=expected):
            call()
    with pytest.raises(DataError, match=r"expected a Task from layerprobe\.load_task, got a NoneType"):
        check_task(None)
