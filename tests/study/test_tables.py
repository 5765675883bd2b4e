"""The table of layers of a finding: what each row says of its layer, and CSV that reads back as it."""

import csv
import io
import statistics
from collections.abc import Mapping

import pytest

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_dict, to_dict
from layerprobe.study.values import Finding
from tests.report.conftest import FINDINGS

NAMES = {
    *("layer", "parameters", "cka", "cka_interval_low", "cka_interval_high", "compared_layer", "InfoNCE", "kept"),
    *("expected", "expected_interval_low", "expected_interval_high", "chance_best", "chance_within", "behind"),
    *("candidate", "found_drop", "validation_by_seed", "untrained", "tmft_mean", "tmft_std", "runs", "flag"),
    *("tmft_interval_low", "tmft_interval_high", "tmft_seeds", "tmft_seed_numbers", "tmft_by_seed"),
    *("tmft_validation", "tmft_validation_by_seed", "tmft_best_seed", "floor", "predicted"),
    *("gain", "gain_interval_low", "gain_interval_high"),
    *("test_gain", "test_gain_interval_low", "test_gain_interval_high"),
}


def in_csv(finding: Finding) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(finding.table.csv())))


def test_columns_are_what_was_known_before_training_and_what_was_found() -> None:
    assert set(in_csv(FINDINGS["found"]())[0]) | {"floor"} == NAMES
    without = {name for name in NAMES if name.startswith(("cka", "test_gain"))} | {"compared_layer", "floor"}
    assert set(in_csv(FINDINGS["found alone"]())[0]) == NAMES - without


def test_a_layer_has_its_seeds_and_the_best_of_them_by_validation() -> None:
    rows = FINDINGS["found"]().table.records()
    assert rows[9]["tmft_seed_numbers"] == (0, 1)
    assert statistics.fmean(rows[9]["tmft_by_seed"]) == rows[9]["tmft_mean"]
    assert rows[9]["tmft_best_seed"] == max((0, 1), key=rows[9]["tmft_validation_by_seed"].__getitem__)
    assert (rows[8]["tmft_std"], rows[8]["tmft_interval_low"], rows[8]["tmft_seeds"]) == (None, None, 1)
    first = in_csv(FINDINGS["found"]())[0]
    assert (first["tmft_mean"], first["tmft_seeds"], first["cka_interval_low"]) == ("", "0", "")


def test_a_layer_has_what_the_search_says_of_it() -> None:
    finding = FINDINGS["found"]()
    table = finding.table.records()
    assert tuple(row["layer"] for row in table if row["candidate"]) == finding.answer.candidates
    assert tuple(row["layer"] for row in table if row["found_drop"]) == finding.drop_layers
    for row, belief in zip(table, finding.answer.layers, strict=True):
        ends = row["expected_interval_low"], row["expected_interval_high"]
        assert (row["expected"], *ends) == (belief.mean, *belief.interval)
        said = row["chance_best"], row["chance_within"], row["behind"]
        assert said == (belief.chance_best, belief.chance_within, belief.behind)


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("found", {3: "may be best", 8: "may be best", 9: "best guess", 12: "whole model"}),
        ("found, no drop", {8: None, 12: "best guess"}),
    ],
)
def test_a_flag_says_what_follows(kind: str, flags: Mapping[int, str | None]) -> None:
    shown = FINDINGS[kind]().table.data["flag"]
    assert {layer: shown[layer] for layer in flags} == flags
    assert shown[0] == "may be best"  # without a run of its own, or one before it


def test_a_finding_of_0_4_says_of_each_run_that_it_is_no_scan() -> None:
    finding = FINDINGS["found"]()
    data = to_dict(finding)
    for part in (*data["runs"], data["weights"], data["answer"]["settings"]):
        part["scan"] = False
    assert from_dict(Finding, data) == finding
    data["runs"][0]["scan"] = True
    with pytest.raises(DataError, match="a search with --scan, runs of all layers at once, is no longer supported"):
        from_dict(Finding, data)
