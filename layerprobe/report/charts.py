"""Pieces of figures that more than one page draws. Knows Plotly and scores of seeds, not what is drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import plotly.graph_objects as go

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.names import counted
from layerprobe.results import numbers
from layerprobe.results.style import CHOSEN, FAINT, INK, TRANSPARENT, layer_axis, styled, text
from layerprobe.stats.seeds import SeedScores, pareto_front, seed_scores
from layerprobe.stats.sentences import drawn_anew_in_all
from layerprobe.stats.values import Floor

SeedSplit = Literal["validation", "test"]
SPLITS: tuple[SeedSplit, ...] = ("validation", "test")
MANY = 8
"""More seeds than these get smaller dots, more room, and are not written out where one points at a mean."""
ROOM, DODGE = 0.4, 0.13
"""Layers from the mean to where the dots of its seeds end: of a line alone, and of lines that stand side by side."""


# ---- lines ----------------------------------------------------------------------------------------------


def line(
    values: Iterable[float | None],
    *,
    name: str,
    colour: str,
    x: Iterable[float] | None = None,
    width: float = 2.0,
    dash: str = "solid",
    marker: Mapping[str, Any] | None = None,
    texts: Iterable[str] | None = None,
    **options: Any,
) -> go.Scatter:
    """Return a line over layers, or over x, with a gap where a value is None.

    Texts, of Plotly's kind, are shown on hover.
    """
    values = list(values)
    shown: dict[str, Any] = {"hoverinfo": "skip"} if texts is None else {"hovertemplate": "%{hovertext}<extra></extra>"}
    return go.Scatter(
        x=list(range(len(values)) if x is None else x),
        y=values,
        name=text(name),
        mode="lines+markers" if marker else "lines",
        line={"color": colour, "width": width, "dash": dash},
        marker=marker,
        hovertext=None if texts is None else list(texts),
        **shown,
        **options,
    )


def area(
    lower: Sequence[float], upper: Sequence[float], *, name: str, colour: str, first: int = 0, **options: Any
) -> go.Scatter:
    """Return the ground between two curves from a layer on: along the upper one and back along the lower one."""
    layers = range(first, len(lower))
    outline, around = [*upper[first:], *reversed(lower[first:])], [*layers, *reversed(layers)]
    filled: dict[str, Any] = {"fill": "toself", "fillcolor": colour}
    return line(outline, name=name, colour=TRANSPARENT, x=around, width=0, **filled, **options)


def floor_line(floor: Floor | None, last: float, *, first: float = 0) -> list[go.Scatter]:
    """Return a dashed line at what a trivial answer scores; nothing where there is none, or at 0, far from all else."""
    if floor is None or not floor.value:
        return []
    texts = [f"{text(floor.by)}: {numbers.number(floor.value)}"] * 2
    return [line([floor.value] * 2, name=floor.by, colour=FAINT, x=(first, last), width=1.5, dash="dash", texts=texts)]


# ---- means over seeds, with every seed ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a line is drawn."""

    colour: str
    symbol: str = "circle"
    dash: str = "solid"
    markers: Mapping[str, Any] | None = None
    """Of the means, where they differ from layer to layer."""

    @property
    def marker(self) -> Mapping[str, Any]:
        """Plotly's marker of the means."""
        return self.markers or {"size": 8, "color": self.colour, "symbol": self.symbol}


def seeds_and_mean(
    name: str,
    outcomes: Sequence[LayerOutcome],
    look: Look,
    *,
    what: str,
    scores: Sequence[SeedScores] | None = None,
    shift: float = 0.0,
    room: float = ROOM,
) -> list[go.Scatter]:
    """Return every seed as a dot, and a line of the means with their intervals; nothing without outcomes.

    `what` names the scores, such as `test F1`; `scores` has them by layer, where they are not those of the test split.
    All is moved aside by `shift` layers, and the dots take `room` next to the mean; see `compared_outcomes`.
    """
    if not outcomes:
        return []
    shown = scores or [outcome.tested for outcome in outcomes]
    many = max(len(outcome.seeds) for outcome in outcomes) > MANY
    dots = go.Scatter(
        x=[outcome.layer + shift + aside for outcome in outcomes for aside in beside(len(outcome.seeds), room)],
        y=[value for each in shown for value in each.values],
        customdata=[[outcome.layer, seed] for outcome in outcomes for seed in outcome.seeds],
        name=f"{text(name)}, seeds",
        mode="markers",
        legendgroup=name,
        showlegend=False,
        marker={"size": 4 if many else 6, "color": look.colour, "opacity": 0.5, "symbol": look.symbol},
        hovertemplate=f"{text(name)}<br>layer %{{customdata[0]}}, seed %{{customdata[1]}}"
        f"<br>{what} %{{y:.2f}}<extra></extra>",
    )
    mean = line(
        [each.mean for each in shown],
        name=name,
        colour=look.colour,
        x=[outcome.layer + shift for outcome in outcomes],
        width=1.5,
        dash=look.dash,
        marker=look.marker,
        texts=[f"{text(name)}<br>{outcome_text(one.layer, each)}" for one, each in zip(outcomes, shown, strict=True)],
        error_y=bars([(each.mean, *(each.interval or (each.mean, each.mean))) for each in shown], look.colour),
        legendgroup=name,
        showlegend=True,
    )
    return [dots, mean]


def over_seeds(outcome: LayerOutcome, split: SeedSplit, *, level: float) -> SeedScores:
    """Return the primary metric of a layer on one split over seeds."""
    if split == "test":
        return outcome.tested
    primary = outcome.primary
    scores, error = seed_scores(outcome.validation[primary], level, metric=primary), outcome.validation_error
    return scores if error is None else replace(scores, interval=error.interval)


def beside(count: int, room: float = ROOM) -> list[float]:
    """Return how far from the mean each seed stands: side by side, so that equals stay apart."""
    width = room * (0.4 if count <= MANY else 0.65)
    return [0.4 * room + width * index / max(count - 1, 1) for index in range(count)]


def compared_outcomes(
    lines: Sequence[tuple[str, Sequence[LayerOutcome], Look]], *, metric: str, n_layers: int
) -> go.Figure:
    """Return test scores by layer of what is compared: `seeds_and_mean` of each, with bars at one layer kept apart."""
    figure, layers = go.Figure(), [outcome.layer for _, outcomes, _ in lines for outcome in outcomes]
    dodge, room = (0.0, ROOM) if len(set(layers)) == len(layers) else (DODGE, DODGE)
    for index, (name, outcomes, look) in enumerate(lines):
        shift = dodge * (index - (len(lines) - 1) / 2)
        figure.add_traces(seeds_and_mean(name, outcomes, look, what=f"test {metric}", shift=shift, room=room))
    layer_axis(figure, n_layers)
    figure.update_yaxes(title=f"Test {metric} × 100")
    return styled(figure)


def seeds_reading(outcomes: Iterable[LayerOutcome], level: float) -> str:
    """Return how to read `seeds_and_mean`."""
    shown = [outcome for outcome in outcomes if outcome.interval]
    if not shown:
        return "Small marks are seeds; one seed gives no interval."
    over = drawn_anew_in_all(each.error for each in shown if each.error) or "over seeds"
    return (
        f"Small marks are seeds; bars are {numbers.confidence(level)} intervals of the mean {over}; lines only join the"
        " layers run."
    )


def bars(bounds: Sequence[tuple[float, float, float]], colour: str) -> dict[str, Any]:
    """Return bars from values with their lower and upper ends."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, _, high in bounds],
        "arrayminus": [value - low for value, low, _ in bounds],
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def mean_and_std(scores: SeedScores) -> str:
    """Return mean ± standard deviation and the number of seeds."""
    spread = "" if scores.std is None else f" ± {numbers.number(scores.std)}"
    return f"{numbers.number(scores.mean)}{spread} ({counted(len(scores.values), 'seed')})"


def outcome_text(layer: int, scores: SeedScores) -> str:
    """Return what is shown of an outcome that is pointed at."""
    each = f"<br>by seed {numbers.by_seed(scores.values)}" if 1 < len(scores.values) <= MANY else ""
    return f"layer {layer}: {mean_and_std(scores)}<br>{numbers.interval(scores.interval)}{each}"


# ---- scores for their cost ------------------------------------------------------------------------------


def front_line(points: Iterable[tuple[float, float]]) -> go.Scatter:
    """Return the Pareto front of points of cost and score as steps."""
    front = pareto_front(points, cost=lambda point: point[0], score=lambda point: point[1])
    scores, costs = [score for _, score in front], [cost for cost, _ in front]
    return line(scores, name="Pareto front", colour=CHOSEN, x=costs, line_shape="hv")


def cost_points(
    name: str, costs: Sequence[float], outcomes: Sequence[LayerOutcome], marker: Mapping[str, Any], *, unit: str
) -> go.Scatter:
    """Return the mean score of each layer against its cost, labelled; unit is as in `%{x:.3~g} ms`."""
    points = [(outcome.layer, outcome.tested.mean, outcome_text(outcome.layer, outcome.tested)) for outcome in outcomes]
    return layer_points(name, costs, points, marker, unit=unit)


def layer_points(
    name: str, costs: Sequence[float], points: Sequence[tuple[int, float, str]], marker: Mapping[str, Any], *, unit: str
) -> go.Scatter:
    """Return layers with their scores, and what is shown where one points at them, against their cost, labelled."""
    return go.Scatter(
        x=list(costs),
        y=[score for _, score, _ in points],
        text=[str(layer) for layer, *_ in points],
        hovertext=[said for *_, said in points],
        name=text(name),
        mode="markers+text",
        textposition="top center",
        textfont={"color": INK},
        cliponaxis=False,
        marker=marker,
        hovertemplate=f"{text(name)}<br>%{{hovertext}}<br>{unit}<extra></extra>",
    )
