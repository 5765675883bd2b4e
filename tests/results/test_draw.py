"""What charts of tables draw: hand-made tables, and what a caption may say of the figure."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from layerprobe.results import style
from layerprobe.results.conclusion import Choice
from layerprobe.results.draw import Figure, drawn
from layerprobe.results.table import Chart, Column, Line, Quantity, Table

GAIN = Quantity("points over the whole model", "validation", "higher")
TESTED = replace(GAIN, split="test")
TABLE = Table(
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
    figure = drawn(TABLE, Chart(lines=(EXPECTED,)))
    runs, inferred = figure.plot.data
    assert (list(runs.y), runs.mode) == ([-3.0, None, 1.0, 2.5, 0.0], "lines+markers")
    assert (list(inferred.y), inferred.mode) == ([None, -2.0, None, None, None], "markers")
    assert inferred.marker.color == style.PAPER
    assert "Hollow: inferred, not run." in figure.reading
    apart = drawn(TABLE, Chart(lines=(replace(EXPECTED, joined=False),)))
    assert {trace.mode for trace in apart.plot.data} == {"markers"}


def test_points_of_another_split_are_diamonds_that_say_so_and_stand_on_the_same_axis() -> None:
    figure = drawn(TABLE, Chart(lines=(EXPECTED, replace(ON_TEST, name="once more"))))
    diamond = figure.plot.data[-1]
    assert (diamond.name, list(diamond.y), diamond.mode) == ("once more, test", [4.0], "markers")
    assert set(diamond.marker.symbol) == {"diamond"}
    assert figure.plot.layout.yaxis.title.text == "Validation points over the whole model"
    assert "Diamond: once more, test." in figure.reading


def test_the_line_at_0_is_named_and_what_lies_on_it_has_its_colour() -> None:
    figure = drawn(TABLE, Chart(lines=(EXPECTED,), zero="whole model"))
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
    assert "<b>cut here</b><br>expected 2.5 · on test 4.0" in words(drawn(TABLE, chart, choice=Choice.upto(4, 3)))
    scattered = drawn(TABLE, chart, choice=Choice(n_blocks=4, blocks=(1, 4)))
    assert not any("cut" in text for text in words(scattered))
    assert not any("cut" in text for text in words(drawn(TABLE, chart, choice=Choice.upto(4, 4))))


def test_candidates_that_are_apart_are_shaded_each_and_named_in_the_caption() -> None:
    figure = drawn(TABLE, Chart(lines=(EXPECTED,)), choice=Choice.upto(4, 3, (1, 3, 4)))
    shades = [(shape.x0, shape.x1) for shape in figure.plot.layout.shapes if shape.fillcolor == style.CANDIDATE]
    assert shades == [(0.5, 1.5), (2.5, 4.5)]
    assert not any("best" in text for text in words(figure))
    assert "Green background: the best is one of these." in figure.reading


def test_a_caption_says_what_is_drawn_and_nothing_else() -> None:
    ends = Column("interval", ((1.0, 2.0), None), "95 % interval", interval=True, over="over new pairs")
    table = Table(columns=(Column("layer", (0, 1)), Column("a", (1.5, 2.0)), ends, Column("seeds", ((1.0,), (2.0,)))))
    line = Line("a", interval="interval", seeds="seeds", run="a")
    assert drawn(table, Chart(lines=(line,))).reading == "Bars: 95 % interval over new pairs."
    assert drawn(table, Chart(lines=(line,), band=True)).reading == "Shade: 95 % interval over new pairs."
    several = replace(
        table, columns=(*table.columns[:2], Column("seeds", ((1.0, 2.0), (2.0,)))), marks=("chosen", None)
    )
    assert (
        drawn(several, Chart(lines=(Line("a", seeds="seeds"),))).reading == "Small marks: seeds. Large point: chosen."
    )
    bars = drawn(replace(several, marks=("candidate", None)), Chart(lines=(Line("a"),), kind="bars", x="a"))
    assert bars.reading == ""
    assert set(bars.plot.data[0].marker.color) == {style.MODEL}


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


# ---- maps and staircases ------------------------------------------------------------------------------------

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
    raw, other = (drawn(MAP, replace(chart, where=(("features", name),))) for name in ("raw", "standardised"))
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
