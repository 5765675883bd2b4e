"""Draw the curves of the documents from recorded numbers, as SVG that follows light and dark: `python docs/figures.py`.

Those of the embedded pair come from research/paper.md, those on captions from the zoo in the package.
"""

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from textwrap import wrap

from layerprobe.files.serialisation import parse_json
from layerprobe.results import words
from layerprobe.results.shown import load
from layerprobe.results.style import CHOSEN, DARK, DROP, FAINT, FONT, GRID, INK, MODEL, PAPER, REFERENCE, SEQUENTIAL
from layerprobe.results.words import typeset_text
from layerprobe.study.values import Finding

DOCS = Path(__file__).parent
IMAGES, GALLERY, RESEARCH = DOCS / "images", DOCS / "gallery", DOCS.parent / "research"
DATA, PAIR = RESEARCH / "data", RESEARCH / "paper.md"
CAPTIONS = DOCS.parent / "layerprobe" / "lab" / "dropbench" / "zoos" / "dropbench-captions.json"
MOST_WRONG = 25
"""Places of 100 between ranks, above which a page counts a pair as wrong."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 56, 112, 48, 56
COLOURS = {
    "ink": INK,
    "faint": FAINT,
    "grid": GRID,
    "paper": PAPER,
    "model": MODEL,
    "reference": REFERENCE,
    "drop": DROP,
    "chosen": CHOSEN,
} | {f"s{number}": colour for number, colour in enumerate(SEQUENTIAL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Scores by layer, from layer 0."""

    scores: Sequence[float]
    colour: str
    name: str = ""
    """Written at the last layer."""
    thin: bool = False
    ends: Sequence[tuple[float, float]] = ()
    """Of the interval of each score."""


@dataclass(frozen=True, slots=True)
class Row:
    """A number with its interval, by name."""

    name: str
    value: float
    low: float
    high: float
    bold: bool = False


def table(number: int, row: str) -> list[float]:
    """Return the means of a row of the embedded pair: table 0 is of one epoch, table 1 of six."""
    rows = [line for line in PAIR.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{row}` |")]
    return [float(re.sub(r"[*\s]", "", cell).split("±")[0]) for cell in rows[number].split("|")[2:-1]]


def captions(family: str) -> list[list[float]]:
    """Return the mean test score by layer of each encoder on captions, fine-tuned until converged."""
    entries = json.loads(CAPTIONS.read_text(encoding="utf-8"))["entries"]
    tests = [entry["budgets"]["converged"]["test"] for entry in entries if entry["family"] == family]
    return [[sum(seeds) / len(seeds) for seeds in test] for test in tests]


def text(
    place: tuple[float, float], what: str, colour: str = "faint", *, anchor: str = "start", bold: bool = False
) -> str:
    """Return a text at a place."""
    weight = ' font-weight="600"' if bold else ""
    inked = f'fill="var(--{colour})" text-anchor="{anchor}"{weight}'
    return f'<text x="{place[0]}" y="{place[1]}" {inked}>{escape(what, quote=False)}</text>'


def svg(title: str, parts: Sequence[str], *, height: int = HEIGHT) -> str:
    """Return the picture of parts, in the colours of the page that shows it."""
    light = "".join(f"--{name}:{colour};" for name, colour in COLOURS.items())
    dark = "".join(f"--{name}:{DARK[colour]};" for name, colour in COLOURS.items())
    style = f"svg{{{light}font:13px {FONT}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title, quote=False)}</title>'
    ground = f'<path d="M0 0H{WIDTH}V{height}H0z" fill="var(--paper)"/>'
    return "\n".join([head, f"<style>{style}</style>", ground, *parts, "</svg>\n"])


def drawing(title: str, curves: Sequence[Curve]) -> str:
    """Return the figure of curves over the layers below its title."""
    return svg(title, [text((LEFT, 20), title, "ink", bold=True), *plot(curves)])


def plot(
    curves: Sequence[Curve],
    *,
    step: float = 5,
    top: int = TOP,
    bottom: int = HEIGHT - BOTTOM,
    right: int = WIDTH - RIGHT,
) -> Iterator[str]:
    """Yield the parts of a figure: one line a curve over the layers, with its name at the end."""
    scores = [score for curve in curves for score in (*curve.scores, *chain(*curve.ends))]
    low, high = math.floor(min(scores) / step), math.floor(max(scores) / step) + 1
    last = len(curves[0].scores) - 1

    def x(layer: float) -> float:
        return round(LEFT + (right - LEFT) * layer / last, 1)

    def y(score: float) -> float:
        return round(bottom - (bottom - top) * (score / step - low) / (high - low), 1)

    for tick in range(low, high + 1):
        yield f'<path d="M{LEFT} {y(tick * step)}H{right}" stroke="var(--grid)"/>'
        yield text((LEFT - 8, y(tick * step) + 4), f"{tick * step:g}", anchor="end")
    yield from (text((x(layer), bottom + 20), str(layer), anchor="middle") for layer in range(last + 1))
    yield text(((LEFT + right) / 2, bottom + 46), "Layer (blocks kept)", anchor="middle")
    for curve in curves:
        if curve.ends:
            outline = [*((i, low) for i, (low, _) in enumerate(curve.ends))]
            outline += reversed([*((i, high) for i, (_, high) in enumerate(curve.ends))])
            shape = "L".join(f"{x(layer)} {y(score)}" for layer, score in outline)
            yield f'<path d="M{shape}z" fill="var(--{curve.colour})" opacity="0.2"/>'
        path = "L".join(f"{x(layer)} {y(score)}" for layer, score in enumerate(curve.scores))
        style = 'stroke-width="2.5"' if not curve.thin else 'stroke-width="1" opacity="0.4"'
        yield f'<path d="M{path}" fill="none" stroke="var(--{curve.colour})" {style}/>'
        if not curve.thin:
            for layer, score in enumerate(curve.scores):
                yield f'<circle cx="{x(layer)}" cy="{y(score)}" r="3.5" fill="var(--{curve.colour})"/>'
            yield text((x(last) + 10, y(curve.scores[-1]) + 4), curve.name, curve.colour, bold=True)


def dots(title: str, rows: Sequence[Row], axis: str) -> str:
    """Return the figure of numbers with their intervals, one below the other, with a line at 0."""
    names, right, bottom = 300, WIDTH - 30, TOP + 26 * len(rows)
    ends = [end for row in rows for end in (row.value, row.low, row.high)]
    low, high = min(0, math.floor(min(ends))), math.ceil(max(ends))

    def x(value: float) -> float:
        return round(names + (right - names) * (value - low) / (high - low), 1)

    parts = [text((20, 20), title, "ink", bold=True)]
    step = math.ceil((high - low) / 10)
    for tick in range(step * math.ceil(low / step), high + 1, step):
        parts.append(f'<path d="M{x(tick)} {TOP - 14}V{bottom - 6}" stroke="var(--{"grid" if tick else "faint"})"/>')
        parts.append(text((x(tick), bottom + 12), f"{tick}".replace("-", "−"), anchor="middle"))
    for number, row in enumerate(rows):
        y, colour = TOP + 26 * number, "chosen" if row.bold else "model"
        parts.append(text((names - 14, y + 4), row.name, "ink", anchor="end", bold=row.bold))
        parts.append(f'<path d="M{x(row.low)} {y}H{x(row.high)}" stroke="var(--{colour})" stroke-width="2"/>')
        parts.append(f'<circle cx="{x(row.value)}" cy="{y}" r="5" fill="var(--{colour})"/>')
    parts.append(text(((names + right) / 2, bottom + 34), axis, anchor="middle"))
    return svg(title, parts, height=bottom + 46)


def rows_of(file: str, column: str, chosen: Mapping[str, str], bold: str = "") -> list[Row]:
    """Return rows of a file of recorded numbers: those chosen, by their names there and here."""
    with (DATA / file).open(encoding="utf-8", newline="") as lines:
        read = list(csv.DictReader(lines))
    columns = [column, f"{column}, low", f"{column}, high"]
    by_name = {next(iter(row.values())): row for row in read}
    numbers = {label: [float(by_name[key][name]) for name in columns] for key, label in chosen.items()}
    return [Row(label, value, low, high, label == bold) for label, (value, low, high) in numbers.items()]


def front(title: str, file: str) -> str:
    """Return the figure of scores against sizes of a file of recorded numbers, with the front and the whole model."""
    with (DATA / file).open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    sizes, scores = [float(row["bytes"]) / 1e6 for row in rows], [float(row["score"]) for row in rows]
    bottom, right = HEIGHT - BOTTOM, WIDTH - 30
    low, high = (
        math.floor(min(scores) / 5) * 5,
        math.ceil(max(float(row["score_interval_high"]) for row in rows) / 5) * 5,
    )

    def place(size: float, score: float) -> str:
        across = math.log(size / min(sizes)) / math.log(max(sizes) / min(sizes))
        up = (score - low) / (high - low)
        return f"{LEFT + 16 + (right - LEFT - 32) * across:.1f} {bottom - (bottom - TOP) * up:.1f}"

    parts = [text((20, 20), title, "ink", bold=True)]
    for tick in range(low, high + 1, 5):
        y = float(place(min(sizes), tick).split()[1])
        parts.append(f'<path d="M{LEFT} {y}H{right}" stroke="var(--grid)"/>')
        parts.append(text((LEFT - 8, y + 4), f"{tick}", anchor="end"))
    ticks = [tick for tick in (20, 25, 30, 40, 50, 60, 80, 100) if min(sizes) <= tick <= max(sizes)]
    parts += [text((float(place(tick, low).split()[0]), bottom + 20), f"{tick}", anchor="middle") for tick in ticks]
    whole = place(min(sizes), float(rows[0]["whole"])).split()[1]
    parts.append(f'<path d="M{LEFT} {whole}H{right}" stroke="var(--faint)" stroke-dasharray="6 5"/>')
    marked = [number for number, row in enumerate(rows) if row["front"] == "1"]
    line = "L".join(place(sizes[number], scores[number]) for number in marked)
    parts.append(f'<path d="M{line}" fill="none" stroke="var(--chosen)" stroke-width="1.5"/>')
    for number in marked:
        ends = [place(sizes[number], float(rows[number][f"score_interval_{end}"])) for end in ("low", "high")]
        parts.append(f'<path d="M{"L".join(ends)}" stroke="var(--chosen)" opacity="0.5"/>')
    for number, row in enumerate(rows):
        trained, (x, y) = row["trained"] != "untrained", place(sizes[number], scores[number]).split()
        look = 'fill="var(--drop)"' if trained else 'fill="var(--paper)" stroke="var(--model)" stroke-width="1.5"'
        ways = ("blocks", "tokens", "dimensions", "bits", "trained")
        named = ", ".join(f"{row[name]}{'' if name == 'trained' else f' {name}'}" for name in ways)
        about = f"<title>{named}: {scores[number]:.1f}, {sizes[number]:.1f} MB</title>"
        parts.append(f'<circle cx="{x}" cy="{y}" r="{4 if number in marked else 3}" {look}>{about}</circle>')
    parts.append(text(((LEFT + right) / 2, bottom + 46), "MB of the model and of 10,000 embeddings", anchor="middle"))
    parts += [text((right, bottom - 44), "filled: trained; open: untrained", "ink", anchor="end")]
    parts += [text((right, bottom - 24), "line: no model as small scores higher on validation", "ink", anchor="end")]
    parts += [text((right, bottom - 4), "dashed: the whole model; bars: 95 % intervals", "ink", anchor="end")]
    return svg(title, parts)


# ---- the first screens of pages --------------------------------------------------------------------------------


def report() -> str:
    """Return the first screen of the demo's page: model, answer, confidence, four numbers, and the gains."""
    finding = load(GALLERY / "finding.json")
    conclusion = finding.conclusion
    headline, certainty = typeset_text(words.headline(conclusion)), typeset_text(words.certainty(conclusion))
    model = "layerprobe's example encoder: 8 blocks, pretrained like ELECTRA; similarity of sentence pairs"
    pill = f'<rect x="20" y="64" width="{7.4 * len(certainty) + 24:.0f}" height="28" rx="14" fill="none"'
    parts = [
        text((20, 18), model),
        f'<g font-size="26">{text((20, 48), headline, "ink", bold=True)}</g>',
        f'{pill} stroke="var(--chosen)" stroke-width="1.5"/>',
        text((32, 83), certainty, "ink", bold=True),
    ]
    lines = wrap(typeset_text(words.sentence(conclusion)), 95)
    parts += [text((20, 116 + 18 * place), line, "ink") for place, line in enumerate(lines)]
    for number, (value, about) in enumerate(words.tiles(conclusion)):
        left = 20 + 172 * number
        parts.append(f'<rect x="{left}" y="150" width="162" height="84" rx="8" fill="var(--grid)" opacity="0.6"/>')
        parts.append(f'<g font-size="20">{text((left + 10, 175), typeset_text(value), "ink", bold=True)}</g>')
        lines = wrap(typeset_text(about), 21)
        parts += [text((left + 10, 194 + 16 * place), line, "ink") for place, line in enumerate(lines)]
    return svg(f"{model}: {headline}", [*parts, *gains(finding, top=260, bottom=510)], height=570)


def gains(finding: Finding, *, top: int, bottom: int) -> Iterator[str]:
    """Yield the first figure of a finding: what each layer gains over the whole model, by validation and on test."""
    table, right, last = finding.table, WIDTH - 20, len(finding.table) - 1
    columns = [table.column(name).values for name in ("gain", "runs", "test_gain")]
    ends = [table.column(f"{name}gain_interval", interval=True).values for name in ("", "test_")]
    rows = list(zip(*columns, *ends, strict=True))
    points = [end for _, _, _, *pairs in rows for pair in pairs for end in pair or ()]
    low, high = 5 * math.floor(min(points) / 5), 5 * math.ceil(max(points) / 5)

    def x(layer: float) -> float:
        return round(LEFT + (right - LEFT) * (layer + 0.5) / (last + 1), 1)

    def y(points: float) -> float:
        return round(bottom - (bottom - top) * (points - low) / (high - low), 1)

    for tick in range(low, high + 1, 5):
        yield f'<path d="M{LEFT} {y(tick)}H{right}" stroke="var(--{"grid" if tick else "faint"})"/>'
        yield text((LEFT - 8, y(tick) + 4), f"{tick:+d}".replace("-", "−") if tick else "0", anchor="end")
    yield text((LEFT + 4, y(0) - 6), "whole model")
    yield f'<path d="M{x(finding.best_layer + 0.5)} {top}V{bottom}" stroke="var(--chosen)" stroke-dasharray="4 4"/>'
    yield text((x(finding.best_layer + 0.5) + 6, top + 12), "cut here", "chosen", bold=True)
    for layer, (gain, runs, tested, of_gain, of_test) in enumerate(rows):
        colour = "chosen" if layer == finding.best_layer else "model"
        look = f'fill="var(--{colour if runs else "paper"})" stroke="var(--{colour})" stroke-width="1.5"'
        ends_of = f"{y(of_gain[0])}V{y(of_gain[1])}"
        yield f'<path d="M{x(layer)} {ends_of}" stroke="var(--{colour})"/>'
        yield f'<circle cx="{x(layer)}" cy="{y(gain)}" r="5" {look}/>'
        if tested is not None:
            beside = x(layer) + 18
            yield f'<path d="M{beside} {y(of_test[0])}V{y(of_test[1])}" stroke="var(--drop)"/>'
            yield f'<path d="M{beside - 6} {y(tested)}l6 -6l6 6l-6 6z" fill="var(--drop)"/>'
        yield text((x(layer), bottom + 20), str(layer), anchor="middle")
    about = "Blocks kept; points on validation (open: inferred) and on test (diamond), with 95 % intervals"
    yield text(((LEFT + right) / 2, bottom + 44), about, anchor="middle")


def comparison() -> str:
    """Return what the gallery's comparison shows first: CKA layer by layer, and the map of all pairs of layers."""
    compared = parse_json((GALLERY / "compare.json").read_text(encoding="utf-8"))[0]["comparisons"][0]
    curve, values = compared["curve"], compared["map"]["values"]
    ends = tuple(zip(curve["uncertainty"]["lower"], curve["uncertainty"]["upper"], strict=True))
    title = "CKA of rtd and mlm: each layer with the same layer of the other, and all pairs"
    parts = [text((20, 20), title, "ink", bold=True)]
    parts += plot([Curve(scores=curve["values"], ends=ends, colour="model")], step=0.1, right=360)
    left, size, highest = 430, (HEIGHT - BOTTOM - TOP) // len(values), max(chain(*values))
    for row, of_row in enumerate(values):
        for column, value in enumerate(of_row):
            shade = round(max(value, 0) / highest * (len(SEQUENTIAL) - 1))
            at = f'x="{left + size * column}" y="{HEIGHT - BOTTOM - size * (row + 1)}"'
            parts.append(f'<rect {at} width="{size}" height="{size}" fill="var(--s{shade})"/>')
    for layer in range(len(values)):
        middle = size * (layer + 0.5)
        parts.append(text((round(left + middle, 1), HEIGHT - BOTTOM + 20), str(layer), anchor="middle"))
        parts.append(text((left - 8, round(HEIGHT - BOTTOM - middle + 4, 1)), str(layer), anchor="end"))
    parts.append(text((left + size * len(values) / 2, HEIGHT - 10), "layer of mlm; upwards: of rtd", anchor="middle"))
    return svg(title, parts)


def explore() -> str:
    """Return what the section of single items shows of two layers: outputs by gold score, and which are wrong."""
    with (DATA / "explore-pairs.csv").open(encoding="utf-8", newline="") as lines:
        rows = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(lines)]
    layers = [name.removesuffix(", cosine") for name in rows[0] if name.endswith(", cosine")]
    wrong = [[row[f"{layer}, error"] > MOST_WRONG for row in rows] for layer in layers]
    title = f"{len(rows)} pairs by two layers of rtd, not fine-tuned: cosine by gold score"
    parts, size = [text((20, 20), title, "ink", bold=True)], (WIDTH - 2 * LEFT - 48) // 2
    for panel, layer in enumerate(layers):
        left, other = LEFT + panel * (size + 64), wrong[1 - panel]
        low = math.floor(10 * min(row[f"{layer}, cosine"] for row in rows)) / 10
        for tick in range(round(10 * low), 11):
            y = round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP - 16) * (tick / 10 - low) / (1 - low), 1)
            parts.append(f'<path d="M{left} {y}H{left + size}" stroke="var(--grid)"/>')
            parts.append(text((left - 8, y + 4), f"{tick / 10:g}", anchor="end"))
        for number, row in enumerate(rows):
            x = left + 8 + (size - 16) * row["gold"] / 5
            y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP - 16) * (row[f"{layer}, cosine"] - low) / (1 - low)
            at = f'cx="{x:.1f}" cy="{y:.1f}"'
            if not wrong[panel][number]:
                parts.append(f'<circle {at} r="2" fill="var(--model)" opacity="0.5"/>')
            else:
                fill = "none" if other[number] else "var(--drop)"
                parts.append(f'<circle {at} r="3" fill="{fill}" stroke="var(--drop)"/>')
        parts += [
            text((left + 8 + (size - 16) * score / 5, HEIGHT - BOTTOM + 20), f"{score}", anchor="middle")
            for score in range(6)
        ]
        only = sum(ours and not theirs for ours, theirs in zip(wrong[panel], other, strict=True))
        about = f"{'AB'[panel]}, {layer}: {sum(wrong[panel])} wrong, {only} only here"
        parts.append(text((left, TOP), about, "ink", bold=True))
    parts.append(
        text(
            (WIDTH / 2, HEIGHT - 10),
            "gold score; filled: wrong only here; open: wrong at both layers",
            anchor="middle",
        )
    )
    return svg(title, parts)


def mean(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean by layer."""
    return [sum(scores) / len(scores) for scores in zip(*curves, strict=True)]


def figures() -> dict[Path, str]:
    """Return each figure by its file, in the folder of the pages that show it."""
    six = drawing(
        "Test Spearman × 100 after six epochs, cut off at each layer; mean of three seeds",
        [
            Curve(scores=table(1, "mlm"), colour="reference", name="mlm"),
            Curve(scores=table(1, "rtd"), colour="model", name="rtd"),
        ],
    )
    families = [("mlm", "reference"), ("rtd", "drop")]
    pairs = drawing(
        "Test Spearman × 100, cut off at each layer; five pairs on captions and their mean",
        [
            *(
                Curve(scores=scores, colour=colour, thin=True)
                for family, colour in families
                for scores in captions(family)
            ),
            *(Curve(scores=mean(captions(family)), colour=colour, name=family) for family, colour in families),
        ],
    )
    sizes = front("MiniLM made smaller: test Spearman × 100 on STS-B against size", "minilm-sizes.csv")
    guides = {"report": report(), "compare": comparison(), "explore": explore(), "sizes": sizes}
    research = {"tmft": six, "pairs": pairs, "search": searches()}
    folders = ((IMAGES, guides), (RESEARCH / "images", research))
    return {folder / f"{name}.svg": figure for folder, made in folders for name, figure in made.items()}


def searches() -> str:
    """Return the figure of what each way to choose a layer loses, from the numbers beside the page."""
    last, find = "the last layer", "find, 15 % of a sweep"
    chosen = {
        "a random layer": "a random layer",
        "fall of InfoNCE (the default rule)": "fall of InfoNCE, nothing trained",
        "find, 5 %": "find, 5 % of a sweep",
        "find, 15 % (the default)": find,
        last: last,
    }
    rows = rows_of("search-20-new.csv", "regret, 20 new ones", chosen, find)
    return dots("20 new encoders: what each choice loses", rows, "points lost; bars: 95 % intervals")


def main() -> None:
    """Write the figures; with --check, say which differ from what is there."""
    made = figures()
    if "--check" in sys.argv:
        stale = [path.name for path, figure in made.items() if path.read_text(encoding="utf-8") != figure]
        sys.exit(f"{', '.join(stale)}: run python docs/figures.py" if stale else None)
    for path, figure in made.items():
        path.write_text(figure, encoding="utf-8")


if __name__ == "__main__":
    main()
