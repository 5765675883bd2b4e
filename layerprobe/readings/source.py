"""The inputs of readings for a model and texts, each computed once, and readings computed by name or from the store."""

import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from layerprobe.comparison.compare import diagnostics, groups_of
from layerprobe.context import in_parts
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import ModelLike, Resolved, resolve
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings, Read, as_read, distinct_texts, extract_read, extract_split
from layerprobe.files.images import readable_as
from layerprobe.metrics.names import Split
from layerprobe.readings.reading import READINGS, LayerCurve, Need, Reading
from layerprobe.similarity.values import LayerDiagnostics
from layerprobe.tasks.values import Items, Task

N_ALTERED = 512
"""Texts of which altered copies are made, at most: a random choice where there are more."""
N_VIEWS = 2
"""Altered copies of a text."""
DROPPED = 0.2
"""Share of the words that a copy lacks, on average."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A model and texts, with what readings have computed of them so far."""

    checkpoint: Resolved
    read: Read
    """What the model embeds, for all that needs no labels."""
    task: Task | None = None
    """For what needs labels."""
    groups: Mapping[str, str] | None = None
    """Where each text comes from, if texts of one group are not independent."""
    n_altered: int = N_ALTERED
    """Texts of which altered copies are made, at most."""
    n_views: int = N_VIEWS
    """Altered copies of a text."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts that the model embeds."""
        return self.read.texts

    @property
    def n_layers(self) -> int:
        """Blocks and the embedding output."""
        return count_blocks(self.checkpoint.config) + 1

    @cached_property
    def embeddings(self) -> Embeddings:
        """Pooled embeddings of the texts at every layer."""
        return extract_read(self.read._replace(texts=self.texts, bare=self.texts), look=False)

    @cached_property
    def diagnostics(self) -> tuple[LayerDiagnostics, ...]:
        """Diagnostics of each layer: what can distort its similarities."""
        return diagnostics(self.embeddings)

    @cached_property
    def _copies(self) -> tuple[Embeddings, NDArray[np.int64]]:
        earlier = [texts for texts in self.read.earlier if len(texts) < len(self.texts)]
        copies, *shorter = (text_views(texts, self.n_altered, self.n_views) for texts in (self.texts, *earlier))
        views, *fewer = (tuple(dict.fromkeys(itertools.chain(*group))) for group in (copies, *shorter))
        embedded = extract_read(self.read._replace(texts=views, bare=views, earlier=tuple(fewer)), look=False)
        return embedded, np.array([embedded.rows(views_of) for views_of in copies])

    def copies(self, layer: int) -> NDArray[np.float32]:
        """Return (view, text, feature) embeddings of altered copies, a layer at a time: all may not fit into memory."""
        embedded, rows = self._copies
        stacked: NDArray[np.float32] = embedded.measured(layer)[rows]
        return stacked

    @property
    def first_copied_layer(self) -> int:
        """The first layer of the altered copies that is not left out."""
        return self._copies[0].first_layer

    def collapsed(self, needs: Need) -> int:
        """Return how many of the last layers are left out of what a reading needs."""
        if needs == "views":
            return self._copies[0].collapsed
        return self.embeddings.collapsed if needs == "embeddings" else 0

    @property
    def labels(self) -> Task:
        """The task; raises DataError if there is none."""
        if self.task is None:
            raise DataError("expected a task for what needs labels, got texts alone")
        return self.task

    def split(self, name: Split) -> Embeddings:
        """Return the embeddings of the texts of a split of the task."""
        return extract_split(self.checkpoint, self.labels, name)

    def group_numbers(self, texts: Sequence[str]) -> list[int] | None:
        """Return which group each text is of, from 0, DataError if it has none; None where all are independent."""
        return None if self.groups is None else groups_of(texts, self.groups)

    def by_layer(self, number: Callable[[int, str], float], *, first_layer: int) -> LayerCurve:
        """Return a number of each layer, computed from its index and its name, such as "layer 3 of bert-tiny".

        `first_layer` is that of the embeddings that are read.
        """
        names = (f"layer {layer} of {self.checkpoint.label}" for layer in range(self.n_layers))
        values = tuple(number(layer, name) for layer, name in enumerate(names))
        return LayerCurve(values=values, first_layer=first_layer)


def layers_read(curves: Mapping[str, LayerCurve]) -> tuple[range, int]:
    """Return the layers of a model that its curves do not leave out, at least one curve, and how many layers it has."""
    n_layers = max(len(curve.values) for curve in curves.values())
    # a curve of changes from layer to layer begins later than the others
    first = min(filter(None, (curve.first_layer for curve in curves.values())), default=0)
    return range(first, n_layers - max(curve.collapsed for curve in curves.values())), n_layers


def text_views(
    texts: Sequence[str], n_texts: int = N_ALTERED, n_views: int = N_VIEWS, *, dropped: float = DROPPED, seed: int = 0
) -> list[tuple[str, ...]]:
    """Return altered copies of texts: for each view, a copy of every chosen text, in one order.

    Words are left out at random, never all of them.

    Examples:
        >>> text_views(["one two three", "four"], dropped=0.5, seed=3)
        [('one', 'four'), ('one two', 'four')]
    """
    chosen = chosen_texts(texts, n_texts, seed=seed)
    return [
        tuple(_without_words(text, dropped, random.Random(f"{seed} {view} {text}")) for text in chosen)
        for view in range(n_views)
    ]


def chosen_texts(texts: Sequence[str], n_texts: int, *, seed: int = 0) -> list[str]:
    """Return the distinct texts that are altered: a random choice where there are many."""
    distinct = list(dict.fromkeys(texts))
    return distinct if len(distinct) <= n_texts else random.Random(seed).sample(distinct, n_texts)


def _without_words(text: str, dropped: float, rng: random.Random) -> str:
    words = text.split()
    words_left = [word for word in words if rng.random() >= dropped]
    return " ".join(words_left) or (rng.choice(words) if words else text)


def read_curves(
    model: ModelLike,
    data: Sequence[str] | Items | Read,
    names: Collection[str],
    *,
    task: Task | None = None,
    groups: Mapping[str, str] | None = None,
    n_altered: int = N_ALTERED,
    others: Mapping[str, Reading] | None = None,
) -> dict[str, LayerCurve]:
    """Return numbers by layer of a model by name, with their errors where these are known.

    Texts, or those of items, are for all that needs no labels, and repeated ones count once; of a task the validation
    split is scored. Texts of one group, where groups are given, are not independent of each other. Of `n_altered` texts
    at most altered copies are made. `others` are readings that are not registered, by name.

    Returns:
        In the order of `READINGS`; without those that this model does not have, such as an intrinsic dimension where
        most texts have one embedding.
    """
    for name in names:
        READINGS.check(name)
    texts = data.texts if isinstance(data, Items | Read) else distinct_texts(data)
    readings = {name: READINGS[name] for name in dict.fromkeys((*READINGS, *names)) if name in names} | dict(
        others or {}
    )
    if readable_as(texts) != "text":
        readings = {name: reading for name, reading in readings.items() if reading.needs != "views"}
        if names and not readings:
            raise DataError(f"expected texts for {', '.join(names)}, whose words can be left out, got images")
    needs = {reading.needs: name for name, reading in readings.items()}
    if "labels" in needs and task is None:
        raise DataError(f"expected a task for {needs['labels']}, got texts alone")
    if "reference" in needs:
        raise DataError(f"expected readings of one model, got {needs['reference']}, which needs a reference: compare")
    if "views" in needs and len(set(texts)) == 1:
        raise DataError("expected at least two texts to tell their views apart, got one")
    checkpoint = resolve(model, items=readable_as(texts))
    read = data if isinstance(data, Read) else as_read(checkpoint, data if isinstance(data, Items) else texts)
    source = Source(checkpoint=checkpoint, read=read, task=task, groups=groups, n_altered=n_altered)
    computed = {name: reading.compute for name, reading in readings.items() if reading.compute is not None}
    curves = dict(zip(computed, in_parts(lambda compute: compute(source), computed.values()), strict=True))
    available = {
        # a curve of labels has what its own texts leave out
        name: replace(curve, collapsed=source.collapsed(readings[name].needs) or curve.collapsed)
        for name, curve in curves.items()
        if curve is not None
    }
    for name, curve in available.items():
        if len(curve.values) != source.n_layers:
            raise DataError(f"expected {name} at each of {source.n_layers} layers, got {len(curve.values)} values")
    return available
