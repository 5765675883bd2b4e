"""layerprobe score of summaries, and documents with summaries through the other commands."""

import json
from pathlib import Path

import pytest

from tests.toy_task import toy_summaries

from .conftest import QUICK, Layerprobe, Pair


@pytest.fixture(scope="session")
def articles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents of five sentences, one of which is the summary."""
    toys, path = toy_summaries(60, 0), tmp_path_factory.mktemp("summaries") / "articles.jsonl"
    rows = zip(toys.documents, toys.summaries, strict=True)
    path.write_text("".join(json.dumps({"document": list(a), "summary": list(b)}) + "\n" for a, b in rows))
    return path


def test_a_table_beside_lead_and_oracle(layerprobe: Layerprobe, pair: Pair, articles: Path, tmp_path: Path) -> None:
    page = tmp_path / "summaries.html"
    done = layerprobe("score", pair[0], "-t", articles, "--report", page)
    assert done.code == 0, done.err
    header, *rows = done.table
    assert header.split()[0] == "layer"
    assert [row.split()[0] for row in rows[:4]] == ["0", "1", "2", "3"]
    assert page.is_file()
    result = layerprobe("score", pair[0], "-t", articles, "--json").json
    assert [each["name"] for each in result["ways"]["ways"]] == ["degree", "centroid", "probe"]
    other = layerprobe("score", pair[0], "-t", articles, "--kind", "classification")
    assert other.code == 1


def test_it_is_a_kind_of_task_like_the_others(
    layerprobe: Layerprobe, pair: Pair, articles: Path, tmp_path: Path
) -> None:
    source = ("-t", articles)
    scored = layerprobe("score", pair[0], *source, "--prompt", "a ")
    assert "ROUGE-L" in scored.out
    tuned = layerprobe("finetune", pair[0], *source, *QUICK, "--layers", "1,2", "--save-models")
    assert "test ROUGE-L" in tuned.out
    directory = next(line for line in tuned.out.splitlines() if "layer-001-seed-0" in line)
    exported = layerprobe("export", directory.rpartition(": ")[2].strip(), tmp_path / "out")
    assert exported.code == 0, exported.err
