"""Numbers of single texts, and word similarity from several files, as the paper merges them."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import r2_score

from layerprobe.kinds.sentences import load_word_similarity
from layerprobe.metrics.scores import fit_scores
from layerprobe.tasks.kind import detect_kind
from layerprobe.tasks.loading import load_task


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0.5", "1", "2"], "regression"),
        (["1990.5", "-3"], "regression"),
        ([str(3 * i) for i in range(30)], "regression"),  # many, with gaps
        ([str(i) for i in range(150)], "classification"),  # the numbers of 150 classes
        (["1", "2", "3", "4", "5"], "classification"),
        (["1.0", "2.0"], "classification"),
        (["0", "10", "100"], "classification"),
        (["0.5", "yes"], "classification"),
    ],
)
def test_numbers_that_are_not_those_of_classes_are_values(cells: list[str], kind: str) -> None:
    assert detect_kind(cells, pairs=False) == kind


def prices(folder: Path, *values: float) -> Path:
    path = folder / "prices.csv"
    path.write_text("text,price\n" + "".join(f"text {i} here,{value}\n" for i, value in enumerate(values)))
    return path


def test_values_outside_of_usual_ranges_are_scaled_by_their_own(tmp_path: Path) -> None:
    path = prices(tmp_path, *(12.5 * i - 50 for i in range(60)))
    task = load_task(path)
    assert (task.kind, task.score_range, task.primary) == ("regression", (-50, 687.5), "spearman")
    assert "read as regression; scaled scores from -50 .. 687.5 to 0 .. 1, a range detected from the data" in task.notes
    targets = [target for split in (task.train, task.validation, task.test) for target in split.gold]
    assert (min(targets), max(targets)) == (0, 1)
    assert load_task(path, score_range=(-100, 900)).score_range == (-100, 900)


def test_whole_numbers_are_values_where_asked_for(tmp_path: Path) -> None:
    path = prices(tmp_path, *(i % 5 for i in range(60)))
    assert load_task(path).kind == "classification"
    task = load_task(path, kind="regression")
    assert (task.kind, task.score_range, task.labels) == ("regression", (0, 4), ())


def test_r2_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    targets, noise = rng.normal(size=50), rng.normal(size=50)
    for outputs in (targets + noise, 3 * noise, targets):
        assert fit_scores(outputs, targets)["r2"] == pytest.approx(r2_score(targets, outputs))


def words(n: int, start: int = 0) -> list[tuple[str, str]]:
    names = [f"{chr(97 + i // 26 % 26)}{chr(97 + i % 26)}" for i in range(start, start + 2 * n)]
    return list(zip(names[::2], names[1::2], strict=True))


def write_two(folder: Path) -> Path:
    """One file of 0 to 4 with a header, one of 0 to 10 without; the first pair of one is the last of the other."""
    first = [f"{i},{a},{b},{4 * i / 29:.2f}" for i, (a, b) in enumerate(words(30))]
    (folder / "a.csv").write_text("\n".join([",word1,word2,similarity", *first]) + "\n")
    second = [f"{a}\t{b}\tV\t{10 * i / 30:.2f}\tNONE" for i, (a, b) in enumerate(words(30, 100))]
    a, b = words(1)[0]
    (folder / "b.txt").write_text("\n".join([*second, f"{b}\t{a}\tV\t9.5\tNONE"]) + "\n")
    return folder


def test_each_file_has_its_own_scale(tmp_path: Path) -> None:
    task = load_word_similarity(write_two(tmp_path))
    assert (task.kind, task.score_range, task.labels) == ("sts", None, ())
    gold = {
        (first, second): score
        for split in (task.train, task.validation, task.test)
        for first, second, score in zip(split.first, split.second or (), split.targets, strict=True)
    }
    assert len(gold) == 60
    assert gold[words(30)[29]] == 1.0
    assert gold[words(30, 100)[15]] == 0.5
    assert gold[words(1)[0]] == 0.0, "the pair that comes again, turned round, is left out"
    assert task.notes[:3] == (
        "scaled 30 scores of a.csv from 0 .. 4 to 0 .. 1",
        "scaled 31 scores of b.txt from 0 .. 10 to 0 .. 1",
        "left out 1 of 61 repeated pairs",
    )


def test_the_split_is_70_15_15_by_the_seed(tmp_path: Path) -> None:
    folder = write_two(tmp_path)
    task = load_word_similarity(folder, seed=1)
    assert (len(task.train), len(task.validation), len(task.test)) == (42, 9, 9)
    assert load_word_similarity(folder, seed=2).digest != task.digest


def test_the_four_of_the_paper(shared_data: Path) -> None:
    folder = shared_data / "wordsim"
    task = load_word_similarity(folder)
    sources = ("SimLex-999.txt", "SimVerb-3500.txt", "rg-65.csv", "wordsim353-sim.csv")
    distinct: set[frozenset[str]] = set()
    for source in sources:
        columns = "0,1,3" if source.startswith("SimVerb") else None
        part = load_task(folder / source, columns=columns)
        for split in (part.train, part.validation, part.test):
            distinct |= {frozenset(pair) for pair in zip(split.first, split.second or (), strict=True)}
    assert len(task.train) + len(task.validation) + len(task.test) == len(distinct)
    assert (len(task.train), len(task.validation), len(task.test)) == (3193, 684, 685)
    assert min(task.train.targets) == 0
    assert max(task.train.targets) == 1
