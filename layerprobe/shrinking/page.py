"""A smaller model as a page: which blocks go, what each costs, and what the smaller model loses. Knows its results."""

from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go

from layerprobe.metrics.names import metric_title
from layerprobe.names import in_percent, short_name, told_apart
from layerprobe.report.charts import bars, line
from layerprobe.results import numbers
from layerprobe.results.markup import element
from layerprobe.results.parts import section, table_of
from layerprobe.results.style import CHOSEN, COLOURS, FAINT, FURTHER, MODEL, REFERENCE, SYMBOLS, styled
from layerprobe.results.values import Card, Figure, Page
from layerprobe.shrinking.equal import EqualSize
from layerprobe.shrinking.values import Removal, Served, Shrunk, Smaller


def shrunk_page(result: Shrunk) -> Page:
    """Return the page of a model made smaller."""
    small, loss, name = result.smaller, result.smaller.loss, numbers.label(short_name(result.model.name))
    cards = [
        Card("Blocks", f"{len(small.blocks)} of {result.model.n_blocks}", ", ".join(map(str, small.blocks))),
        Card("Parameters", numbers.millions(small.parameters), f"of {numbers.millions(result.model.parameters[-1])}"),
    ]
    if fast := small.faster.replace(" times as fast", ""):
        cards.append(Card("Times as fast", fast, "32 texts of 32 tokens, or as many as it reads"))
    if loss is not None:
        end = told_apart(loss.most, loss.margin, 2)
        most = "" if loss.error is None else f"95 %: at most {end}, allowed {loss.margin:g}"
        cards.append(Card("Loss", f"{loss.value:.2f}", most))
    drawn = [
        Figure(
            "order",
            _agreement(result.removals, result.tried),
            _order_words(result.removals),
            "Agreement is that of the similarities between texts with those of the whole model, without training but "
            "for the diamonds.",
        )
    ]
    return Page(
        title=f"{name} made smaller",
        overline="layerprobe · a smaller model",
        heading=f"{name}, made smaller",
        lead=(result.sentence,),
        cards={"": tuple(cards)},
        warnings=result.warnings,
        sections=(
            section("order", result.order.title, *(drawn if result.removals else ()), table_of(result.order)),
            section("sizes", result.table.title, *_losses(result), table_of(result.table)),
            *([section("front", result.ways.title, *_front(result), table_of(result.ways))] if result.front else []),
        ),
        provenance=(element("p", result.account),),
        terms=("TMFT", "Zero-shot"),
        result=result,
        stem="smaller",
    )


def equal_page(result: EqualSize) -> Page:
    """Return the page of the first blocks and others of the same number, fine-tuned alike."""
    first, title = result.candidates[0], metric_title(result.metric)
    base = fmean(first.scores)
    figure, means = go.Figure(layout={"showlegend": False}), []
    for each in result.candidates:
        blocks, chosen_by, mean = ", ".join(map(str, each.blocks)), ", ".join(each.chosen_by), fmean(each.scores)
        means.append(f"blocks {blocks} ({chosen_by}) {mean:.1f}")
        name = f"{blocks}<br>{chosen_by}"
        colour = CHOSEN if each is result.keep else MODEL
        points = go.Scatter(x=[name], y=[mean], mode="markers", marker={"size": 9, "color": colour}, hoverinfo="y")
        if each.difference is not None:
            low, high = each.difference.interval
            points.error_y = bars([(mean, base + low, base + high)], colour)
        seeds = go.Scatter(x=[name] * len(each.scores), y=each.scores, mode="markers")
        figure.add_traces([points, seeds.update(marker={"size": 5, "color": FAINT}, hoverinfo="y")])
    figure.add_hline(y=base, line={"dash": "dot", "color": REFERENCE})
    figure.update_xaxes(title="Blocks kept", type="category")
    figure.update_yaxes(title=f"Test {title} × 100")
    reading = (
        f"Small points are seeds. Bars are intervals of the difference from the first blocks, over items and seeds, "
        f"which all hold at once with {in_percent(result.level)}; where one leaves out the dotted line, the "
        "blocks differ."
    )
    drawn = Figure("equal-size", styled(figure), f"Mean test {title} × 100: {'; '.join(means)}.", reading)
    name = f"{len(first.blocks)} blocks: the first, or others"
    return Page(
        title=name,
        overline="layerprobe · blocks of equal size",
        heading=name,
        lead=(result.summary,),
        sections=(section("equal-size", name, drawn, table_of(result.table)),),
        terms=("TMFT",),
        result=result,
        stem="equal-size",
    )


def _agreement(removals: Sequence[Removal], tried: Sequence[Smaller]) -> go.Figure:
    """Return agreement with the whole model by blocks left: of those chosen, of others, and after training."""
    left = [len(each.kept) for each in removals]
    figure = go.Figure()
    for name, values, colour, dash in (
        ("chosen", [each.agreement for each in removals], MODEL, "solid"),
        ("evenly spaced", [each.evenly for each in removals], FURTHER[0][0], "dash"),
        ("first blocks", [each.first for each in removals], REFERENCE, "dot"),
    ):
        texts = [f"{name}: {', '.join(map(str, each.kept))}" if name == "chosen" else name for each in removals]
        marker = {"size": 7, "color": colour}
        figure.add_trace(line(values, name=name, colour=colour, x=left, dash=dash, marker=marker, texts=texts))
    figure.add_trace(
        go.Scatter(
            x=[len(each.blocks) for each in tried],
            y=[sum(each.agreement) / len(each.agreement) for each in tried],
            name="trained",
            mode="markers",
            marker={"size": 11, "color": CHOSEN, "symbol": "diamond"},
        )
    )
    figure.update_xaxes(title="Blocks left", dtick=1, autorange="reversed")
    figure.update_yaxes(title="Agreement with the whole model × 100")
    return styled(figure)


def _order_words(removals: Sequence[Removal]) -> str:
    if not removals:
        return ""
    gone = ", ".join(str(each.block) for each in removals)
    return f"Blocks go in the order {gone}; what agrees most is kept."


def _losses(result: Shrunk) -> list[Figure]:
    """Return the losses by size on each split, with what was allowed, where several sizes were tried."""
    figure, tried = go.Figure(), result.tried
    splits = (
        ("on validation, by which the size was chosen", [each.chosen_by for each in tried], MODEL, "circle"),
        ("on test", [each.loss for each in tried], CHOSEN, "diamond"),
    )
    for aside, (name, losses, colour, symbol) in enumerate(splits):
        known = [(len(each.blocks), loss) for each, loss in zip(tried, losses, strict=True) if loss is not None]
        if not known:
            continue
        ends = [(loss.value, *(loss.interval or (loss.value,) * 2)) for _, loss in known]
        figure.add_trace(
            go.Scatter(
                x=[left + 0.05 * aside for left, _ in known],
                y=[loss.value for _, loss in known],
                mode="markers",
                marker={"size": 9, "color": colour, "symbol": symbol},
                error_y=bars(ends, colour),
                name=name,
                showlegend=True,
                hoverinfo="y+name",
            )
        )
    if len({x for trace in figure.data for x in map(round, trace.x)}) < 2:
        return []
    figure.add_hline(y=result.within, line={"dash": "dot", "color": REFERENCE})
    figure.update_xaxes(title="Blocks kept", dtick=1)
    after = ", both fine-tuned" if result.smaller.tuned else ""
    figure.update_yaxes(title=f"Points below the whole model{after}", rangemode="tozero")
    reading = "Bars are 95 % intervals; the dotted line is what was allowed."
    return [Figure("losses", styled(figure), result.sentence, reading)]


def _front(result: Shrunk) -> list[Figure]:
    """Return the score, or without a task the agreement, by milliseconds a text, with intervals of both."""
    figure = go.Figure()
    groups = dict.fromkeys((each.blocks, each.dimensions) for each in result.front)
    for number, (blocks, dimensions) in enumerate(groups):
        ways = [each for each in result.front if (each.blocks, each.dimensions) == (blocks, dimensions)]
        colour = COLOURS[blocks != result.smaller.blocks]
        ends = [_ends(each) for each in ways]
        figure.add_trace(
            go.Scatter(
                x=[each.milliseconds for each in ways],
                y=[each.quality for each in ways],
                hovertext=[f"{each.run_by}<br>{each.milliseconds:.2f} ms, {each.quality:.2f}" for each in ways],
                hovertemplate="%{hovertext}<extra></extra>",
                name=f"{len(blocks)} blocks, {dimensions} dimensions",
                mode="markers",
                marker={"size": 9, "color": colour, "symbol": SYMBOLS[number % 2]},
                error_x=bars([(each.milliseconds, *each.interval) for each in ways], colour),
                error_y=bars([(each.quality, *end) for each, end in zip(ways, ends, strict=True)], colour),
            )
        )
    figure.update_xaxes(title="Milliseconds a text", type="log")
    loss = result.smaller.loss
    figure.update_yaxes(title="Agreement × 100" if loss is None else f"Test {metric_title(loss.metric)} × 100")
    words = "Point at a way to see what runs it; embeddings take 4 bytes a dimension. "
    return [Figure("front", styled(figure), words, "Bars are 95 % intervals: upright of the loss, across of the time.")]


def _ends(way: Served) -> tuple[float, float]:
    """Return the ends of the interval of a way's score, where the whole model's is what it is."""
    if way.loss is None or way.loss.interval is None:
        return way.quality, way.quality
    low, high = way.loss.interval
    whole = way.quality + way.loss.value
    return whole - high, whole - low
