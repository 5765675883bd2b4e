"""LogME, H-score, LinMSE, kNN and the contrastive loss of tasks of every kind, on the training items alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.readings import transferability
from layerprobe.readings.registry import READINGS, alone
from layerprobe.readings.source import read_curves
from layerprobe.readings.transferability import item_features, positive_pairs
from layerprobe.readings.values import LayerCurve
from layerprobe.scoring.transferability import (
    class_columns,
    contrastive_loss,
    h_score,
    linear_mse,
    log_evidence,
    neighbour_predictions,
)
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task
from tests.models import N_BLOCKS, TEXTS, given, save_tiny
from tests.toy_kind import toy_kind
from tests.toy_task import toy_examples, toy_task_of

NAMES = ("LogME", "H-score", "LinMSE", "kNN", "contrastive loss")
ENTAILMENT = ("NEUTRAL", "CONTRADICTION", "ENTAILMENT")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))


def similar_pairs(n: int = 96) -> Task:
    """Scores of 0 to 1 in quarters, of which the whole ones are positive."""
    return toy_task_of("sts", train=n, validation=8, test=8)


def read(model: str, task: Task, options: Model, *names: str) -> dict[str, LayerCurve]:
    return read_curves(given(model, options), TEXTS, names or NAMES, task=task)


# ---- which there are of a kind, and that they are what the formulas give -------------------------------------------


def test_scores_of_pairs(model: str, options: Model) -> None:
    task = similar_pairs()
    curves = read(model, task, options)
    assert list(curves) == ["LogME", "LinMSE", "kNN", "contrastive loss"]
    embedded = extract(given(model, options), task.train.texts)
    first, second = embedded.rows(task.train.first), embedded.rows(task.train.second or ())
    scores = np.array(task.train.targets)
    for layer in range(N_BLOCKS + 1):
        values = embedded.layer(layer).astype(float)
        u, v = ((side / np.linalg.norm(side, axis=1)[:, None]) for side in (values[first], values[second]))
        features = np.concatenate([abs(u - v), u * v], axis=1)
        said = neighbour_predictions(features, scores, classes=False)
        positive = scores > 0.8
        loss = contrastive_loss(u[positive], v[positive], np.eye(positive.sum(), dtype=bool))
        expected = {
            "LogME": log_evidence(features, scores),
            "LinMSE": linear_mse(features, scores),
            "kNN": 100 * stats.spearmanr(said, scores).statistic,
            "contrastive loss": loss,
        }
        assert {name: curve.values[layer] for name, curve in curves.items()} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["paraphrase", "entailment", "classification"])
def test_classes(kind: str, model: str, options: Model) -> None:
    task = toy_task_of(kind, train=96, validation=8, test=8)
    if kind == "entailment":
        task = replace(task, labels=ENTAILMENT)
    curves = read(model, task, options)
    assert list(curves) == ["LogME", "H-score", "kNN", "contrastive loss"]
    embedded = extract(given(model, options), task.train.texts)
    layer, classes = 2, np.array(task.train.targets)
    u = embedded.layer(layer)[embedded.rows(task.train.first)]
    v = None if task.train.second is None else embedded.layer(layer)[embedded.rows(task.train.second)]
    features = item_features(KINDS[kind], u, v, name="layer 2")
    assert features.shape == (96, {"paraphrase": 2, "entailment": 3, "classification": 1}[kind] * u.shape[1])
    assert curves["LogME"].values[layer] == pytest.approx(log_evidence(features, class_columns(classes)))
    assert curves["H-score"].values[layer] == pytest.approx(h_score(features, classes))
    right = neighbour_predictions(features, classes, classes=True) == classes
    assert curves["kNN"].values[layer] == pytest.approx(100 * right.mean())


def test_numbers_that_single_texts_have(
    model: str, options: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind from another package is read, too; nothing says which of its texts belong together."""
    examples = replace(toy_examples("classification", 40, 1), targets=tuple(float(i % 7) / 7 for i in range(40)))
    with toy_kind(monkeypatch, tmp_path):
        task = Task(name="toy", kind="grading", train=examples, validation=examples, test=examples)
        assert list(read(model, task, options)) == ["LogME", "LinMSE", "kNN"]


# ---- what belongs together ---------------------------------------------------------------------------------


def test_which_pairs_say_the_same() -> None:
    sts, paraphrase, entailment, texts = map(toy_task_of, ("sts", "paraphrase", "entailment", "classification"))
    for task, least in ((sts, 0.81), (paraphrase, 1.0), (replace(entailment, labels=ENTAILMENT), 2.0)):
        pairs = positive_pairs(task)
        assert pairs is not None
        targets = np.array(task.train.targets)
        assert 0 < len(pairs) < len(targets)
        np.testing.assert_array_equal(pairs, np.flatnonzero(targets >= least))
    assert positive_pairs(entailment) is None, "expected nothing where no class is called entailment"
    every = positive_pairs(texts)
    assert every is not None
    assert len(every) == len(texts.train)


def test_without_anything_that_belongs_together_there_is_no_loss(model: str, options: Model) -> None:
    apart = similar_pairs()
    apart = replace(apart, train=replace(apart.train, targets=tuple(t / 2 for t in apart.train.targets)))
    each_its_own = toy_task_of("classification", train=8, validation=8, test=8)
    labels, targets = tuple("abcdefgh"), tuple(map(float, range(8)))
    each_its_own = replace(each_its_own, labels=labels, train=replace(each_its_own.train, targets=targets))
    for task in (apart, each_its_own, toy_task_of("entailment")):
        assert "contrastive loss" in READINGS
        assert not read(model, task, options, "contrastive loss")


def test_batches_are_those_of_the_published_size(model: str, options: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of few is easier to tell than one of many."""
    task = similar_pairs(400)
    pairs = positive_pairs(task)
    assert pairs is not None
    assert len(pairs) > transferability.BATCH
    batched = read(model, task, options, "contrastive loss")["contrastive loss"].values
    monkeypatch.setattr(transferability, "BATCH", 1000)
    whole = read(model, task, options, "contrastive loss")["contrastive loss"].values
    assert all(few < many for few, many in zip(batched, whole, strict=True))


# ---- which items ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sts", "classification"])
def test_nothing_but_the_training_items_is_read(kind: str, model: str, options: Model) -> None:
    task = toy_task_of(kind, train=96, validation=8, test=8)
    other = replace(task, test=toy_examples(kind, 50, 7), validation=toy_examples(kind, 50, 8))
    assert read(model, other, options) == read(model, task, options)


def test_of_many_items_a_random_choice_is_read(model: str, options: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    task = similar_pairs()
    whole = read(model, task, options)
    monkeypatch.setattr(transferability, "ITEMS", 60)
    some = read(model, task, options)
    assert some != whole
    assert some == read(model, task, options)


# ---- what cannot be read ------------------------------------------------------------------------------------


def test_they_need_a_task_and_stay_out_of_what_needs_none(model: str, options: Model) -> None:
    assert not set(NAMES) & set(alone())
    with pytest.raises(DataError, match="expected a task for LogME, got texts alone"):
        read_curves(given(model, options), TEXTS, ["LogME"])


@pytest.mark.parametrize("name", ["LogME", "LinMSE", "kNN", "contrastive loss"])
def test_a_layer_that_is_the_same_for_all_texts_is_left_out(name: str, model: str, options: Model) -> None:
    """The first token is the same in every text before the first block."""
    curve = read(model, similar_pairs(), replace(options, pooling="cls"), name)[name]
    assert curve.first_layer == 1
    assert curve.values[0] == curve.values[1]


def test_fewer_items_than_features_are_read(model: str, options: Model) -> None:
    curves = read(model, similar_pairs(12), options, "LogME", "LinMSE", "kNN")
    assert len(curves) == 3
    assert all(np.isfinite(curve.values).all() for curve in curves.values())


@pytest.mark.parametrize("name", ["LogME", "H-score", "kNN"])
def test_one_class_is_told(name: str, model: str, options: Model) -> None:
    task = toy_task_of("classification", train=12, validation=8, test=8)
    one = replace(task, train=replace(task.train, targets=(1.0,) * 12))
    with pytest.raises(DataError, match=r"layer 0 of .* cannot be scored: .* at least two classes, got \[1.0\]"):
        read(model, one, options, name)
