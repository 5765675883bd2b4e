"""Single items for a page: texts, gold values and outputs of layers. Knows arrays and tasks, no models.

`Kind.view` returns an `ItemView`: the form of the items and how outputs are read. A result computed
from items keeps an `ItemSource` for its page. Texts are placed on a map by PCA (Pearson 1901), rotated from layer
to layer by orthogonal Procrustes (Schoenemann 1966, Psychometrika 31).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.metrics.names import metric_title
from layerprobe.names import plural, short_name
from layerprobe.results.explore import Explored, LayersOf, OutputForm
from layerprobe.tasks.kind import KINDS

if TYPE_CHECKING:
    from layerprobe.tasks.values import Examples, Items, Task

Array = NDArray[np.float64]

MOST = 3000
"""Largest number of items of a page; a random choice of more, the same for every layer."""
ABOVE = 1e-6
"""Smallest margin of a wrong item above the limit."""


class ReadOutputs(NamedTuple):
    """Outputs of a layer, item by item."""

    values: Sequence[float]
    """Numbers to draw: a score, the number of a class, or a rank."""
    errors: Array
    """Error of each output, from 0 to 100."""
    words: Sequence[str] = ()
    """Outputs in words, such as the answer; by default the values."""
    counts: Sequence[Sequence[int]] = ()
    """Counts by gold and predicted class; empty without classes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemView:
    """Items of a kind in the form for a page, with the reader of their outputs."""

    form: OutputForm
    """The figure of two layers."""
    texts: Mapping[str, Sequence[str]]
    """Texts of the items by title."""
    gold: Sequence[float | str]
    """Gold values."""
    output: str
    """Name of the outputs."""
    error: str
    """Meaning of an error, in words."""
    limit: float
    """Largest error that does not count as wrong."""
    read: Callable[[Any, float | None], ReadOutputs]
    """Function from the outputs of all items, and the threshold if the kind has one, to `ReadOutputs`."""
    labels: tuple[str, ...] = ()
    """Names of the classes."""
    embedded: tuple[Sequence[str], ...] = ()
    """Texts that place items on the map, as they were embedded: one or two per item."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerOutputs:
    """Outputs of the layers of one model, or of one way to train it."""

    name: str
    layers: Sequence[int]
    outputs: Callable[[], Sequence[tuple[Any, float | None]]]
    """Function that returns, by layer, the outputs for all items and the threshold, if the kind has one."""
    scores: Sequence[float]
    """Primary metric x 100 by layer."""
    names: Sequence[str] = ()
    """Names of the layers; by default their numbers."""
    vectors: Callable[[int, Sequence[str]], NDArray[np.floating]] | None = None
    """Function from a layer and texts to their embeddings; None without a map."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemSource:
    """Source of a result's items and outputs, computed when a page or a notebook needs them."""

    task: Task
    split: str
    groups: tuple[LayerOutputs, ...]
    start: tuple[tuple[int, int], tuple[int, int]]
    """The first two layers to compare: each an index of a group, and of one of its layers."""
    made: list[Explored] = field(default_factory=list)
    """Cached items."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # models and files do not travel to other processes

    def explored(self) -> Explored | None:
        """Return the items for a page; None if the kind of task shows none."""
        view = KINDS[self.task.kind].view
        if view is not None and not self.made:
            self.made.append(self._explored(view))
        return self.made[0] if self.made else None

    def _explored(self, view_of: Callable[[Task, Items], ItemView]) -> Explored:
        items: Items = self.task.split(self.split)  # type: ignore[arg-type]
        view, n = view_of(self.task, items), len(items)
        rows = np.arange(n) if n <= MOST else np.sort(np.random.default_rng(0).choice(n, MOST, replace=False))
        unit = KINDS[self.task.kind].unit
        return Explored(
            task=self.task.name,
            unit=unit,
            units=plural(unit),
            n_items=n,
            split=self.split,
            metric=metric_title(self.task.primary),
            form=view.form,
            texts={title: [texts[row] for row in rows] for title, texts in view.texts.items()},
            gold=[view.gold[row] for row in rows],
            output=view.output,
            error=view.error,
            limit=view.limit,
            labels=view.labels,
            groups=tuple(_layers(group, view, rows) for group in self.groups),
            start=self.start,
        )


def joined(sources: Mapping[str, ItemSource], best: str) -> ItemSource:
    """Return one source from those of several models on one task, by name; the best one is compared with another."""
    (first, *_), begins, groups = sources.values(), dict[str, int](), list[LayerOutputs]()
    for name, source in sources.items():
        begins[name] = len(groups)
        groups += [replace(group, name=f"{name}, {group.name}") for group in source.groups]
    other = next((name for name in sources if name != best), best)
    a, b = ((begins[name] + sources[name].start[1][0], sources[name].start[1][1]) for name in (other, best))
    return replace(first, groups=tuple(groups), start=(a, b), made=[])


def _layers(group: LayerOutputs, view: ItemView, rows: NDArray[np.intp]) -> LayersOf:
    read = [view.read(outputs, threshold) for outputs, threshold in group.outputs()]
    places: list[list[Array]] = []
    shares: list[float] = []
    if group.vectors is not None and view.embedded:
        sides = [[texts[row] for row in rows] for texts in view.embedded]
        vectors = group.vectors
        by_layer = (np.concatenate([vectors(layer, side) for side in sides]) for layer in group.layers)
        points, shares = text_map(by_layer)
        places = [np.split(layer, len(sides)) for layer in points]
    return LayersOf(
        name=group.name,
        layers=[*(group.names or (f"layer {layer}" for layer in group.layers))],
        scores=[*group.scores],
        values=[np.asarray(one.values, dtype=np.float64)[rows] for one in read],
        errors=[one.errors[rows] for one in read],
        words=[[one.words[row] for row in rows] for one in read if len(one.words)],
        counts=[[*map(list, one.counts)] for one in read if len(one.counts)],
        places=places,
        shares=shares,
    )


def places_of(values: Any) -> Array:
    """Return the rank of each value, scaled to 0 to 100; equal values share the mean.

    Examples:
        >>> places_of([0.1, 0.9, 0.5, 0.5]).tolist()
        [12.5, 87.5, 50.0, 50.0]
    """
    return 100 * (stats.rankdata(values) - 0.5) / len(values)


def score_view(task: Task, items: Examples) -> ItemView:
    """Return the view of texts or pairs with a gold score: errors are distances between ranks by output and by gold."""
    low, high = task.score_range or (0.0, 1.0)
    gold, probed = places_of(items.targets), items.second is None

    def read(outputs: Array, threshold: float | None) -> ReadOutputs:
        values = low + (high - low) * outputs if probed else outputs
        return ReadOutputs(values.tolist(), np.abs(places_of(outputs) - gold))

    return ItemView(
        form="score",
        texts=_texts(items),
        gold=[low + (high - low) * target for target in items.targets],
        output="predicted" if probed else "cosine",
        error="distance between its ranks by output and by gold, of 100",
        limit=25.0,
        read=read,
        embedded=items.sides,
    )


def decision_view(task: Task, items: Examples) -> ItemView:
    """Return the view of pairs of two classes, separated by a threshold of cosines."""
    gold = np.array(items.targets) == 1

    def read(outputs: Array, threshold: float | None) -> ReadOutputs:
        cut = 0.0 if threshold is None else threshold
        beyond = places_of(outputs) - 100 * np.mean(outputs < cut)
        errors = np.clip(50 + np.where(gold, -beyond, beyond) / 2, 0, 100)
        predicted = (outputs >= cut).astype(int)
        words = [f"{task.labels[label]} ({cosine:.3f})" for label, cosine in zip(predicted, outputs, strict=True)]
        return ReadOutputs(predicted.tolist(), errors, words, counts_of(gold.astype(int), predicted, 2))

    return ItemView(
        form="classes",
        texts=_texts(items),
        gold=[task.labels[int(target)] for target in items.targets],
        output="predicted (cosine)",
        error="50 at the threshold, beyond it the distance in ranks of cosines, of 100",
        limit=50.0,
        read=read,
        labels=task.labels,
        embedded=items.sides,
    )


def class_view(task: Task, items: Examples) -> ItemView:
    """Return the view of texts, pairs or images with a class each."""
    gold = np.array(items.targets).astype(int)
    rows = np.arange(len(gold))

    def read(outputs: Array, threshold: float | None) -> ReadOutputs:
        shares = np.zeros((len(gold), max(outputs.shape[1], len(task.labels))))
        shares[:, : outputs.shape[1]] = probabilities(outputs)
        predicted, right = shares.argmax(axis=1), shares[rows, gold]
        others = shares.copy()
        others[rows, gold] = -1.0
        errors = 50 * (1 + others.max(axis=1) - right)
        errors = np.where(predicted == gold, np.minimum(errors, 50), np.maximum(errors, 50 + ABOVE))
        words = [f"{task.labels[label]} ({shares[row, label]:.2f})" for row, label in enumerate(predicted)]
        return ReadOutputs(predicted.tolist(), errors, words, counts_of(gold, predicted, len(task.labels)))

    return ItemView(
        form="classes",
        texts=_texts(items),
        gold=[task.labels[number] for number in gold],
        output="predicted (probability)",
        error="half of 100 plus the lead of the likeliest other class over the right one, in percentage points",
        limit=50.0,
        read=read,
        labels=task.labels,
        embedded=items.sides,
    )


def _texts(items: Examples) -> dict[str, Sequence[str]]:
    first = [short_name(text.place) if hasattr(text, "place") else text for text in items.first]
    return {"Text": first} if items.second is None else {"First text": first, "Second text": items.second}


def probabilities(outputs: Array) -> Array:
    """Return (n, classes) probabilities: the outputs themselves, or the softmax of logits."""
    if (outputs >= 0).all() and np.allclose(outputs.sum(axis=1), 1):
        return outputs
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def counts_of(gold: NDArray[Any], predicted: NDArray[Any], n: int) -> list[list[int]]:
    """Return the (n, n) confusion matrix: gold classes in rows, predicted ones in columns."""
    counts = np.zeros((n, n), dtype=int)
    np.add.at(counts, (gold, predicted), 1)
    return [[int(count) for count in row] for row in counts]


def text_map(layers: Iterable[NDArray[np.floating]]) -> tuple[list[Array], list[float]]:
    """Return the first two principal components of each layer, and their share of the variance.

    Each layer's are rotated, or mirrored, to match those of the layer before, and scaled to a mean squared distance of
    1 from the middle. So a movement between layers is a movement in the embeddings.

    Args:
        layers: (n, features) for each layer, of the same samples in the same order.

    Returns:
        (n, 2) points and a share from 0 to 1 by layer; zeros and 0 for a layer that is equal for all samples.

    Examples:
        >>> layer = np.array([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [4.0, 2.0, 1.0]])
        >>> points, shares = text_map([layer, layer[:, [1, 0, 2]]])
        >>> bool(np.allclose(points[0], points[1])), shares
        (True, [1.0, 1.0])
    """
    points: list[Array] = []
    shares: list[float] = []
    for layer in layers:
        placed, share = _components(np.asarray(layer, dtype=np.float64))
        if points:
            u, _, v = np.linalg.svd(placed.T @ points[-1])
            placed = placed @ (u @ v)
        points.append(placed)
        shares.append(share)
    return points, shares


def _components(layer: Array) -> tuple[Array, float]:
    """Return the (n, 2) first components, scaled to a mean square of 1, and their share of the variance."""
    centred = layer - layer.mean(axis=0)
    total = float(np.square(centred).sum())
    if total <= np.finfo(np.float32).eps ** 2 * float(np.square(layer).sum()):
        return np.zeros((len(layer), 2)), 0.0
    small = centred.T @ centred if centred.shape[1] <= len(centred) else centred @ centred.T
    values, vectors = np.linalg.eigh(small)
    values, vectors = np.maximum(values[::-1][:2], 0), vectors[:, ::-1][:, :2]
    placed = centred @ vectors if centred.shape[1] <= len(centred) else vectors * np.sqrt(values)
    if placed.shape[1] < 2:
        placed = np.column_stack([placed, np.zeros(len(placed))])
    return placed * np.sqrt(len(placed) / values.sum()), round(float(values.sum()) / total, 4)
