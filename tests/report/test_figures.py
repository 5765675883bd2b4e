"""What figures draw: of charts the numbers of the table's columns, and of maps what no table declares."""

import dataclasses
import math
import re
from itertools import combinations

import pytest

from layerprobe.results import style
from layerprobe.results.draw import HEIGHT, WIDTH, drawn, figures, have_labels
from layerprobe.results.table import Chart, Column, Line, Quantity, Table
from layerprobe.study.values import Finding

from .conftest import FINDINGS, Pair
from .test_shown import CASES

POINTS = Quantity("Spearman × 100", "test", "higher")
TABLE = Table(
    columns=(
        Column("layer", (0, 1, 2, None, 3)),
        Column("model", ("a", "a", "a", "all layers", "b"), shown=False),
        Column("score", (60.0, None, 70.0, 72.0, 65.0), form=".1f", quantity=POINTS),
        Column("interval", ((58.0, 63.0), None, (69.0, 72.0), None, None), "95 % interval", ".1f", interval=True),
        Column("seeds", ((59.0, 61.0), None, (70.0,), None, (65.0,))),
        Column("floor", (50.0,) * 5, meaning="By guessing."),
        Column("parameters", (1e6, 2e6, 4e6, 4e6, 5e6)),
    ),
    marks=(None, None, "chosen", None, "drop"),
)
SCORE = Line("score", interval="interval", seeds="seeds")


def test_a_line_has_the_numbers_intervals_and_seeds_of_its_columns() -> None:
    figure = drawn(TABLE, Chart(lines=(SCORE,), floor="floor", chosen="to keep"))
    seeds, mean, across, floor = figure.plot.data
    assert (list(mean.x), list(mean.y)) == ([0, 2, 3], [60.0, 70.0, 65.0])
    assert [
        (y - down, y + up) for y, down, up in zip(mean.y, mean.error_y.arrayminus, mean.error_y.array, strict=True)
    ] == [(58.0, 63.0), (69.0, 72.0), (65.0, 65.0)]
    assert list(seeds.y) == [59.0, 61.0, 70.0, 65.0]
    assert all(0 < x - layer < 0.5 for x, layer in zip(seeds.x, (0, 0, 2, 3), strict=True))
    assert list(mean.marker.size) == [8, 14, 8], "expected the chosen one to be larger"
    assert list(mean.marker.symbol) == ["circle", "circle", "triangle-down"]
    assert set(across.y) == {72.0}, "a row without a layer is a line across"
    assert (floor.name, set(floor.y)) == ("guessing", {50.0})
    assert figure.plot.layout.yaxis.title.text == "Test Spearman × 100"
    assert figure.finding == "Test Spearman × 100: 60.0 at layer 0, 70.0 at layer 2 (to keep), 65.0 at layer 3."
    assert "95 % interval 58.0 to 63.0" in mean.hovertext[0].replace("\u00a0", " ")


def test_a_band_is_the_ground_between_its_ends_and_groups_are_curves() -> None:
    figure = drawn(TABLE, Chart(lines=(Line("score", interval="interval"),), by="model", band=True))
    band, mean = figure.plot.data[:2]
    (other,) = (trace for trace in figure.plot.data if trace.name == "b" and trace.showlegend)
    assert tuple(band.y) == (63.0, 72.0, 69.0, 58.0)
    assert [trace.name for trace in figure.plot.data if trace.showlegend] == ["a", "b"]
    assert list(other.y) == [65.0]
    assert mean.line.color != other.line.color


def test_costs_are_on_a_logarithmic_axis_and_only_what_is_surely_beaten_is_faint() -> None:
    ends = ((60.0, 61.0), None, (69.0, 72.0), (71.0, 73.0), (68.0, 68.5))
    table = dataclasses.replace(
        TABLE, columns=(*TABLE.columns[:3], Column("interval", ends, interval=True), *TABLE.columns[4:])
    )
    figure = drawn(table, Chart(lines=(Line("score", interval="interval"),), kind="cost", x="parameters"))
    (points,) = figure.plot.data
    assert figure.plot.layout.xaxis.type == "log"
    assert list(points.marker.opacity) == [1.0, 1.0, 1.0, 0.35]
    assert list(points.marker.size) == [8, 14, 8, 8]
    assert "Test Spearman × 100 against parameters." in figure.finding


@pytest.mark.parametrize("n", [1, 5, 40])
def test_labels_stand_apart_from_each_other(n: int) -> None:
    points = [(10.0 ** (i / n), 70 + 3 * ((7 * i) % n) / n) for i in range(n)]
    labelled = [point for point, has_label in zip(points, have_labels(points), strict=True) if has_label]
    assert len(labelled) >= min(n, 5)
    for one, other in combinations(labelled, 2):
        apart = (abs(math.log10(one[0] / other[0])) > 0.9 * WIDTH, abs(one[1] - other[1]) > 3 * 0.9 * HEIGHT)
        assert any(apart), (one, other)


def test_bars_have_the_colours_of_marks_and_names_are_places() -> None:
    figure = drawn(TABLE, Chart(lines=(Line("score"),), kind="bars"))
    assert list(figure.plot.data[0].marker.color) == [style.MODEL, style.CHOSEN, style.DROP]
    named = drawn(TABLE, Chart(lines=(Line("score"),), x="model"))
    assert list(named.plot.layout.xaxis.ticktext) == ["a", "all layers", "b"]
    assert named.plot.data[0].mode == "markers", "names have no order that a line could show"


# ---- findings and comparisons -----------------------------------------------------------------------------


def test_intervals_and_band_of_the_curve_are_those_of_the_comparison(measured: Pair) -> None:
    figure = figures(measured.comparison)[0]
    errors = measured.comparison.curve.uncertainty
    assert errors
    band, interval, *_ = figure.plot.data
    assert tuple(band.y) == (*errors.band_upper, *reversed(errors.band_lower))
    assert tuple(interval.y) == (*errors.upper, *reversed(errors.lower))


def test_the_search_draws_gains_expected_scores_and_every_run(searched: Finding) -> None:
    finding = searched
    by_name = {figure.name: figure.plot for figure in figures(finding)}
    gains, whole = by_name["gain"].data[0], finding.answer.layers[12].mean
    runs = {run.layer for run in finding.fine_tuned}
    assert [layer for layer, gain in enumerate(gains.y) if gain is not None] == sorted(runs)
    assert gains.y[9] == pytest.approx(finding.answer.layers[9].mean - whole)
    dots, measured, inferred = by_name["expected"].data
    means = [one if two is None else two for one, two in zip(measured.y, inferred.y, strict=True)]
    assert means == [belief.mean for belief in finding.answer.layers]
    assert sorted(dots.y) == sorted(run.validation["spearman"] for run in finding.fine_tuned)
    assert max(range(13), key=measured.marker.size.__getitem__) == 9
    assert by_name["expected"].layout.yaxis.title.text == "Validation Spearman × 100"


def test_nothing_is_claimed_of_spoilt_scores() -> None:
    finding = FINDINGS["found"]()
    spoilt = dataclasses.replace(finding, answer=dataclasses.replace(finding.answer, spoilt=3))
    claiming, silent = (
        "".join(f"{figure.reading} {figure.plot.to_json()}" for figure in figures(one) if "read" not in figure.name)
        for one in (finding, spoilt)
    )
    for claim in ("may be the best", "the best is one of these"):
        assert claim in claiming
        assert claim not in silent


# ---- maps -----------------------------------------------------------------------------------------------


def test_maps_share_one_scale_and_have_the_models_layers_as_rows(measured: Pair) -> None:
    comparison = measured.comparison
    _, raw, other = figures(comparison)
    first, second = raw.plot.data[0], other.plot.data[0]
    assert [figure.plot.layout.yaxis.title.text for figure in (raw, other)] == ["Layer of rtd"] * 2
    assert (first.zmin, first.zmax, first.colorscale) == (second.zmin, second.zmax, second.colorscale)
    cells = dict(zip(zip(first.y, first.x, strict=True), first.z, strict=True))
    assert cells[3, 5] == comparison.map.values[3][5]
    assert dict(zip(zip(second.y, second.x, strict=True), second.z, strict=True))[3, 5] > cells[3, 5]
    dots = {place for place, dot in zip(cells, first.text, strict=True) if dot}
    assert dots == set(enumerate(comparison.curve.reference_layers))


# ---- all ------------------------------------------------------------------------------------------------


def test_every_colour_has_its_counterpart_on_a_dark_page() -> None:
    written = "".join(figure.plot.to_json() for figure in figures(FINDINGS["found"]()))
    colours = set(re.findall(r"\"(#[0-9a-fA-F]{3,8}|rgba?\([^)]*\))\"", written))
    assert colours - {style.TRANSPARENT} <= set(style.DARK)


def test_names_are_text_and_not_markup_or_mathematics() -> None:
    names = {
        trace.name
        for figure in figures(CASES["found of several models, hostile"]())
        for trace in figure.plot.data
        if trace.name
    }
    assert not any("<" in name or "$" in name for name in names)
    assert any(name.startswith("evil/&lt;script&gt;") for name in names)
