"""The search for the layer to keep as a figure. Knows Plotly and findings."""

from collections.abc import Sequence
from itertools import groupby

import plotly.graph_objects as go

from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import points as scores
from layerprobe.results import numbers
from layerprobe.results.draw import MANY, area, beside, floor_line, line
from layerprobe.results.shown import from_layer
from layerprobe.results.style import (
    CANDIDATE,
    CHOSEN,
    FAINT,
    INTERVAL,
    MODEL,
    layer_axis,
    layer_markers,
    shade_drop,
    styled,
)
from layerprobe.search.values import LayerBelief
from layerprobe.stats.sentences import points
from layerprobe.study.values import Finding, MadeRun


def of_finding(finding: Finding, outcomes: Sequence[LayerOutcome]) -> go.Figure:
    """Return the expected score of every layer with intervals, scan scores and runs of truncated models, as a figure.

    The layers that may be the best and those that drop are shaded; the layer to keep and
    the smallest one that will do are marked. Of spoilt scores, no interval and none of that is drawn. Outcomes are what
    fine-tuning showed on the test split.
    """
    tested = {outcome.layer: outcome for outcome in outcomes}
    beliefs, answer = finding.answer.layers, finding.answer
    expected = line(
        from_layer(answer.first_layer, [belief.mean for belief in beliefs]),
        name="expected score",
        colour=MODEL,
        width=2.5,
        marker=layer_markers(range(len(beliefs)), finding.drop_layers),
        texts=[_text(finding, belief, tested.get(belief.layer)) for belief in beliefs],
    )
    traces = [*_scans(finding), *_runs(finding), expected]
    if not answer.spoilt:
        lows, highs = zip(*(belief.interval for belief in beliefs), strict=True)
        level = numbers.confidence(answer.settings.level)
        band = area(lows, highs, name=f"{level} interval", colour=INTERVAL, first=answer.first_layer)
        traces = [band, *traces, *_rings(finding), _candidates_entry()]
    floor = finding.floor
    figure = go.Figure([*traces, *(floor_line(floor.value, floor.by, (0, len(beliefs) - 1)) if floor else ())])
    figure.update_yaxes(title=scores(finding.primary, "validation").title)
    layer_axis(figure, len(beliefs))
    if not answer.spoilt:
        _shade_candidates(figure, answer.candidates)
    shade_drop(figure, finding.drop_layers)
    return styled(figure)


def _text(finding: Finding, belief: LayerBelief, tested: LayerOutcome | None) -> str:
    settings = finding.answer.settings
    lines = [f"layer {belief.layer}: expected {numbers.number(belief.mean)}"]
    if not finding.answer.spoilt:
        near = points(settings.tolerance)
        lines += [
            f"{numbers.confidence(settings.level)} interval {numbers.interval(belief.interval)}",
            f"chance to be the best: {numbers.redrawn_share(belief.chance_best)}",
            f"chance to be within {near} of the best: {numbers.redrawn_share(belief.chance_within)}",
        ]
    if tested is not None:
        lines.append(f"fine-tuned, on test: {numbers.number(tested.mean)}")
    return "<br>".join(lines)


def _scans(finding: Finding) -> list[go.Scatter]:
    several = len(finding.scans) > 1
    return [
        line(
            [run.validation[finding.primary] for run in scan],
            x=[run.layer for run in scan],
            texts=[_run_text(finding, made) for made in finding.runs if made.scan and made.run in scan],
            name="one run, all layers",
            colour=FAINT,
            width=1.0 if several else 1.5,
            dash="dash",
            legendgroup="scan",
            showlegend=not number,
        )
        for number, scan in enumerate(finding.scans)
    ]


def _runs(finding: Finding) -> list[go.Scatter]:
    """Return every run of a truncated model as a dot next to its layer."""
    made = sorted((made for made in finding.runs if not made.scan), key=lambda made: (made.run.layer, made.run.seed))
    if not made:
        return []
    most = max(belief.runs for belief in finding.answer.layers)
    xs: list[float] = []
    for layer, runs in groupby(made, key=lambda made_run: made_run.run.layer):
        xs += [layer + aside for aside in beside(len(list(runs)))]
    dots = go.Scatter(
        x=xs,
        y=[made_run.run.validation[finding.primary] for made_run in made],
        hovertext=[_run_text(finding, made_run) for made_run in made],
        name="truncated and fine-tuned, by seed",
        mode="markers",
        marker={"size": 5 if most > MANY else 8, "color": MODEL, "opacity": 0.6},
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return [dots]


def _run_text(finding: Finding, made: MadeRun) -> str:
    run = made.run
    fold = f" on part {made.fold + 1} of {finding.n_folds}" if finding.n_folds > 1 else ""
    return (
        f"{'all layers at once, ' if made.scan else ''}layer {run.layer}, seed {run.seed}"
        f"<br>validation {numbers.number(run.validation[finding.primary])}{fold}"
        f"<br>test {numbers.number(run.test[finding.primary])}"
    )


def _rings(finding: Finding) -> list[go.Scatter]:
    answer = finding.answer
    marks = {answer.best_layer: ("keep", "circle-open", 18)}
    if answer.smallest_sufficient is not None and answer.smallest_sufficient != answer.best_layer:
        marks[answer.smallest_sufficient] = ("smallest that will do", "square-open", 16)
    return [
        go.Scatter(
            x=[layer],
            y=[answer.layers[layer].mean],
            name=f"{name}: layer {layer}",
            mode="markers",
            marker={"symbol": symbol, "size": size, "color": CHOSEN, "line": {"width": 2.5}},
            hoverinfo="skip",
        )
        for layer, (name, symbol, size) in marks.items()
    ]


def _shade_candidates(figure: go.Figure, layers: Sequence[int]) -> None:
    """Shade the layers that may be the best, those side by side as one."""
    for _, neighbours in groupby(enumerate(layers), key=lambda place: place[1] - place[0]):
        first, *others = (layer for _, layer in neighbours)
        right = others[-1] if others else first
        figure.add_vrect(x0=first - 0.5, x1=right + 0.5, fillcolor=CANDIDATE, line_width=0, layer="below")


def _candidates_entry() -> go.Scatter:
    """Return a legend entry for the shaded candidates, without points."""
    marker = {"symbol": "square", "size": 12, "color": CANDIDATE}
    return go.Scatter(x=[None], y=[None], name="may be the best", mode="markers", marker=marker, hoverinfo="skip")
