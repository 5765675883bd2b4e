"""Draw the curves of the documents from recorded numbers, as SVG that follows light and dark: `python docs/figures.py`.

Those of the embedded pair come from docs/results/embedded-pair.md, those on captions from the zoo in the package.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.results.style import CHOSEN, DARK, DROP, FAINT, FONT, GRID, INK, LAYER_AXIS, MODEL, PAPER, REFERENCE

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
PAIR = DOCS / "results" / "embedded-pair.md"
CAPTIONS = DOCS.parent / "layerprobe" / "lab" / "dropbench" / "zoos" / "dropbench-captions.json"
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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Scores by layer, from layer 0."""

    scores: Sequence[float]
    colour: str
    name: str = ""
    """Written at the last layer."""
    thin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A sentence on one point of a curve."""

    layer: int
    score: float
    text: str
    colour: str


def table(number: int, row: str) -> list[float]:
    """Return the means of a row of the embedded pair: table 0 is of one epoch, table 1 of six."""
    rows = [line for line in PAIR.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{row}` |")]
    return [float(re.sub(r"[*\s]", "", cell).split("±")[0]) for cell in rows[number].split("|")[2:-1]]


def captions(family: str) -> list[list[float]]:
    """Return the mean test score by layer of each encoder on captions, fine-tuned until converged."""
    entries = json.loads(CAPTIONS.read_text(encoding="utf-8"))["entries"]
    tests = [entry["budgets"]["converged"]["test"] for entry in entries if entry["family"] == family]
    return [[sum(seeds) / len(seeds) for seeds in test] for test in tests]


def drawing(title: str, curves: Sequence[Curve], marks: Sequence[Mark] = ()) -> str:
    """Return the figure: one line a curve over the layers, with its name at the end, and the marks."""
    scores = [score for curve in curves for score in curve.scores]
    low, high = 5 * int(min(scores) // 5), 5 * int(max(scores) // 5 + 1)
    last = len(curves[0].scores) - 1

    def x(layer: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * layer / last, 1)

    def y(score: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (score - low) / (high - low), 1)

    def text(
        place: tuple[float, float], words: str, colour: str = "faint", *, anchor: str = "middle", bold: bool = False
    ) -> str:
        weight = ' font-weight="600"' if bold else ""
        return (
            f'<text x="{place[0]}" y="{place[1]}" fill="var(--{colour})" text-anchor="{anchor}"{weight}>{words}</text>'
        )

    parts = [text((LEFT, 20), title, "ink", anchor="start", bold=True)]
    for score in range(low, high + 1, 5):
        parts += [
            f'<path d="M{LEFT} {y(score)}H{WIDTH - RIGHT}" stroke="var(--grid)"/>',
            text((LEFT - 8, y(score) + 4), str(score), anchor="end"),
        ]
    parts += [text((x(layer), HEIGHT - BOTTOM + 20), str(layer)) for layer in range(last + 1)]
    parts.append(text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10), LAYER_AXIS))
    for curve in curves:
        path = "L".join(f"{x(layer)} {y(score)}" for layer, score in enumerate(curve.scores))
        style = 'stroke-width="2.5"' if not curve.thin else 'stroke-width="1" opacity="0.4"'
        parts.append(f'<path d="M{path}" fill="none" stroke="var(--{curve.colour})" {style}/>')
        if not curve.thin:
            parts += [
                f'<circle cx="{x(layer)}" cy="{y(score)}" r="3.5" fill="var(--{curve.colour})"/>'
                for layer, score in enumerate(curve.scores)
            ]
            parts.append(
                text((x(last) + 10, y(curve.scores[-1]) + 4), curve.name, curve.colour, anchor="start", bold=True)
            )
    for mark in marks:
        parts.append(
            f'<circle cx="{x(mark.layer)}" cy="{y(mark.score)}" r="8" fill="none" '
            f'stroke="var(--{mark.colour})" stroke-width="2.5"/>'
        )
        above = mark.colour == "chosen"
        parts.append(
            text(
                (x(mark.layer), y(mark.score) + (-16 if above else 26)),
                mark.text,
                mark.colour,
                anchor="middle" if above else "end",
                bold=True,
            )
        )
    light = "".join(f"--{name}:{colour};" for name, colour in COLOURS.items())
    dark = "".join(f"--{name}:{DARK[colour]};" for name, colour in COLOURS.items())
    style = f"svg{{{light}font:13px {FONT}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{title}</title>'
    return "\n".join(
        [
            head,
            f"<style>{style}</style>",
            f'<path d="M0 0H{WIDTH}V{HEIGHT}H0z" fill="var(--paper)"/>',
            *parts,
            "</svg>\n",
        ]
    )


def mean(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean by layer."""
    return [sum(scores) / len(scores) for scores in zip(*curves, strict=True)]


def figures() -> dict[str, str]:
    """Return each figure by the name of its file."""
    once = table(0, "rtd")
    best, last = max(range(len(once)), key=once.__getitem__), len(once) - 1
    question = drawing(
        "Which layer to keep? Test Spearman × 100 after fine-tuning, cut off at each layer",
        [Curve(scores=once, colour="model")],
        [
            Mark(layer=best, score=once[best], text=f"keep {best} of {last} blocks: {once[best]}", colour="chosen"),
            Mark(layer=last, score=once[last], text=f"all {last} blocks: {once[last]}", colour="drop"),
        ],
    )
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
    return {"question.svg": question, "tmft.svg": six, "dropbench.svg": pairs}


def main() -> None:
    """Write the figures."""
    for name, figure in figures().items():
        (IMAGES / name).write_text(figure, encoding="utf-8")


if __name__ == "__main__":
    main()
