"""Summaries: ROUGE by the library, the oracle by search, centrality, the probe and the scorer by hand, and files."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.kinds.summaries import SummaryItems, centrality, greedy_oracle, is_summaries, readable, rouge
from layerprobe.kinds.summaries_loss import SentenceScorer
from layerprobe.scoring.score import score, score_split
from layerprobe.scoring.values import Ways
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task
from tests.models import given
from tests.mps import on_mps
from tests.toy_retrieval import write_jsonl
from tests.toy_task import toy_task_of

WORDS = ["cats", "sat", "running", "under", "the", "tables", "and", "chairs", "while", "dogs", "slept"]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 7)))


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_the_library(seed: int) -> None:
    rng = random.Random(seed)
    chosen, summary = (tuple(text(rng) for _ in range(rng.randint(1, 3))) for _ in range(2))
    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    expected = scorer.score("\n".join(summary), "\n".join(chosen))
    found = rouge(chosen, summary)
    assert list(found) == ["rouge-1", "rouge-2", "rouge-l"]
    assert list(found.values()) == [expected[name].fmeasure for name in ("rouge1", "rouge2", "rougeLsum")]


@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_of_one_sentence_is_the_best_and_of_more_no_worse(seed: int) -> None:
    rng = random.Random(seed)
    sentences, summary = [text(rng) for _ in range(5)], (text(rng), text(rng))

    def score(numbers: tuple[int, ...]) -> float:
        scores = rouge(tuple(sentences[i] for i in numbers), summary)
        return scores["rouge-1"] + scores["rouge-2"]

    one = greedy_oracle(sentences, summary, keep=1)
    assert score(one) == max(score((i,)) for i in range(5))
    previous = one
    for keep in (2, 3, 9):
        more = greedy_oracle(sentences, summary, keep=keep)
        assert set(previous) <= set(more)
        assert len(more) <= keep
        assert (
            score(previous)
            <= score(more)
            <= max(score(each) for n in range(1, 6) for each in itertools.combinations(range(5), n))
        )
        previous = more


def test_nothing_in_common_has_no_oracle() -> None:
    assert greedy_oracle(["cats sat", "dogs slept"], ("chairs",), keep=2) == ()
    assert not readable("猫が座った。")
    assert readable("猫が2匹")


@pytest.fixture(scope="module")
def task() -> Task:
    return toy_task_of("summarization")


def items(task: Task) -> SummaryItems:
    assert isinstance(task.test, SummaryItems)
    return task.test


def mean_rouge(chosen: list[int], items: SummaryItems, metric: str = "rouge-l") -> float:
    pairs = zip(chosen, items.documents, items.summaries, strict=True)
    return 100 * float(np.mean([rouge((document[i],), summary)[metric] for i, document, summary in pairs]))


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


ROWS = [
    {"document": f"Cat {i} sat. It rained! Dogs slept at {i}?", "summary": f"Dogs slept at {i}."} for i in range(40)
]


def of_train(task: Task) -> SummaryItems:
    assert isinstance(task.train, SummaryItems)
    return task.train


def test_a_file_is_recognised_and_split(tmp_path: Path) -> None:
    task = load_task(write_jsonl(tmp_path / "articles.jsonl", ROWS))
    assert (task.kind, task.primary) == ("summarization", "rouge-l")
    assert [len(each) for each in (task.train, task.validation, task.test)] == [32, 4, 4]
    assert all(len(sentences) == 3 for sentences in of_train(task).documents)
    assert of_train(task).oracle == ((2,),) * 32
    assert "chooses 1 sentence of each document, the median of the training summaries" in task.notes
    assert load_task(ROWS, kind="summarization").digest == load_task(tmp_path / "articles.jsonl", name="other").digest
    (tmp_path / "marked.jsonl").write_text((tmp_path / "articles.jsonl").read_text(), encoding="utf-8-sig")
    assert load_task(tmp_path / "marked.jsonl").digest == task.digest


def test_a_folder_has_its_splits_and_sentences_can_be_given(tmp_path: Path) -> None:
    listed = [{"text": each["document"].split("! "), "title": ["A cat sat.", each["summary"]]} for each in ROWS]
    for number, split in enumerate(("train", "validation", "test")):
        write_jsonl(tmp_path / f"{split}.jsonl", listed[10 * number : 10 * number + 10])
    task = load_task(tmp_path, kind="summarization", columns="text,title")
    assert of_train(task).documents[0] == ("Cat 0 sat. It rained", "Dogs slept at 0?")
    assert of_train(task).keep == 2
    assert any("10 documents" in said or "30 documents" in said for said in task.warnings)


def test_the_highest_outputs_are_chosen_in_their_order() -> None:
    some = SummaryItems(documents=(("a", "b", "c"), ("d", "e")), summaries=(("x",), ("y",)), oracle=((2,), ()), keep=2)
    outputs = some.arranged(np.array([0.1, 3.0, 0.2, -1.0, -2.0]))
    assert outputs.tolist() == [[0.1, 3.0, 0.2], [-1.0, -2.0, 0.0]]
    assert some.chosen(outputs) == [("b", "c"), ("d", "e")]
    assert some.chosen(some.lead()) == [("a", "b"), ("d", "e")]
    assert some.chosen(some.best()) == [("a", "c"), ("d", "e")]
    assert some.targets.tolist() == [0, 0, 1, 0, 0]
    assert some.take([1, 0]).join(some.take([0])).documents == (("d", "e"), ("a", "b", "c"), ("a", "b", "c"))
    assert some.prompted("p ").texts == ("p a", "p b", "p c", "p d", "p e")
    assert some.prompted("p ").chosen(outputs) == some.chosen(outputs)


def test_a_first_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_MAX_RECORD", "1000")
    (tmp_path / "long.jsonl").write_text('{"document": "' + "a" * 1000 + '", "summary": "a"}')
    assert not is_summaries(tmp_path / "long.jsonl")
