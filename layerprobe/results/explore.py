"""Single items on a page: the outputs of two layers side by side, and a map. Knows no task and no model.

The page carries the items as compressed JSON; `assets/explore.js` draws them, and inserts texts as plain text.
"""

import base64
import gzip
import json
from typing import Any

import numpy as np
import plotly.graph_objects as go

from layerprobe.results.items import Array, Explored
from layerprobe.results.markup import Markup, element, join
from layerprobe.results.style import styled
from layerprobe.results.words import number

LARGEST = 1_500_000
"""Largest number of bytes that items add to a page unless requested."""
LONGEST = 400
"""Largest number of characters of a text on a page; the rest is left out."""
GRID = 999
"""Grid steps from the middle of a map to its edge."""
REACH = 3.0
"""Distance of the edge, in mean distances from the middle; points farther out are drawn at the edge."""


def items_of(result: Any) -> Explored | None:
    """Return the items of a result, or of the first of several results that has some; None if none has."""
    results = result if isinstance(result, list | tuple) else [result]
    sources = (getattr(one, "item_source", None) for one in results)
    return next((source.explored() for source in sources if source is not None), None)


def page_data(explored: Explored) -> dict[str, Any]:
    """Return the data for the page's script, rounded to whole numbers where a screen shows no more."""
    words = {word: None for group in explored.groups for layer in group.words for word in layer}
    places = {word: place for place, word in enumerate(words)}
    return {
        "unit": explored.unit,
        "units": explored.units,
        "metric": explored.metric,
        "form": explored.form,
        "titles": [*explored.texts],
        "texts": [[_cut(text) for text in texts] for texts in explored.texts.values()],
        "gold": [_cut(gold) if isinstance(gold, str) else _short(gold) for gold in explored.gold],
        "output": explored.output,
        "error": explored.error,
        "limit": explored.limit,
        "labels": [*explored.labels],
        "words": [_cut(word) for word in words],
        "start": explored.start,
        "look": styled(go.Figure(layout={"xaxis": {}, "yaxis": {}})).to_plotly_json(),
        "groups": [
            {
                "name": group.name,
                "layers": [*group.layers],
                "scores": [number(score, 1) for score in group.scores],
                "values": [[_short(value) for value in layer.tolist()] for layer in group.values],
                "errors": [_whole(layer, explored.limit) for layer in group.errors],
                "words": [[places[word] for word in layer] for layer in group.words],
                "counts": group.counts,
                "places": [[_on_grid(side) for side in layer] for layer in group.places],
                "shares": group.shares,
            }
            for group in explored.groups
        ],
    }


def packed(explored: Explored) -> str:
    """Return the data for the page's script as base64 of compressed JSON."""
    text = json.dumps(page_data(explored), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()


def section_of(explored: Explored, size: int) -> Markup:
    """Return the section to compare two layers item by item; `size` is that of the items, in bytes."""
    about = f"{explored.counted}: {readable(size)} of this page. To leave them out, use --no-texts."
    wrong = f"Error: {explored.error}. More than {explored.limit:g} counts as wrong."
    maps = (_plot(f"map-{side}", "Map of the texts") for side in "ab")
    mapped = element("div", element("div", *maps, class_="pair"), element("p", _MAP, class_="reading"), id="maps")
    return join(
        element("p", about, class_="reading"),
        element("div", *(_side(explored, side) for side in ("A", "B")), class_="sides"),
        element("div", *(_plot(f"items-{side}", "Outputs") for side in "ab"), class_="pair"),
        mapped if any(group.places for group in explored.groups) else None,
        element("div", *_filters(explored), class_="filters"),
        element("p", "", id="items-found", role="status"),
        element("div", "", id="items-table", role="group", aria_label=explored.units),
        element("button", "Show more", type="button", id="items-more"),
        element("p", wrong, class_="reading"),
        element("noscript", element("p", "Single items need JavaScript.", class_="missing")),
    )


_MAP = (
    "The maps show the first two principal components of each layer's embeddings, rotated to match the layer before. "
    "Where their share of the variance is small, texts that look close can be far apart."
)


def left_out(explored: Explored, size: int) -> Markup:
    """Return the note on a page that would be too large with its items."""
    about = f"The {explored.units} are left out: they would add {readable(size)} to this page."
    return element("p", f"{about} To show them, use --with-texts.", class_="missing")


def readable(size: int) -> str:
    """Return a size in bytes in a readable form.

    Examples:
        >>> readable(2_345_678), readable(45_678)
        ('2.3 MB', '46 kB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _side(explored: Explored, side: str) -> Markup:
    """Return the controls that choose one of the two layers to compare."""
    low, names = side.lower(), [group.name for group in explored.groups]
    options = (element("option", name, value=str(number)) for number, name in enumerate(names))
    chosen = element("select", *options, id=f"group-{low}", aria_label=f"{side}: model")
    one = len(names) == 1
    slider = element(
        "input", type="range", min="0", max="0", step="1", value="0", id=f"layer-{low}", aria_label=f"{side}: layer"
    )
    output = element("output", "", id=f"chosen-{low}", for_=f"layer-{low}")
    return element("div", element("strong", side), None if one else chosen, slider, output, class_=f"side {low}")


def _plot(name: str, label: str) -> Markup:
    plot = element("div", id=f"plot-{name}", class_="plot", role="group", aria_label=label)
    return element("figure", plot, element("figcaption", "", id=f"said-{name}"))


def _filters(explored: Explored) -> tuple[Markup, ...]:
    shown = {
        "a": "A wrong, B right",
        "b": "B wrong, A right",
        "both": "both wrong",
        "neither": "both right",
        "all": f"all {explored.units}",
    }
    options = join(*(element("option", label, value=value) for value, label in shown.items()))
    search = element("input", type="search", id="items-words", aria_label="containing", autocomplete="off")
    return (
        element("label", "Show ", element("select", options, id="items-shown")),
        element("label", "containing ", search),
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _short(value: float) -> float | int:
    """Return a number rounded to three decimals, as an integer if it is whole."""
    short = round(value, 3)
    return int(short) if short == int(short) else short


def _whole(errors: Array, limit: float) -> list[int]:
    """Return errors as whole numbers on the same side of the limit, a whole number too."""
    return [*map(int, np.where(errors > limit, np.ceil(errors), np.floor(errors)))]


def _on_grid(places: Array) -> list[list[int]]:
    """Return the two coordinates of (item, 2) places on the grid; points beyond `REACH` are at its edge."""
    steps = np.clip(np.round(places * GRID / REACH), -GRID, GRID).astype(int)
    return [[*map(int, axis)] for axis in steps.T]
