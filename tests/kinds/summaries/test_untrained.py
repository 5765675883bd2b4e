"""Summaries by layer against the same by hand; the trained scorer against its formula."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.summaries import SummaryItems, centrality, rouge
from layerprobe.kinds.summaries_loss import SentenceScorer
from layerprobe.scoring.score import score, score_split
from layerprobe.scoring.values import Ways
from layerprobe.tasks.values import Task
from tests.models import given, save_tiny
from tests.mps import on_mps
from tests.shown import assert_shows_itself
from tests.toy_task import toy_task_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("models") / "bert"))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def task() -> Task:
    return toy_task_of("summarization")


def items(task: Task) -> SummaryItems:
    assert isinstance(task.test, SummaryItems)
    return task.test


def mean_rouge(chosen: list[int], items: SummaryItems, metric: str = "rouge-l") -> float:
    pairs = zip(chosen, items.documents, items.summaries, strict=True)
    return 100 * float(np.mean([rouge((document[i],), summary)[metric] for i, document, summary in pairs]))


# ---- centrality ----------------------------------------------------------------------------------------


def test_degree_is_the_mean_cosine_and_ranks_as_the_centroid_at_unit_norm() -> None:
    values = np.random.default_rng(0).normal(size=(7, 4))
    cosines = values @ values.T / np.outer(*[np.linalg.norm(values, axis=1)] * 2)
    np.testing.assert_allclose(centrality(values), (cosines.sum(axis=1) - 1) / 6)
    units = values / np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_array_equal(np.argsort(centrality(units)), np.argsort(centrality(units, "centroid")))
    mean = values.mean(axis=0)
    np.testing.assert_allclose(centrality(values, "centroid"), units @ mean / np.linalg.norm(mean))
    assert centrality(values[:1]).tolist() == [0.0]
    with pytest.raises(DataError, match="the document is zero in row 0, expected embeddings with a direction"):
        centrality(0 * values)


def test_untrained_scores_are_those_of_the_most_central_sentence(model: str, options: Model, task: Task) -> None:
    scores, embeddings = score_split(given(model, options), task)
    assert (scores.method, scores.primary) == ("centrality", "rouge-l")
    for layer in range(4):
        chosen = []
        for sentences in items(task).documents:
            values = embeddings.layer(layer)[embeddings.rows(sentences)]
            chosen.append(int(centrality(values).argmax()))
        assert scores.scores[layer] == pytest.approx(mean_rouge(chosen, items(task)))


# ---- all ways, beside lead and oracle ------------------------------------------------------------------


def ways_of(model: str, options: Model, task: Task) -> Ways:
    ways = score(given(model, options), task).ways
    assert ways is not None
    return ways


def test_ways_are_held_against_the_first_sentences(model: str, options: Model, task: Task) -> None:
    result = ways_of(model, options, task)
    assert [each.name for each in result.ways] == ["degree", "centroid", "probe"]
    assert result.lead[1] == pytest.approx(mean_rouge([0] * 32, items(task)))
    assert result.baselines["oracle"]["rouge-1"] == pytest.approx(100)
    assert result.ways[0].test["rouge-l"] == score_split(given(model, options), task)[0].scores
    gain = result.ways[2].gains[3]
    assert gain is not None
    assert gain.value == pytest.approx(result.ways[2].test["rouge-l"][3] - result.lead[1])
    assert (gain.n_items, gain.unit) == (32, "document")
    method, layer = result.best
    assert method.validation[layer] == max(max(each.validation) for each in result.ways)


def test_the_probe_is_logistic_regression_on_the_oracle(model: str, options: Model, task: Task) -> None:
    result = ways_of(model, options, task)
    embeddings = extract(given(model, options), task.texts())
    assert isinstance(task.train, SummaryItems)
    train, test = (embeddings.layer(2)[embeddings.rows(each.sentences)] for each in (task.train, items(task)))
    peer = make_pipeline(StandardScaler(), LogisticRegression(C=10 / train.shape[1], max_iter=1000))
    peer.fit(train, task.train.targets)
    chosen = peer.predict_proba(test)[:, 1].reshape(32, 5).argmax(axis=1).tolist()
    assert result.ways[2].test["rouge-l"][2] == pytest.approx(mean_rouge(chosen, items(task)), abs=1e-6)


def test_it_shows_itself(model: str, options: Model, task: Task, tmp_path: Path) -> None:
    assert_shows_itself(score(given(model, options), task), tmp_path)


# ---- trained -------------------------------------------------------------------------------------------


def test_the_scorer_is_a_linear_layer_with_binary_cross_entropy(model: str, task: Task) -> None:
    encoder = load_encoder(model, device="cpu")
    prepared = SentenceScorer.prepare(encoder, task.test, max_length=16)
    assert len(prepared) == 5 * 32
    torch.manual_seed(0)
    scorer = SentenceScorer(width=16, n_labels=0)
    kept = torch.randn(len(prepared.texts.lengths), 16)
    rows = np.array([3, 8, 70])
    weight, bias = scorer.head.weight[0], scorer.head.bias
    logits = kept[prepared.sides[0][rows]] @ weight + bias
    expected = F.binary_cross_entropy(
        torch.sigmoid(logits), torch.tensor(items(task).targets[rows], dtype=torch.float32)
    )
    torch.testing.assert_close(scorer.example_loss(kept[prepared.sides[0][rows]], prepared, rows), expected)
    outputs = scorer.item_outputs(kept.numpy(), prepared)
    assert outputs.shape == (32, 5)
    every = (kept[prepared.sides[0]] @ weight + bias).detach().numpy().reshape(32, 5)
    np.testing.assert_allclose(outputs, every, atol=1e-6)
    scorer.head.weight = torch.nn.Parameter(on_mps(scorer.head.weight.detach()))
    np.testing.assert_array_equal(scorer.item_outputs(kept.numpy(), prepared), outputs)


def test_it_learns_which_sentence_is_the_summary(model: str, options: Model, task: Task) -> None:
    protocol = Protocol(learning_rate=1e-2, epochs=4, batch_size=16)
    (run,) = finetune(given(model, options), task, (1,), seeds=(0,), protocol=protocol).runs
    assert run.test["rouge-1"] > 90
    scanned = finetune(given(model, options), task, scan=True, protocol=Protocol(epochs=1))
    assert all(set(layer.test) == {"rouge-l", "rouge-1", "rouge-2"} for layer in scanned.runs)
