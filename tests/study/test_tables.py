"""The table of layers of a study: what each row says of its layer, and CSV that reads back as it."""

import csv
import dataclasses
import io
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from layerprobe.files.serialisation import from_dict, to_dict, to_json
from layerprobe.study.tables import runs_table
from layerprobe.study.values import Finding, MadeRun, Study
from tests.report.conftest import STUDIES

NAMES = {
    *("layer", "parameters", "cka", "cka_interval_low", "cka_interval_high", "compared_layer", "metric", "kept"),
    *(
        "expected",
        "expected_interval_low",
        "expected_interval_high",
        "chance_best",
        "chance_within",
        "behind",
        "candidate",
    ),
    *("found_drop", "scan", "validation_by_seed", "zero_shot", "tmft_mean", "tmft_std"),
    *("tmft_interval_low", "tmft_interval_high"),
    *("tmft_seeds", "tmft_seed_numbers", "tmft_by_seed", "tmft_validation_by_seed", "tmft_best_seed", "drop"),
    *("drop_probability", "recommended", "runs", "tmft_validation", "flag"),
}


def rows(study: Study) -> list[dict[str, Any]]:
    return study.table.records()


def in_csv(study: Study) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(study.table.csv())))


@pytest.fixture(params=sorted(STUDIES))
def any_study(request: pytest.FixtureRequest) -> Study:
    return STUDIES[request.param]()


def test_there_is_one_row_a_layer(any_study: Study) -> None:
    table = rows(any_study)
    assert [row["layer"] for row in table] == list(range(any_study.comparison.model.n_layers))
    assert [row["layer"] for row in table if row["recommended"]] == [any_study.prediction.recommended_layer]
    assert tuple(row["layer"] for row in table if row["drop"]) == any_study.prediction.drop_layers
    assert [row["layer"] for row in table if row["kept"]] == [any_study.kept_layer]


def test_whatever_was_done_the_csv_has_the_same_columns(any_study: Study) -> None:
    assert set(in_csv(any_study)[0]) == NAMES | {*any_study.prediction.read}


def test_what_the_rule_read_is_in_the_csv() -> None:
    plain, read = STUDIES["plain"](), {"InfoNCE": tuple(layer / 10 for layer in range(13))}
    study = dataclasses.replace(plain, prediction=dataclasses.replace(plain.prediction, rule="fall", read=read))
    assert tuple(float(line["InfoNCE"]) for line in in_csv(study)) == read["InfoNCE"]
    assert "reference" not in study.table.csv()


def test_a_layer_has_its_seeds_and_the_best_of_them_by_validation() -> None:
    row = rows(STUDIES["reference"]())[9]
    assert row["tmft_seed_numbers"] == (0, 1, 2, 3, 4)
    assert statistics.fmean(row["tmft_by_seed"]) == row["tmft_mean"]
    assert statistics.fmean(row["tmft_validation_by_seed"]) == row["tmft_validation"]
    assert row["tmft_best_seed"] == max(row["tmft_seed_numbers"], key=row["tmft_validation_by_seed"].__getitem__)


def test_a_layer_that_was_not_run_has_empty_cells() -> None:
    first = in_csv(STUDIES["confirmed"]())[0]
    assert (first["tmft_mean"], first["tmft_seeds"]) == ("", "0")


def test_one_seed_has_a_mean_and_no_spread() -> None:
    row = rows(STUDIES["one seed"]())[9]
    assert row["tmft_mean"] is not None
    assert (row["tmft_std"], row["tmft_interval_low"], row["tmft_seeds"]) == (None, None, 1)


def test_a_layer_has_its_interval_and_how_often_it_is_flagged() -> None:
    measured = STUDIES["intervals"]()
    row, errors = rows(measured)[8], measured.comparison.curve.uncertainty
    assert errors
    assert (row["cka_interval_low"], row["cka_interval_high"]) == (errors.lower[8], errors.upper[8])
    assert row["drop_probability"] > 0.99


def test_without_intervals_their_cells_are_empty() -> None:
    first = in_csv(STUDIES["plain"]())[0]
    assert (first["cka_interval_low"], first["cka_interval_high"], first["drop_probability"]) == ("", "", "")


def test_a_layer_has_what_the_search_says_of_it() -> None:
    searched = STUDIES["found"]()
    finding, table = searched.finding, rows(searched)
    assert finding
    assert tuple(row["layer"] for row in table if row["candidate"]) == finding.answer.candidates
    dropped = tuple(row["layer"] for row in table if row["found_drop"])
    assert dropped == finding.drop_layers != searched.prediction.drop_layers
    for row, belief in zip(table, finding.answer.layers, strict=True):
        ends = row["expected_interval_low"], row["expected_interval_high"]
        assert (row["expected"], *ends) == (belief.mean, *belief.interval)
        said = row["chance_best"], row["chance_within"], row["behind"]
        assert said == (belief.chance_best, belief.chance_within, belief.behind)
        assert row["scan"] == finding.scanned(row["layer"]) is not None
    shared = finding.table.data
    assert shared == {name: searched.table.data[name] for name in shared} | {"flag": shared["flag"]}


def test_several_scans_are_averaged() -> None:
    finding = STUDIES["found as expected"]().finding
    assert finding
    first, second = finding.scans
    scores = [run.validation["spearman"] for run in (first[4], second[4])]
    assert finding.scanned(4) == statistics.fmean(scores)
    assert scores[0] != scores[1]


def test_a_run_without_a_score_stands_where_it_was_made() -> None:
    finding = STUDIES["found as expected"]().finding
    assert finding
    last, plain = len(finding.parameters) - 1, runs_table(finding).data
    assert plain["layer"][:3] == ("all", "all", "8")
    first = MadeRun(scan=False, fold=0, layer=4, seed=0, run=None)
    later, end = MadeRun(scan=True, fold=2, layer=last, seed=2, run=None), 2 * (last + 1)
    longer = dataclasses.replace(finding, runs=(first, *finding.runs[:end], later, *finding.runs[end:]))
    table = runs_table(longer).data
    assert table["layer"] == ("4", "all", "all", "all", *plain["layer"][2:])
    assert [i for i, score in enumerate(table["validation"]) if score is None] == [0, 3]
    assert (table["seed"][3], table["part"][3], table["at_layer"][3], table["seconds"][3]) == (2, 3, None, None)
    assert table["block_steps"][:4] == (5, last + 1, last + 1, last + 1)
    data = to_dict(finding)
    data["lost"] = [{**to_dict(first), "before": 0}, {**to_dict(later), "before": end}]
    for record in (*data["runs"], *data["lost"]):
        del record["run" if record["run"] is None else "layer"]
    assert from_dict(Finding, data) == longer, "expected to read the runs of before"


def test_without_a_search_its_cells_are_empty_and_the_recommended_layer_is_kept() -> None:
    empty = ("expected", "expected_interval_low", "chance_best", "candidate", "found_drop", "scan", "runs")
    for row in rows(STUDIES["plain"]()):
        assert [row[name] for name in empty] == [None] * len(empty)
        assert row["kept"] == row["recommended"]


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("plain", {9: "recommended", 10: "flagged", 12: "flagged"}),
        ("found", {3: "may be best, predicted", 8: "may be best", 9: "keep", 12: "drop"}),
        ("found as expected", {9: "keep, predicted"}),
    ],
)
def test_a_flag_says_what_follows(kind: str, flags: Mapping[int, str]) -> None:
    shown = STUDIES[kind]().table.data["flag"]
    assert {layer: shown[layer] for layer in flags} == flags
    assert shown[0] == (None if kind == "plain" else "may be best")  # without a run of its own, or one before it


def test_a_data_frame_takes_neither_plotly_nor_torch(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text(to_json(STUDIES["found"]()))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from layerprobe.files.serialisation import from_json\n"
        "from layerprobe.study.values import Study\n"
        "frame = from_json(Study, Path(sys.argv[1]).read_text()).to_pandas()\n"
        "print(len(frame), [name for name in ('plotly', 'torch') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "13 []"
