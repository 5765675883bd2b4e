"""The table of layers, and CSV that reads back as it."""

from __future__ import annotations

import csv
import dataclasses
import io
import statistics

from layerprobe.report.data import LayerRow, layer_csv, layer_rows
from layerprobe.study.values import Study

from .conftest import STUDIES


def test_there_is_one_row_a_layer(any_study: Study) -> None:
    rows = layer_rows(any_study)
    assert [row.layer for row in rows] == list(range(any_study.comparison.model.n_layers))
    assert [row.layer for row in rows if row.recommended] == [any_study.prediction.recommended_layer]
    assert tuple(row.layer for row in rows if row.drop) == any_study.prediction.drop_layers


def test_the_csv_reads_back_as_the_rows(any_study: Study) -> None:
    lines = list(csv.DictReader(io.StringIO(layer_csv(any_study))))
    read = any_study.prediction.read
    assert list(lines[0]) == [*(field.name for field in dataclasses.fields(LayerRow)), *read]
    for line, row in zip(lines, layer_rows(any_study), strict=True):
        expected = dataclasses.asdict(row)
        found: dict[str, object] = {"metric": line.pop("metric")}
        found |= {name: tuple(map(float, line.pop(name).split())) for name in BY_SEED}
        assert {name: float(cell) if cell else None for name, cell in line.items()} | found == expected


BY_SEED = ("tmft_seed_numbers", "tmft_by_seed", "tmft_validation_by_seed")


def test_what_the_rule_read_is_in_the_csv(plain: Study) -> None:
    read = {"InfoNCE": tuple(layer / 10 for layer in range(13))}
    study = dataclasses.replace(plain, prediction=dataclasses.replace(plain.prediction, rule="fall", read=read))
    lines = list(csv.DictReader(io.StringIO(layer_csv(study))))
    assert tuple(float(line["InfoNCE"]) for line in lines) == read["InfoNCE"]
    assert "reference" not in layer_csv(study)


def test_a_layer_has_its_seeds_and_the_best_of_them_by_validation(whole: Study) -> None:
    row = layer_rows(whole)[9]
    assert row.tmft_seed_numbers == (0, 1, 2, 3, 4)
    assert statistics.fmean(row.tmft_by_seed) == row.tmft_mean
    assert row.tmft_best_seed == max(row.tmft_seed_numbers, key=row.tmft_validation_by_seed.__getitem__)


def test_a_layer_that_was_not_run_has_empty_cells() -> None:
    first = next(csv.DictReader(io.StringIO(layer_csv(STUDIES["confirmed"]()))))
    assert (first["tmft_mean"], first["tmft_seeds"]) == ("", "0")


def test_one_seed_has_a_mean_and_no_spread() -> None:
    row = layer_rows(STUDIES["one seed"]())[9]
    assert row.tmft_mean is not None
    assert (row.tmft_std, row.tmft_interval_low, row.tmft_seeds) == (None, None, 1)


def test_a_layer_has_its_interval_and_how_often_it_is_flagged(measured: Study) -> None:
    row, errors = layer_rows(measured)[8], measured.comparison.curve.uncertainty
    assert errors
    assert (row.cka_interval_low, row.cka_interval_high) == (errors.lower[8], errors.upper[8])
    assert row.drop_probability is not None
    assert row.drop_probability > 0.99


def test_without_intervals_their_cells_are_empty(plain: Study) -> None:
    first = next(csv.DictReader(io.StringIO(layer_csv(plain))))
    assert (first["cka_interval_low"], first["cka_interval_high"], first["drop_probability"]) == ("", "", "")


def test_a_layer_has_what_the_search_says_of_it(searched: Study) -> None:
    finding = searched.finding
    assert finding
    rows = layer_rows(searched)
    assert [row.layer for row in rows if row.kept] == [finding.best_layer]
    assert tuple(row.layer for row in rows if row.candidate) == finding.answer.candidates
    assert tuple(row.layer for row in rows if row.found_drop) == finding.drop_layers != searched.prediction.drop_layers
    for row, known in zip(rows, finding.answer.layers, strict=True):
        assert (row.expected, row.expected_interval_low, row.expected_interval_high) == (known.mean, *known.interval)
        assert (row.chance_best, row.chance_within) == (known.chance_best, known.chance_within)
        assert row.scan == finding.scanned(row.layer) is not None


def test_several_scans_are_averaged() -> None:
    finding = STUDIES["found as expected"]().finding
    assert finding
    first, second = finding.scans
    scores = [run.validation["spearman"] for run in (first[4], second[4])]
    assert finding.scanned(4) == statistics.fmean(scores)
    assert scores[0] != scores[1]


def test_without_a_search_its_cells_are_empty_and_the_recommended_layer_is_kept(plain: Study) -> None:
    for row in layer_rows(plain):
        assert (row.expected, row.expected_interval_low, row.chance_best, row.candidate, row.scan) == (None,) * 5
        assert row.kept == row.recommended
