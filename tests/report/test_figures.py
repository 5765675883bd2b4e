"""What figures draw: of charts the numbers of the table's columns, and of maps what no table declares."""

import dataclasses
import math
import re
from itertools import combinations, pairwise
from typing import Any

import pytest

from layerprobe.results import style
from layerprobe.results.conclusion import Choice
from layerprobe.results.draw import HEIGHT, WIDTH, Figure, drawn, figures, have_labels
from layerprobe.results.table import Chart, Column, Line, Quantity, Table
from layerprobe.study.values import Finding, Prediction

from .conftest import FINDINGS, changed
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


GAIN = Quantity("points over the whole model", "validation", "higher")
TESTED = dataclasses.replace(GAIN, split="test")
GAINS = Table(
    columns=(
        Column("layer", range(5), "keep"),
        Column("gain", (-3.0, -2.0, 1.0, 2.5, 0.0), "expected", ".1f", quantity=GAIN),
        Column("gain_interval", [(-5.0, 0.0), None, (0.0, 3.0), (1.0, 4.0), (-1.0, 1.0)], "95 %", interval=True),
        Column("runs", (1, 0, 2, 1, 1)),
        Column("test", (None, None, None, 4.0, None), "on test", ".1f", quantity=TESTED),
    ),
    marks=(None, None, "candidate", "chosen", None),
)
EXPECTED, ON_TEST = Line("gain", interval="gain_interval", run="runs"), Line("test", mark="diamond")


def words(figure: Figure) -> dict[str, Any]:
    return {annotation.text: annotation for annotation in figure.plot.layout.annotations}


def test_points_without_a_run_are_hollow_and_nothing_joins_them() -> None:
    figure = drawn(GAINS, Chart(lines=(EXPECTED,)))
    runs, inferred = figure.plot.data
    assert (list(runs.y), runs.mode) == ([-3.0, None, 1.0, 2.5, 0.0], "lines+markers")
    assert (list(inferred.y), inferred.mode) == ([None, -2.0, None, None, None], "markers")
    assert inferred.marker.color == style.PAPER
    assert "Hollow: inferred, not run." in figure.reading
    apart = drawn(GAINS, Chart(lines=(dataclasses.replace(EXPECTED, joined=False),)))
    assert {trace.mode for trace in apart.plot.data} == {"markers"}


def test_points_of_another_split_are_diamonds_that_say_so_and_stand_on_the_same_axis() -> None:
    figure = drawn(GAINS, Chart(lines=(EXPECTED, dataclasses.replace(ON_TEST, name="once more"))))
    diamond = figure.plot.data[-1]
    assert (diamond.name, list(diamond.y), diamond.mode) == ("once more, test", [4.0], "markers")
    assert set(diamond.marker.symbol) == {"diamond"}
    assert figure.plot.layout.yaxis.title.text == "Validation points over the whole model"
    assert "Diamond: once more, test." in figure.reading


def test_the_line_at_0_is_named_and_what_lies_on_it_has_its_colour() -> None:
    figure = drawn(GAINS, Chart(lines=(EXPECTED,), zero="whole model"))
    (line,) = (shape for shape in figure.plot.layout.shapes if shape.type == "line")
    assert (line.y0, line.y1, line.line.dash) == (0, 0, "dash")
    assert words(figure)["whole<br>model"].y == 0
    assert figure.plot.data[0].marker.color[-1] == style.DROP


@pytest.mark.parametrize(("n_blocks", "labelled"), [(8, 8), (24, 12), (48, 12)])
def test_the_axis_is_the_model_block_by_block(n_blocks: int, labelled: int) -> None:
    layers = range(n_blocks + 1)
    table = Table(columns=(Column("layer", layers), Column("gain", [float(layer) for layer in layers])))
    choice = Choice.upto(n_blocks, 5, (4, 5, 6))
    figure = drawn(table, Chart(lines=(Line("gain"),)), choice=choice, level=0.95)
    blocks = [shape for shape in figure.plot.layout.shapes if shape.type == "rect" and shape.ysizemode == "pixel"]
    assert [block.fillcolor for block in blocks] == [style.CHOSEN] * 5 + [style.TRANSPARENT] * (n_blocks - 5)
    assert [(block.x0 + block.x1) / 2 for block in blocks] == pytest.approx(list(range(1, n_blocks + 1)))
    written = words(figure)
    assert sum(text.isdigit() for text in written) == labelled
    assert {"embeddings", "<b>the best is one of these (95 %)</b>"} <= set(written)
    assert next(place.x for text, place in written.items() if "cut here" in text) == 5.5


def test_a_cut_has_its_values_and_blocks_from_all_over_have_no_cut() -> None:
    chart = Chart(lines=(EXPECTED, ON_TEST))
    assert "<b>cut here</b><br>expected 2.5 · on test 4.0" in words(drawn(GAINS, chart, choice=Choice.upto(4, 3)))
    scattered = drawn(GAINS, chart, choice=Choice(n_blocks=4, blocks=(1, 4)))
    assert not any("cut" in text for text in words(scattered))
    assert not any("cut" in text for text in words(drawn(GAINS, chart, choice=Choice.upto(4, 4))))


def test_candidates_that_are_apart_are_shaded_each_and_named_in_the_caption() -> None:
    figure = drawn(GAINS, Chart(lines=(EXPECTED,)), choice=Choice.upto(4, 3, (1, 3, 4)))
    shades = [(shape.x0, shape.x1) for shape in figure.plot.layout.shapes if shape.fillcolor == style.CANDIDATE]
    assert shades == [(0.5, 1.5), (2.5, 4.5)]
    assert not any("best" in text for text in words(figure))
    assert "Green background: the best is one of these." in figure.reading


@pytest.mark.parametrize(("low", "high"), [(0.27, 1.17), (1.0, 7.9), (2.0, 900.0), (8.0, 9.0), (5.0, 5.0), (0.0, 3.0)])
def test_numbers_on_an_axis_of_costs_stand_apart_on_a_phone(low: float, high: float) -> None:
    table = Table(columns=(Column("name", ("a", "b")), Column("cost", (low, high)), Column("score", (1.0, 2.0))))
    figure = drawn(table, Chart(lines=(Line("score"),), kind="cost", x="cost"))
    ticks = list(figure.plot.layout.xaxis.tickvals)
    assert 1 <= len(ticks) <= 4
    assert all(more / less >= (high / low) ** 0.25 for less, more in pairwise(ticks))


def test_an_axis_of_counts_has_few_numbers_however_far_they_reach() -> None:
    for counts, step in (((1, 4, 8), 1), ((1, 24, 48), 4), ((8, 64, 512), None)):
        table = Table(columns=(Column("batch", counts), Column("ms", (1.0, 2.0, 3.0))))
        assert drawn(table, Chart(lines=(Line("ms"),), x="batch")).plot.layout.xaxis.dtick == step


CELLS = [(i, j) for i in range(3) for j in range(2)]
MAP = Table(
    columns=(
        Column("layer", [i for i, _ in CELLS] * 2, "layer of a"),
        Column("other", [j for _, j in CELLS] * 2, "layer of b"),
        Column("features", ["raw"] * 6 + ["standardised"] * 6),
        Column("cka", (0.9, 0.1, 0.5, 0.4, None, 0.8, 0.7, -0.25, 0.5, 0.4, 0.3, 0.6), form=".2f"),
    ),
    marks=tuple("chosen" if i == j else None for i, j in CELLS) * 2,
)


def test_maps_of_a_table_share_their_colours_and_negative_numbers_have_one_of_their_own() -> None:
    chart = Chart(kind="map", lines=(Line("cka"),), x="other", y="layer", chosen="compared above")
    names = ("raw", "standardised")
    raw, other = (drawn(MAP, dataclasses.replace(chart, where=(("features", name),))) for name in names)
    first, second = raw.plot.data[0], other.plot.data[0]
    cells = [*zip(first.x, first.y, first.z, strict=True)]
    assert cells == [(0, 0, 0.9), (1, 0, 0.1), (0, 1, 0.5), (1, 1, 0.4), (1, 2, 0.8)]
    assert (first.zmin, first.zmax) == (second.zmin, second.zmax) == (-0.25, 1.0)
    assert first.colorscale[0] == (0.0, style.NEGATIVE)
    assert list(first.text) == ["●", "", "", "●", ""]
    assert raw.plot.layout.yaxis.scaleanchor == "x", "expected squares"
    assert (raw.plot.layout.xaxis.title.text, raw.plot.layout.yaxis.title.text) == ("Layer of b", "Layer of a")
    assert (raw.reading, other.reading) == ("Dots: compared above.", "Dots: compared above. Orange: below 0.")
    assert raw.finding == "Cka: 0.10 at layer 0 of a and layer 1 of b; 0.90 at layer 0 of a and layer 0 of b."
    assert {"layer of a 2", "layer of b 1", "cka 0.80"} == set(first.hovertext[-1].split("<br>"))


def stairs(loss: tuple[float, float] | None, limit: float | None = 1.0) -> Figure:
    table = Table(
        columns=(
            Column("blocks", ((1, 4), (1, 2, 3, 4), (1, 2, 4), (4,))),
            Column("agreement", (80.0, 100.0, 93.25, 60.0), form=".1f"),
            Column("loss", (loss and sum(loss) / 2, None, None, None), "points lost", ".1f"),
            Column("ends", (loss, None, None, None), form=".1f", interval=True),
        ),
        marks=("chosen", None, None, None),
    )
    lines = (Line("agreement"), Line("loss", interval="ends"))
    return drawn(table, Chart(kind="staircase", lines=lines, x="blocks", limit=limit, chosen="trained and tested"))


def test_a_staircase_takes_out_a_block_a_row_and_frames_what_was_trained() -> None:
    figure = stairs((3.5, 18.5))
    squares, bars = figure.plot.data
    assert [list(row) for row in squares.z] == [[1, 1, 1, 1], [1, 1, 0, 1], [2, 0, 0, 2], [0, 0, 0, 1]]
    assert [[place for place, sign in enumerate(row) if sign] for row in squares.text] == [[], [2], [1], [0]]
    assert (list(bars.x), list(bars.text)) == ([100.0, 93.25, 80.0, 60.0], ["100.0", "93.2", "80.0", "60.0"])
    assert list(figure.plot.layout.yaxis.ticktext) == ["4 of 4", "3 of 4", "2 of 4", "1 of 4"]
    assert list(figure.plot.layout.yaxis2.ticktext) == ["", "", "11.0<br>3.5 to 18.5", ""]
    (frame,) = figure.plot.layout.shapes
    assert (frame.y0, frame.y1) == (1.5, 2.5)
    assert "points<br>lost" in words(figure)
    assert figure.finding == "Agreement: 80.0 with 2 of 4 blocks, 60.0 with 1 of 4 blocks."


@pytest.mark.parametrize(
    ("loss", "limit", "colour"),
    [
        ((3.5, 18.5), 1.0, style.DROP),
        ((-0.5, 0.75), 1.0, style.CHOSEN),
        ((0.5, 1.5), 1.0, style.MODEL),
        ((0.5, 1.5), None, style.MODEL),
        (None, 1.0, style.MODEL),
    ],
)
def test_the_frame_says_whether_the_loss_is_within_what_is_allowed(
    loss: tuple[float, float] | None, limit: float | None, colour: str
) -> None:
    figure = stairs(loss, limit)
    assert {shape.line.color for shape in figure.plot.layout.shapes} == {colour}
    assert figure.plot.data[0].colorscale[-1] == (1.0, colour)
    assert figure.plot.data[1].marker.color[2] == colour
    assert ("points<br>lost" in words(figure)) == (loss is not None)


def test_intervals_and_band_of_the_curve_are_those_of_the_comparison(measured: Prediction) -> None:
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
    spoilt = changed(finding, answer__spoilt=3)
    claiming, silent = (
        "".join(f"{figure.reading} {figure.plot.to_json()}" for figure in figures(one) if "read" not in figure.name)
        for one in (finding, spoilt)
    )
    for claim in ("may be the best", "the best is one of these"):
        assert claim in claiming
        assert claim not in silent


def test_maps_share_one_scale_and_have_the_models_layers_as_rows(measured: Prediction) -> None:
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
