"""layerprobe score of retrieval."""

import json
import random
import shutil
from pathlib import Path

import pytest

from .conftest import Layerprobe, Pair


@pytest.fixture(scope="session")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty queries, each with a document that shares its letters and ten that are nobody's."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("beir")
    words = [rng.sample("abcdefghijklmnop", 5) for _ in range(40)]
    corpus = [{"_id": f"d{i}", "title": "", "text": " ".join(reversed(each))} for i, each in enumerate(words)]
    queries = [{"_id": f"q{i}", "text": " ".join(each[:4])} for i, each in enumerate(words[:30])]
    for name, records in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(29))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_json_has_every_query(layerprobe: Layerprobe, pair: Pair, beir: Path) -> None:
    options = ("--ranking", "dot", "--query-prompt", "a ", "--document-prompt", "b ", "--level", "0.9")
    found = layerprobe("score", *pair, "-t", beir, *options, "--no-time", "--json").json
    first, second = found["tasks"]
    assert [model["name"] for model in found["models"]] == list(map(str, pair))
    assert first["scores"]["by_item"] != second["scores"]["by_item"]
    assert found["settings"] == {"query_prompt": "a ", "document_prompt": "b "}
    assert first["scores"]["method"] == "dot"
    assert len(first["ids"]) == len(first["scores"]["by_item"]["ndcg@10"][3]) == 29


def test_a_model_that_cannot_read_a_collection_or_several_tasks_is_told(
    layerprobe: Layerprobe, pair: Pair, beir: Path, pairs_file: Path, tmp_path: Path
) -> None:
    greek = str.maketrans("cdefghijklmnop", "γδεζηθικλμνξοπ")
    for each in (folder := shutil.copytree(beir, tmp_path / "greek")).glob("*.jsonl"):
        records = map(json.loads, each.read_text().splitlines())
        greeks = [record | {"text": record["text"].translate(greek)} for record in records]
        each.write_text("".join(json.dumps(record) + "\n" for record in greeks))
    (other := tmp_path / "greek.csv").write_text(pairs_file.read_text().translate(greek))
    page, said = tmp_path / "scores.html", "cannot read these texts"
    for tasks in ((folder,), (pairs_file, other)):
        done = layerprobe("score", pair[0], *(word for task in tasks for word in ("-t", task)), "--report", page)
        assert (done.code, done.err.count(said)) == (0, 1), done.err
        assert said in page.read_text()
