"""Triplets: which of two texts is closer to a third; items, tables with anchor, positive and negative, and the kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.scores import cosine_scores, mean_influences
from layerprobe.stats.floors import RANDOM_ORDER, Floor
from layerprobe.tasks.cells import plain
from layerprobe.tasks.evaluation import RowsOf
from layerprobe.tasks.explored import ABOVE, ItemView, ReadOutputs
from layerprobe.tasks.kind import Kind, learning_of
from layerprobe.tasks.loading import load_rows
from layerprobe.tasks.rows import DOCUMENT_NAMES, NEGATIVE_NAMES, QUERY_NAMES, ColumnLayout, Row, TaskSource
from layerprobe.tasks.values import Items, Task


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Triplets(Items):
    """Anchors, each with a text that should be closer to it than another one."""

    by_item = ("anchors", "positives", "negatives")
    anchors: tuple[str, ...]
    """Texts to compare with."""
    positives: tuple[str, ...]
    """Texts that should be closer."""
    negatives: tuple[str, ...]
    """Texts that should be farther away."""

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """Anchors, positives and negatives."""
        return self.anchors, self.positives, self.negatives

    @property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Anchor and positive, whatever the negative."""
        return tuple((plain(anchor), plain(positive)) for anchor, positive in zip(*self.sides[:2], strict=True))

    @property
    def gold(self) -> Any:
        """(n,) ones: the right sign of the difference of cosines."""
        return np.ones(len(self))

    def prompted(self, prompt: str) -> "Triplets":
        """Return the triplets with the prompt before every text."""
        anchors, positives, negatives = (tuple(prompt + text for text in side) for side in self.sides)
        return replace(self, anchors=anchors, positives=positives, negatives=negatives)


Array = NDArray[np.float64]


def cosine_differences(values: NDArray[np.float32], rows: RowsOf, items: Triplets) -> Array:
    """Return (n,) cos(anchor, positive) - cos(anchor, negative) from (text, width) embeddings."""
    anchor, positive, negative = (values[rows(side)] for side in items.sides)
    return cosine_scores(anchor, positive) - cosine_scores(anchor, negative)


def triplet_view(task: Task, items: Triplets) -> ItemView:
    """Return the view of triplets: the difference of cosines."""

    def read(outputs: Array, threshold: float | None) -> ReadOutputs:
        errors = 50 * (1 - outputs / max(float(np.abs(outputs).max()), 1e-12))
        return ReadOutputs(outputs.tolist(), np.where(outputs > 0, errors, np.maximum(errors, 50 + ABOVE)))

    return ItemView(
        form="shares",
        texts={"Anchor": items.anchors, "Positive": items.positives, "Negative": items.negatives},
        gold=["positive"] * len(items),
        output="difference of cosines",
        error="50 minus half of the difference, in percent of the layer's largest",
        limit=50.0,
        read=read,
        embedded=(items.anchors,),
    )


def load_triplets(source: TaskSource) -> Task:
    """Load triplets in three splits from a source of `load_task`; missing splits are drawn at random."""
    return load_rows(
        source,
        TRIPLETS,
        Row.texts,
        _splits,
        key=lambda texts: texts[:2],
        together="those of an anchor and a positive",
        layout=ColumnLayout(columns={"anchor": QUERY_NAMES, "positive": DOCUMENT_NAMES, "negative": NEGATIVE_NAMES}),
    )


def _splits(
    parts: Mapping[str, Sequence[tuple[str, ...]]], notes: list[str], warnings: list[str]
) -> dict[str, Triplets]:
    sides = {role: [tuple(side) for side in zip(*rows, strict=True)] for role, rows in parts.items()}
    return {role: Triplets(anchors=a, positives=p, negatives=n) for role, (a, p, n) in sides.items()}


TRIPLETS = Kind(
    name="triplets",
    view=triplet_view,
    pairs=False,
    labelled=False,
    metrics=("accuracy",),
    score=lambda outputs, gold: {"accuracy": float(np.mean(outputs > 0))},  # outputs are differences of cosines
    influences=lambda outputs, gold: {"accuracy": mean_influences(outputs > 0)},
    learning=learning_of("triplets"),
    zero_shot="own",
    items=Triplets,
    item="triplet",
    loader=load_triplets,
    one_target=True,
    averages="values",
    floors=lambda items: {"accuracy": Floor(value=50.0, by=RANDOM_ORDER)},
)
