import csv
import gzip
import re
import tempfile
from pathlib import Path

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerprobe.errors import TaskError
from layerprobe.tasks.cells import TableLog
from layerprobe.tasks.loading import load_corpus, load_task, load_texts
from layerprobe.tasks.values import TextFile

SCORES = [0, 1.25, 2.5, 5]


def rows(n: int = 4, word: str = "text") -> list[tuple[str, str, float]]:
    return [(f"{word} {i}", f"other {word} {i}", SCORES[i % 4]) for i in range(n)]


def write_csv(path: Path, pairs, header: bool = False) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([("sentence1", "sentence2", "score")] if header else [])
        writer.writerows(pairs)
    return path


def write_splits(folder: Path, train="train", validation="dev", test="test", suffix=".csv") -> Path:
    for name, n in ((train, 8), (validation, 5), (test, 4)):
        write_csv(folder / f"{name}{suffix}", rows(n, name))
    return folder / f"{train}{suffix}"


def sizes(task) -> tuple[int, int, int]:
    return len(task.train), len(task.validation), len(task.test)


@pytest.mark.parametrize("header", [True, False])
def test_three_given_files(tmp_path, header):
    paths = [write_csv(tmp_path / f"{name}.csv", rows(n, name), header) for name, n in [("a", 6), ("b", 5), ("c", 4)]]
    task = load_task(paths[0], validation=str(paths[1]), test=paths[2])
    assert sizes(task) == (6, 5, 4)
    assert task.test.first == ("c 0", "c 1", "c 2", "c 3")
    assert task.test.second[3] == "other c 3"
    assert task.test.targets == (0, 0.25, 0.5, 1)
    assert (task.name, task.score_range) == (str(paths[0]), (0, 5))
    scaled = "read as sts; scaled scores from 0 .. 5 to 0 .. 1, a range detected from the data"
    inferred = f"{paths[0]}: read as texts in column 0 and column 1, target in column 2; --columns chooses otherwise"
    assert task.notes == ((scaled,) if header else (inferred, scaled))


def test_other_formats_give_the_same_task(tmp_path):
    pairs = rows(60)
    frame = pandas.DataFrame(pairs, columns=["sentence1", "sentence2", "score"])
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    write_csv(tmp_path / "a.csv", pairs)
    digests = {load_task(tmp_path / f"a{suffix}").digest for suffix in (".parquet", ".jsonl", ".tsv", ".csv")}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [
        ("train", "dev", "test"),
        ("en-train", "en-val", "en-test"),
        ("SICK_train", "SICK_trial", "SICK_test_annotated"),
        ("training", "development", "testing"),
        ("train", "eval", "test"),
        ("train", "dev", "eval"),
        ("x-train", "x-dev", "x-evaluation"),
    ],
)
def test_words_for_splits(tmp_path, train, validation, test):
    file = write_splits(tmp_path, train, validation, test)
    (tmp_path / "LICENSE").write_text("free")
    task = load_task(file)
    assert sizes(task) == sizes(load_task(tmp_path)) == (8, 5, 4)
    assert task.notes[:2] == (
        f"used {tmp_path / validation}.csv as the validation split, by its name beside {train}.csv",
        f"used {tmp_path / test}.csv as the test split, by its name beside {train}.csv",
    )
    if "trial" not in validation:
        frames = {name: rows(n, name) for name, n in ((train, 8), (validation, 5), (test, 4))}
        assert sizes(load_task(frames)) == (8, 5, 4)


def test_splits_without_a_role_are_told(tmp_path, caplog):
    write_splits(tmp_path)
    write_csv(tmp_path / "extra.csv", rows(4, "extra"))
    (tmp_path / "README.txt").write_text("read me")
    load_task(tmp_path)
    frames = {name: rows(n, name) for name, n in (("train", 8), ("dev", 5), ("test", 4), ("eval", 4), ("extra", 4))}
    load_task(frames)
    assert set(caplog.messages) == {
        f"{tmp_path}: left out extra.csv; its splits are those named train, validation and test",
        "data: left out eval, extra; its splits are those named train, validation and test",
    }


def test_siblings_are_named_alike_and_others_are_drawn_from_train(tmp_path):
    write_csv(tmp_path / "de-dev.csv", rows())
    write_csv(tmp_path / "en-dev.tsv", rows())
    train = write_csv(tmp_path / "en-train.csv", rows(60))
    assert sizes(load_task(train)) == (48, 6, 6)
    write_csv(tmp_path / "en-test.csv", rows(4, "test"))
    task = load_task(train)
    assert sizes(task) == (53, 7, 4)
    assert "split 60 pairs at random with seed 0 into 53 train, 7 validation" in task.notes[2]
    task = load_task(train, test=write_csv(tmp_path / "mine.csv", rows(7, "mine")))
    assert sizes(task) == (53, 7, 7), "a split that is given goes before its sibling"


def test_two_siblings_for_one_split_are_an_error(tmp_path):
    train = write_splits(tmp_path)
    write_csv(tmp_path / "valid.csv", rows())
    with pytest.raises(TaskError, match=r"dev\.csv and valid\.csv could both be the validation split .* --validation"):
        load_task(train)


def test_one_file_is_split_by_ratio(tmp_path):
    pairs = [*rows(60), *[(second, first, score) for first, second, score in rows(20)]]
    path = write_csv(tmp_path / "my-test.csv", pairs)
    task = load_task(path, split_ratios=(0.5, 0.25, 0.25), seed=3)
    assert sizes(task) == pytest.approx((40, 20, 20), abs=2)
    splits = [{frozenset(pair) for pair in zip(s.first, s.second, strict=True)} for s in (task.train, task.test)]
    assert not splits[0] & splits[1]
    assert "at random with seed 3" in task.notes[1]
    assert task.digest == load_task(path, split_ratios=(0.5, 0.25, 0.25), seed=3).digest
    assert task.digest != load_task(path, split_ratios=(0.5, 0.25, 0.25), seed=4).digest


@pytest.mark.parametrize("names", [("en-train", "de-train"), ("a", "b"), ("dev", "test")])
def test_an_ambiguous_folder_lists_its_files(tmp_path, names):
    for name in names:
        write_csv(tmp_path / f"{name}.csv", rows())
    with pytest.raises(TaskError, match=rf"pass the train file of {'.*'.join(sorted(names))}\.csv"):
        load_task(tmp_path)


def test_empty_cells_are_told_at_once(tmp_path):
    train = write_csv(tmp_path / "train.csv", [*rows(8), ("", "b", 1), ("", " ", 2), ("a", "b", ""), ("", "\t", "")])
    write_csv(tmp_path / "test.csv", [*rows(4, "test"), *[("", "b", 1)] * 7], header=True)
    told = (
        f"10 rows cannot be used: {train}: 1 with an empty column 0 (line 9), 1 with an empty column 0 and column 1 "
        f"(line 10), 1 with an empty column 2 (line 11); {tmp_path / 'test.csv'}: 7 with an empty sentence1 (lines 6, "
        "7, 8, 9, 10, ...): fix or drop them, or skip them with --skip-empty"
    )
    with pytest.raises(TaskError, match=f"^{re.escape(told)}$"):
        load_task(train)
    write_csv(tmp_path / "dev.csv", rows(4, "dev"))
    task = load_task(train, skip_empty=True)
    assert sizes(task) == (8, 4, 4)
    assert task.warnings[:3] == (
        f"{train}: left out rows that cannot be used, 1 with an empty column 0 (line 9), 1 with an empty column 0 and "
        "column 1 (line 10), 1 with an empty column 2 (line 11)",
        f"{tmp_path / 'test.csv'}: left out rows that cannot be used, 7 with an empty sentence1 (lines 6, 7, 8, 9, 10, "
        "...)",
        f"{train}: left out 1 row without column 0 and column 1 and column 2",
    )


def test_the_range_is_that_of_all_splits(tmp_path):
    names = {
        "train": [("a", "b", 1), ("c", "d", 0), ("e", "f", 1), ("g", "h", 0)],
        "dev": rows(4, "dev"),
        "test": rows(),
    }
    for name, pairs in names.items():
        write_csv(tmp_path / f"{name}.csv", pairs)
    with pytest.raises(TaskError, match=r"expected 0 or 1 as the label of a paraphrase, got '1\.25': fix it, or"):
        load_task(tmp_path)
    assert load_task(tmp_path, kind="sts").train.targets == (0.2, 0, 0.2, 0)


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=20))
def test_any_characters_are_cleaned_not_refused(texts):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        pandas.Series([*texts, "end"], name="text").to_frame().to_json(path, orient="records", lines=True)
        cleaner = TableLog()
        kept = tuple(t for t in map(cleaner.clean, [*texts, "end"]) if t.strip())
        assert load_texts(path, skip_empty=True).texts == kept


@pytest.mark.parametrize("name", ["a.fasta", "a.FA", "a.faa.gz"])
def test_a_fasta_file_has_one_text_a_record(name, tmp_path):
    path, data = tmp_path / name, b"\n>sp|P1|ONE first\nMKTA\nqrqi*\n\n>two\r\nML SD\r\n>two\nMLSD*A\n"
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert load_texts(path) == load_corpus([path]) == TextFile(name=str(path), texts=("MKTAqrqi", "MLSD", "MLSD*A"))
    with pytest.raises(TaskError, match="has lines but no columns: for groups, use a CSV"):
        load_texts(path, groups="id")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("MKT\n>a\nM\n", r"a\.fasta, line 1: expected a header that begins with >, got 'MKT'$"),
        (">a b\n*\n>\n>c\nAA\n", r"^2 texts cannot be used: .*a\.fasta: 2 with an empty sequence \(a, line 3\): fix"),
        ("\n", "has no texts: expected at least one"),
    ],
)
def test_what_is_wrong_with_a_fasta_file_is_one_line(data, problem, tmp_path):
    (tmp_path / "a.fasta").write_text(data)
    with pytest.raises(TaskError, match=problem):
        load_texts(tmp_path / "a.fasta")


def test_a_text_file_has_one_text_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone, two\r\n\n  \nthree\tfour\n\xc2\x85null\nnull\n")
    with pytest.raises(
        TaskError, match=rf"^2 texts cannot be used: {re.escape(str(path))}: 2 with an empty line \(lines 2, 3\): "
    ):
        load_texts(path)
    found = load_texts(path, skip_empty=True)
    assert (found.name, found.texts) == (str(path), ("one, two", "three\tfour", " null", "null"))
    assert found.warnings == (
        f"{path}: left out texts that cannot be used, 2 with an empty line (lines 2, 3)",
        f"{path}: replaced control characters by spaces in 1 text",
    )


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("en-train.csv", (5725, 1497, 1379)),
        pytest.param("de-train.csv", (5712, 1490, 1379), marks=pytest.mark.slow),
        pytest.param("es-train.csv", (5720, 1493, 1379), marks=pytest.mark.slow),
        ("ko-train.tsv", (5743, 1491, 1379)),
    ],
)
def test_sts_benchmark(shared_data, name, left):
    task = load_task(shared_data / "stsb" / name)
    assert sizes(task) == left
    assert task.score_range == (0, 5)
    if name == "en-train.csv":
        assert task.train.first[0] == "A plane is taking off."
        assert task.train.second[2] == "A man is spreading shredded cheese on an uncooked pizza."
        assert task.train.targets[1] == pytest.approx(0.76)
        assert any("," in text for text in task.test.first)


@pytest.mark.parametrize(
    ("source", "columns", "expected", "score_range"),
    [
        ("sick", None, (4404, 491, 4927), (1, 5)),  # 96 of 4,500 and 9 of 500 pairs stand in another split
        ("wordsim/SimLex-999.txt", None, (799, 100, 100), (0, 10)),
        ("wordsim/SimVerb-3500.txt", "0,1,3", (2800, 350, 350), (0, 10)),
        ("wordsim/rg-65.csv", None, (52, 6, 7), (0, 4)),
        ("wordsim/wordsim353-sim.csv", None, (162, 20, 21), (0, 10)),
    ],
)
def test_files_of_other_tasks(shared_data, source, columns, expected, score_range):
    task = load_task(shared_data / source, columns=columns)
    assert (sizes(task), task.score_range) == (expected, score_range)
