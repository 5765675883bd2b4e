"""Arrays and targets in, the layer to use out: every kind of target, every combination, and what cannot be used."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_json
from layerprobe.metrics.scores import cosine_scores, spearman
from layerprobe.probing.run import probe
from layerprobe.probing.targets import as_groups, as_targets
from layerprobe.probing.values import ProbeSettings, Probing
from layerprobe.results import words
from tests.probing.data import layered, scores_of
from tests.shown import assert_shows_itself

N = 240
FEW: dict[str, Any] = {"foldings": 1}
EMBEDDINGS, SIGNAL = layered(N)
RNG = np.random.default_rng(1)
ROWS = np.stack([RNG.integers(0, N, 200), RNG.integers(0, N, 200)], axis=1)
TARGETS: dict[str, Any] = {
    "scores": scores_of(SIGNAL),
    "classes": np.array(["low", "high"])[(SIGNAL.sum(axis=1) > 0).astype(int)],
    "labels": (SIGNAL[:, :2] > 0.5).astype(int),
    "pairs": np.column_stack([ROWS, (SIGNAL[ROWS[:, 0]] * SIGNAL[ROWS[:, 1]]).sum(axis=1)]),
    "queries": np.array([(i, 60 + np.argmax(SIGNAL[60:] @ SIGNAL[i]), 1 + i % 2) for i in range(60)]),
}
PRIMARY = {
    "scores": "spearman",
    "classes": "accuracy",
    "labels": "average precision",
    "pairs": "spearman",
    "queries": "ndcg@10",
}


@pytest.fixture(scope="module", autouse=True)
def few_sets() -> Iterator[None]:
    """Every set of items that is left out is a fit a layer and fold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("layerprobe.probing.probes.SETS", 4)
        yield


@pytest.fixture(scope="module")
def probings() -> dict[str, Probing]:
    return {kind: probe(EMBEDDINGS, targets, kind=kind, **FEW) for kind, targets in TARGETS.items()}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TARGETS)
def test_the_layers_with_the_signal_are_found(probings: dict[str, Probing], kind: str) -> None:
    result = probings[kind]
    assert (result.kind, result.primary) == (kind, PRIMARY[kind])
    assert result.best_layer in (2, 3, 4)
    assert result.best_layer in result.candidates
    assert 0 not in result.candidates or kind == "queries"
    assert [each.layer for each in result.layers] == list(range(6))
    assert all(each.behind is not None and each.behind >= 0 for each in result.layers)
    behind = {each.layer: each.behind for each in result.layers}
    if result.smallest_sufficient is not None:
        assert (behind[result.smallest_sufficient] or 0) <= 0.5
    assert not result.left_out
    assert (result.summed is None) == (kind in ("pairs", "queries"))
    assert result.summed is None or (result.summed.gain is not None and result.summed.gain.level == 0.95)


@pytest.mark.parametrize("kind", TARGETS)
def test_an_answer_shows_itself_and_is_read_back(probings: dict[str, Probing], kind: str, tmp_path: Path) -> None:
    result = probings[kind]
    assert_shows_itself(result, tmp_path)
    again = from_json(Probing, to_json(result))
    assert again == result
    assert again.summary == result.summary


def test_cosines_of_pairs_are_scored_as_they_are(probings: dict[str, Probing]) -> None:
    for number, layer in enumerate(probings["pairs"].layers):
        cosines = cosine_scores(EMBEDDINGS[ROWS[:, 0], number], EMBEDDINGS[ROWS[:, 1], number])
        assert layer.metrics["spearman"] == pytest.approx(100 * spearman(cosines, TARGETS["pairs"][:, 2]))
        assert layer.error is not None
        assert layer.error.seeds_error is None


def test_labels_are_scored_by_their_mean_average_precision() -> None:
    problem = as_targets(TARGETS["labels"], N).folded(None, ProbeSettings(foldings=1))
    outputs = np.random.default_rng(0).random((N, 2))
    expected = np.mean([average_precision_score(problem.targets[:, i], outputs[:, i]) for i in range(2)])
    assert problem.scores(outputs)["average precision"] == pytest.approx(100 * expected)
    influences = problem.influences(outputs, "average precision")
    assert influences.shape == (N,)
    assert influences.mean() == pytest.approx(0, abs=1e-9)


def test_layers_that_complement_each_other_are_better_than_one() -> None:
    embeddings, signal = layered(600, strengths=(1.0, 1.0, 1.0), width=16)  # of which each has noise of its own
    result = probe(embeddings, scores_of(signal), foldings=1)
    assert result.summed is not None
    assert result.summed.better
    assert result.conclusion.case == "sum"
    assert result.facts["sum_gain"].value == pytest.approx(result.summed.gain.value)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["scores", "classes", "labels", "pairs", "queries"])
def test_groups_are_never_divided(kind: str) -> None:
    groups = as_groups(RNG.permutation(np.repeat(np.arange(60), 4)), N)
    assert groups is not None
    pairs = TARGETS["pairs"].copy()
    pairs[:, 1] = (pairs[:, 0] + 4) % N if kind == "pairs" else pairs[:, 1]
    if kind == "pairs":  # pairs within a group, or of two that are joined
        pairs = np.array([(4 * i, 4 * i + 1, i % 7) for i in range(60)])
        groups = np.repeat(np.arange(30), 8)
    targets = as_targets(pairs if kind == "pairs" else TARGETS[kind], N, kind=kind)  # type: ignore[arg-type]
    own = groups if targets.rows is None else groups[targets.rows.reshape(len(targets.targets), -1)[:, 0]]
    for folds in targets.folded(groups, ProbeSettings(foldings=4)).foldings:
        assert set(folds) == set(range(5))
        for group in np.unique(own):
            assert len(set(folds[own == group])) == 1


def test_groups_widen_the_errors_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.probing.probes.SETS", 60)
    groups = np.repeat(np.arange(40), 6)
    embeddings, signal = EMBEDDINGS.copy(), np.repeat(SIGNAL[:40], 6, axis=0)
    embeddings[:, 3, :4] += signal
    targets = signal.sum(axis=1) + 0.1 * RNG.standard_normal(N)
    with_groups = probe(embeddings, targets, groups=groups, weighted_sum=False)
    without = probe(embeddings, targets, weighted_sum=False)
    assert with_groups.n_groups == 40
    errors = [each.layers[3].error for each in (with_groups, without)]
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[0].items_error > 1.3 * errors[1].items_error  # type: ignore[operator]
    assert "in 40 groups" in words.cost(with_groups.conclusion)


def test_other_widths_have_no_weighted_sum() -> None:
    layers = [EMBEDDINGS[:, 2], EMBEDDINGS[:, 3, :8]]
    result = probe(layers, TARGETS["scores"])
    assert [each.width for each in result.layers] == [24, 8]
    assert result.summed is None
    assert result.warnings == ("weighted sum is left out: the layers have different widths",)


def test_layers_that_cannot_be_used_are_left_out_with_the_reason() -> None:
    embeddings = EMBEDDINGS.copy()
    embeddings[:, 0] = 1.0
    embeddings[5, 4, 2] = np.inf
    result = probe(embeddings, TARGETS["scores"], weighted_sum=False)
    assert [each.layer for each in result.layers] == [1, 2, 3, 5]
    assert result.left_out["layer 0"] == "it is the same for all 240 samples"
    assert "the first in row 5" in result.left_out["layer 4"]
    embeddings[5, 5, 2] = np.nan
    result = probe(embeddings, TARGETS["scores"], weighted_sum=False)
    assert result.conclusion.names["layer"] == str(result.best_layer)
    with pytest.raises(DataError, match="no layer can be scored: it is the same for all 240 samples"):
        probe(np.ones((N, 2, 3)), TARGETS["scores"])


def test_many_numbers_are_not_summed_unless_somebody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.probing.run.SUMMED", 1000)
    result = probe(EMBEDDINGS, TARGETS["scores"], **FEW)
    assert result.summed is None
    assert "34,560 numbers" in result.left_out["weighted sum"]
    assert probe(EMBEDDINGS, TARGETS["scores"], weighted_sum=True, **FEW).summed


def test_cosines_have_no_weighted_sum() -> None:
    result = probe(EMBEDDINGS, TARGETS["pairs"], kind="pairs", weighted_sum=True, **FEW)
    assert result.summed is None
    assert "no probe to learn weights with" in result.left_out["weighted sum"]


def test_names_of_layers_are_kept_and_what_is_left_out_is_said() -> None:
    broken = EMBEDDINGS[:, 0].copy()
    broken[[3, 17], 1:3] = np.nan
    given = {"layer_6": EMBEDDINGS[:, 2], "layer_0": broken, "layer_12": EMBEDDINGS[:, 5]}
    result = probe(given, TARGETS["classes"], weighted_sum=False, **FEW)
    assert [layer.layer for layer in result.layers] == [6, 12]
    assert result.summary.startswith("Layer 6 scores best")
    assert result.left_out["layer 0"] == (
        "it has 4 NaN or infinite values, the first in row 3, expected finite numbers: 2 of 240 rows have them, remove "
        "these rows from all arrays, or embed again in float32"
    )
    assert "left out" in [check.name for check in result.conclusion.checks]
    given = {"late": EMBEDDINGS[:, 5], "middle": EMBEDDINGS[:, 2]}
    named = probe(given, TARGETS["classes"], weighted_sum=False, **FEW)
    assert named.summary.startswith("Layer middle scores best")


def test_labels_may_be_in_the_file_of_the_embeddings(tmp_path: Path) -> None:
    whole = np.arange(N) % 45
    np.savez(tmp_path / "e.npz", embeddings=EMBEDDINGS[:, :2], labels=TARGETS["classes"], other=whole)
    result = probe(tmp_path / "e.npz", weighted_sum=False, **FEW)
    assert result.kind == "classes"
    scores = probe(tmp_path / "e.npz", tmp_path / "e.npz", column="other", weighted_sum=False, **FEW)
    assert scores.notes == ("targets are treated as scores: 45 whole numbers; for classes, set the kind of targets",)


def test_logistic_regression_on_a_part_of_the_rows_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.probing.probes.FIT_NUMBERS", 24 * 100)
    result = probe(EMBEDDINGS[:, :3], TARGETS["classes"], weighted_sum=False, **FEW)
    assert result.notes == (
        "logistic regression is fitted on a random sample of 100 of the 192 rows in the other folds",
    )
    assert result.best_layer == 2


@pytest.mark.parametrize(
    ("targets", "settings", "said"),
    [
        (np.zeros(N), {"kind": "scores"}, "expected scores that differ, got 0 for all 240 samples"),
        (["a"] * N, {}, "expected at least two classes, got 'a' for all 240 samples"),
        (np.ones(N - 1), {}, "expected a target for each of the 240 rows of embeddings, got 239"),
        (np.arange(6), {}, r"are these 240 layers of 6 samples\? Then pass array.swapaxes\(0, 1\)"),
        (None, {}, "expected targets, or a task for a model, got none"),
        ([], {}, "expected targets, got none"),
        (np.where(np.arange(N) == 7, np.nan, 0.5), {}, "NaN or infinity in target 7"),
        (np.array([[0, 1]] * N), {}, "got label 0 for none: remove it"),
        (np.full((N, 2), 3), {}, r"a matrix of 0 and 1, one column per label, got \(240, 2\)"),
        (np.array([[0, N, 1.0]]), {"kind": "pairs"}, "row numbers of the 240 embeddings, from 0, got 0 to 240"),
        (np.array([[0, 1]]), {"kind": "pairs"}, "the numbers of two rows and their score in each row"),
        (np.array([[0, 1, 0.0]]), {"kind": "queries"}, "gains above 0, got 0"),
        (np.array([[0, 1], [1, 2]]), {"kind": "queries"}, "documents that are not queries"),
        (["x"] * N, {"kind": "scores"}, "expected scores as numbers, got 'x'"),
        ([*"ab" * (N // 2 - 1), "a", None], {}, "a target for every row, got None in row 239"),
        (pd.array(["a", pd.NA] * (N // 2), "string"), {}, "a target for every row, got <NA> in row 1"),
        (np.arange(N) % 3, {"kind": "labels"}, r"a matrix of 0 and 1, one column per label, got \(240, 1\)"),
        (np.ma.masked_less(np.arange(N) / 2, 3), {}, "targets has masked values"),
        (TARGETS["scores"], {"groups": [None, *range(N - 1)]}, "a group for every row, got None in row 0"),
        (np.zeros(N), {"kind": "ranks"}, "kind is 'ranks', expected one of 'scores'"),
        (TARGETS["scores"], {"groups": np.zeros(3)}, "a group for each of the 240 rows"),
        (TARGETS["pairs"][:4], {"kind": "pairs"}, "at least as many items as folds, got 4 for 5"),
    ],
)
def test_what_is_no_target_is_one_line(targets: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        probe(EMBEDDINGS, targets, **settings)


@pytest.mark.parametrize("axes", [1, 2])
def test_one_label_is_a_label(axes: int) -> None:
    label = (SIGNAL[:, 0] > 1).astype(int)
    given = as_targets(label if axes == 1 else label[:, None], N, kind="labels")
    assert (given.kind, given.targets.tolist()) == ("labels", label[:, None].tolist())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"foldings": 0}, "at least one folding"),
        ({"tolerance": -1.0}, "a tolerance of at least 0 points"),
        ({"tolerance": float("nan")}, "a tolerance of at least 0 points"),
    ],
)
def test_settings_out_of_range_are_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        ProbeSettings(**settings)


def test_few_whole_numbers_are_classes_unless_somebody_says_otherwise() -> None:
    ratings = np.clip(np.rint(2.5 + SIGNAL[:, 0]), 1, 5)
    taken = as_targets(ratings, N)
    assert taken.kind == "classes"
    assert "targets are treated as 5 classes" in taken.remarks[0]
    assert as_targets(ratings, N, kind="scores").kind == "scores"
    assert as_targets(ratings + 0.5, N).kind == "scores"


def test_numbers_among_objects_are_numbers() -> None:
    assert as_targets(TARGETS["scores"].astype(object), N).kind == "scores"
    assert as_targets([Decimal(i) / 7 for i in range(N)], N).kind == "scores"
    assert as_targets(np.array(["a", 1.5] * (N // 2), dtype=object), N).kind == "classes"


def test_text_among_numbers_is_named_unless_they_are_classes(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("\n".join(["score", *("NA" if i == 7 else str(i % 42) for i in range(N))]) + "\n")
    with pytest.raises(DataError, match="expected scores as numbers, got 'NA' in row 7, counted from 0"):
        as_targets(file, N)
    assert len(set(as_targets(file, N, kind="classes").targets)) == 43


def test_names_that_float_reads_are_classes(tmp_path: Path) -> None:
    file = tmp_path / "classes.csv"
    file.write_text("\n".join(["label", *(f"{i % 3}_1" for i in range(N))]) + "\n")
    assert as_targets(file, N).kind == "classes"
    pd.DataFrame({"day": pd.date_range("2026-01-01", periods=3).repeat(N // 3)}).to_parquet(tmp_path / "days.parquet")
    assert as_targets(tmp_path / "days.parquet", N).kind == "classes"


def test_groups_in_a_file_are_names_not_numbers(tmp_path: Path) -> None:
    """As floats, numbers of 19 digits are one."""
    file = tmp_path / "groups.csv"
    file.write_text("\n".join(["group", *(str(1234567890123456789 + i // 12) for i in range(N))]) + "\n")
    for given in (file, f"{file}:group"):
        groups = as_groups(given, N)
        assert groups is not None
        assert len(set(groups)) == N / 12


def test_pairs_in_fewer_sets_than_folds_are_divided_one_by_one() -> None:
    """Four sets of rows, and pairs within each."""
    rows = np.array([(10 * k + i, 10 * k + j) for k in range(4) for i in range(10) for j in range(i)])
    pairs = np.column_stack([rows, (SIGNAL[rows[:, 0]] * SIGNAL[rows[:, 1]]).sum(axis=1)])
    assert probe(EMBEDDINGS[:40], pairs, kind="pairs").n_items == len(pairs)


def test_targets_and_groups_come_from_files(tmp_path: Path) -> None:
    scores = TARGETS["scores"].tolist()
    table = tmp_path / "t.csv"
    rows = (f"{i},{score},f{i // 8},{i % 2},{int(i % 3 == 0)}" for i, score in enumerate(scores))
    table.write_text("\n".join(["id,stability,family,a,b", *rows]) + "\n")
    np.testing.assert_allclose(as_targets(table, N, column="stability").targets, scores)
    assert as_targets(table, N, column="a,b").kind == "labels"
    groups = as_groups(f"{table}:family", N)
    assert groups is not None
    assert len(set(groups)) == 30
    pq.write_table(pa.table({"score": scores, "other": scores}), tmp_path / "t.parquet")
    np.testing.assert_allclose(as_targets(tmp_path / "t.parquet", N).targets, scores)
    (tmp_path / "t.txt").write_text("\n".join(map(str, scores)) + "\n")
    np.testing.assert_allclose(as_targets(tmp_path / "t.txt", N).targets, scores)
    np.save(tmp_path / "t.npy", scores)
    np.testing.assert_allclose(as_targets(tmp_path / "t.npy", N).targets, scores)
    (tmp_path / "t.jsonl").write_text("".join(f'{{"score": {score}}}\n' for score in scores))
    np.testing.assert_allclose(as_targets(tmp_path / "t.jsonl", N).targets, scores)
    (tmp_path / "pairs.csv").write_text("first,second,score\n0,1,0.5\n2,3,1\n4,5,0\n")
    assert as_targets(tmp_path / "pairs.csv", N).kind == "pairs"
    (tmp_path / "queries.tsv").write_text("query\tdocument\tgain\n0\t10\t2\n1\t11\t1\n")
    assert as_targets(tmp_path / "queries.tsv", N).targets.tolist() == [{8: 2.0}, {9: 1.0}]


@pytest.mark.parametrize(
    ("name", "content", "column", "said"),
    [
        ("t.csv", "", None, "t.csv is empty"),
        ("t.csv", "target\n", None, "has only one line"),
        ("t.csv", "target,b\n1\n", None, "line 2: expected 2 fields as in line 1, got 1"),
        ("t.csv", "target\n1\n\n", None, "a target for each of the 240 rows of embeddings, got 1"),
        ("t.csv", "target,b\n1,1\n,1\n", None, "expected a value in every row, got none in row 1"),
        ("t.parquet", "no parquet", None, "t.parquet cannot be read as Parquet"),
        ("t.npy", "no array", None, "t.npy is not a complete array"),
    ],
)
def test_a_file_without_targets_is_one_line(
    tmp_path: Path, name: str, content: str, column: str | None, said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        as_targets(tmp_path / name, N, column=column)


def test_parquet_without_the_column_is_one_line(tmp_path: Path) -> None:
    pq.write_table(pa.table({"stability": [1.0, 2.0]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"expected column 'target' in .*t.parquet, got stability"):
        as_targets(tmp_path / "t.parquet", 2, column="target")
