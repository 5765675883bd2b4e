"""Tasks of every kind on the command line."""

import random
from pathlib import Path

import pytest

from tests.few import few

from .conftest import QUICK, Layerprobe, Pair

CLASSES = ("same", "close", "apart")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of pairs with 0 and 1, of pairs with three relations, of labelled texts, and a folder of word pairs."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("kinds")
    lines: dict[str, list[str]] = {"paraphrase": ["a,b,label"], "entailment": ["a,b,label"], "classification": []}
    for number in range(120):
        first = rng.choices("abcdefgh", k=6)
        second = [letter if rng.random() < 0.5 else rng.choice("abcdefgh") for letter in first]
        shared = sum(x == y for x, y in zip(first, second, strict=True))
        texts = f"{' '.join(first)},{' '.join(second)}"
        lines["paraphrase"].append(f"{texts},{int(shared > 3)}")
        lines["entailment"].append(f"{texts},{CLASSES[number % 3]}")
        lines["classification"].append(f"{' '.join(first)},{int('a' in first)}")
    for name, rows in lines.items():
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    (folder / "words").mkdir()
    for name, top in (("one", 4), ("two", 10)):
        rows = [f"{name}{i},{name}{i + 1},{top * i / 40}" for i in range(41)]
        (folder / "words" / f"{name}.csv").write_text("\n".join(["word1,word2,similarity", *rows]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("kind", "options", "title"),
    few(
        [
            ("paraphrase", ("--columns", "a,b,label"), "F1"),
            ("entailment", ("--columns", "a,b,label"), "macro F1"),
            ("classification", (), "accuracy"),
        ],
        lambda case: case[0] == "classification",
    ),
)
def test_find(layerprobe: Layerprobe, pair: Pair, data: Path, kind: str, options: tuple[str, ...], title: str) -> None:
    source = ("-t", data / f"{kind}.csv", *options)
    done = layerprobe("find", pair[0], "-r", pair[1], *source, *QUICK)
    assert done.code == 0, done.err
    assert f"{title} x 100" in done.out
    assert f"note: read as {kind}" in done.err
    tuned = layerprobe("finetune", pair[0], *source, *QUICK, "--layers", "3")
    assert f"test {title}" in tuned.out
    predicted = layerprobe("predict", pair[0], "-r", pair[1], *source, "--json").json
    assert "best zero-shot layer" in predicted["drops"][0]["baselines"]


def test_files_of_a_folder_are_merged(layerprobe: Layerprobe, pair: Pair, data: Path) -> None:
    printed = layerprobe("extract", pair[0], "-t", data / "words", "--merge", "--json").json
    assert "scaled 41 scores of one.csv from 0 .. 4 to 0 .. 1" in printed["notes"]
    assert any("into 57 train, 12 validation, 13 test" in note for note in printed["notes"])


@pytest.mark.parametrize(
    "options", [("--merge", "--columns", "a,b,c"), ("--merge", "--kind", "paraphrase"), ("--kind", "no-such-kind")]
)
def test_options_that_do_not_fit(layerprobe: Layerprobe, pair: Pair, data: Path, options: tuple[str, ...]) -> None:
    assert layerprobe("extract", pair[0], "-t", data / "words", *options).code == 2


@pytest.mark.parametrize(
    "options", [("--kind", "entailment"), ("--query-prompt", "q: "), ("--document-prompt", "d: "), ("--keep-overlaps",)]
)
def test_texts_have_no_options_of_tasks(
    layerprobe: Layerprobe, pair: Pair, data: Path, options: tuple[str, ...]
) -> None:
    printed = layerprobe("extract", pair[0], "--texts", data / "entailment.csv", *options)
    assert (printed.code, f"expected no {options[0]} with --texts" in printed.err) == (2, True)
