"""Inputs of readings for a model and texts, each computed once; and readings by name, or from the store."""

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
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import Embeddings, Extraction, extract_split
from layerprobe.files.images import readable_as
from layerprobe.metrics.names import Split
from layerprobe.readings.reading import READINGS, LayerCurve, Need, Reading
from layerprobe.similarity.values import LayerDiagnostics
from layerprobe.tasks.quality import distinct_texts
from layerprobe.tasks.values import Items, Task

N_ALTERED = 512
"""Largest number of texts with altered copies; a random choice if there are more texts."""
N_VIEWS = 2
"""Number of altered copies of a text."""
DROPPED = 0.2
"""Average share of words dropped from a copy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A model and texts, with cached inputs of readings."""

    extraction: Extraction
    """The model's texts to embed, for readings without labels."""
    task: Task | None = None
    """Task, for readings with labels."""
    groups: Mapping[str, str] | None = None
    """The group of each text, if texts of one group are not independent."""
    n_altered: int = N_ALTERED
    """Largest number of texts with altered copies."""
    n_views: int = N_VIEWS
    """Number of altered copies of a text."""

    @property
    def checkpoint(self) -> Resolved:
        """The resolved model."""
        return self.extraction.checkpoint

    @property
    def texts(self) -> Sequence[str]:
        """The texts that the model embeds."""
        return self.extraction.texts

    @property
    def n_layers(self) -> int:
        """Number of layers: blocks and the embedding output."""
        return count_blocks(self.checkpoint.config) + 1

    @cached_property
    def embeddings(self) -> Embeddings:
        """Pooled embeddings of the texts at every layer."""
        return self.extraction.of_texts(self.texts, earlier=self.extraction.earlier).embed(look=False)

    @cached_property
    def diagnostics(self) -> tuple[LayerDiagnostics, ...]:
        """Diagnostics of each layer for what can distort its similarities."""
        return diagnostics(self.embeddings)

    @cached_property
    def _copies(self) -> tuple[Embeddings, NDArray[np.int64]]:
        earlier = [texts for texts in self.extraction.earlier if len(texts) < len(self.texts)]
        copies, *shorter = (text_views(texts, self.n_altered, self.n_views) for texts in (self.texts, *earlier))
        views, *fewer = (tuple(dict.fromkeys(itertools.chain(*group))) for group in (copies, *shorter))
        embedded = self.extraction.of_texts(views, earlier=tuple(fewer)).embed(look=False)
        return embedded, np.array([embedded.rows(views_of) for views_of in copies])

    def copies(self, layer: int) -> NDArray[np.float32]:
        """Return (view, text, feature) embeddings of altered copies at one layer; all layers may not fit in memory."""
        embedded, rows = self._copies
        return embedded.measured(layer)[rows]

    @property
    def first_copied_layer(self) -> int:
        """The first layer of the altered copies that is not left out."""
        return self._copies[0].first_layer

    def collapsed(self, needs: Need) -> int:
        """Return the number of last layers left out of a reading's input."""
        if needs == "views":
            return self._copies[0].collapsed
        return self.embeddings.collapsed if needs == "embeddings" else 0

    @property
    def labels(self) -> Task:
        """The task; raises DataError if there is none."""
        if self.task is None:
            raise DataError("expected a task for a reading with labels, got texts alone")
        return self.task

    def split(self, name: Split) -> Embeddings:
        """Return the embeddings of the texts of a split of the task."""
        return extract_split(self.checkpoint, self.labels, name)

    def group_numbers(self, texts: Sequence[str]) -> list[int] | None:
        """Return the group number of each text, from 0; None if all are independent. DataError for a missing group."""
        return None if self.groups is None else groups_of(texts, self.groups)

    def by_layer(self, number: Callable[[int, str], float], *, first_layer: int) -> LayerCurve:
        """Return the curve of a number, computed from each layer's index and name, such as "layer 3 of bert-tiny".

        `first_layer` is that of the embeddings used.
        """
        names = (f"layer {layer} of {self.checkpoint.label}" for layer in range(self.n_layers))
        values = tuple(number(layer, name) for layer, name in enumerate(names))
        return LayerCurve(values=values, first_layer=first_layer)


def layers_read(curves: Mapping[str, LayerCurve]) -> tuple[range, int]:
    """Return the layers that no curve of a model leaves out (at least one curve), and the number of its layers."""
    n_layers = max(len(curve.values) for curve in curves.values())
    # a curve of changes between layers begins later than the others
    first = min(filter(None, (curve.first_layer for curve in curves.values())), default=0)
    return range(first, n_layers - max(curve.collapsed for curve in curves.values())), n_layers


def text_views(
    texts: Sequence[str], n_texts: int = N_ALTERED, n_views: int = N_VIEWS, *, dropped: float = DROPPED, seed: int = 0
) -> list[tuple[str, ...]]:
    """Return altered copies of texts: for each view, a copy of every chosen text, in the same order.

    Words are dropped at random, never all of them.

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
    """Return the distinct texts to alter: a random choice if there are many."""
    distinct = list(dict.fromkeys(texts))
    return distinct if len(distinct) <= n_texts else random.Random(seed).sample(distinct, n_texts)


def _without_words(text: str, dropped: float, rng: random.Random) -> str:
    words = text.split()
    words_left = [word for word in words if rng.random() >= dropped]
    return " ".join(words_left) or (rng.choice(words) if words else text)


def read_curves(
    model: ModelLike,
    data: Sequence[str] | Items,
    names: Collection[str],
    *,
    task: Task | None = None,
    groups: Mapping[str, str] | None = None,
    n_altered: int = N_ALTERED,
    others: Mapping[str, Reading] | None = None,
) -> dict[str, LayerCurve]:
    """Return curves of a model by the names of readings, with their errors if known.

    Readings without labels use the texts, or those of items, where repeated ones count once; readings with labels use
    the validation split of a task. With groups, texts of one group are not independent. At most `n_altered` texts get
    altered copies. `others` are unregistered readings by name.

    Returns:
        Curves in the order of `READINGS`, without those undefined for this model, such as an intrinsic dimension if
        most texts have the same embedding.
    """
    for name in names:
        READINGS.check(name)
    items = data if isinstance(data, Items) else distinct_texts(data)
    checkpoint = resolve(model, items=readable_as(items.texts if isinstance(items, Items) else items))
    extraction = Extraction.of(checkpoint, items)
    source = Source(extraction=extraction, task=task, groups=groups, n_altered=n_altered)
    return source_curves(source, names, others=others)


def source_curves(
    source: Source, names: Collection[str], *, others: Mapping[str, Reading] | None = None
) -> dict[str, LayerCurve]:
    """Return the curves of a source by the names of readings, see `read_curves`."""
    ordered = dict.fromkeys((*READINGS, *names))
    readings = {name: READINGS[name] for name in ordered if name in names} | dict(others or {})
    if readable_as(source.texts) != "text":
        readings = {name: reading for name, reading in readings.items() if reading.needs != "views"}
        if names and not readings:
            raise DataError(f"{', '.join(names)} drops words, so it needs texts: got images")
    needs = {reading.needs: name for name, reading in readings.items()}
    if "labels" in needs and source.task is None:
        raise DataError(f"expected a task for {needs['labels']}, got texts alone")
    if "reference" in needs:
        raise DataError(f"{needs['reference']} needs a reference: use compare")
    if "views" in needs and len(set(source.texts)) == 1:
        raise DataError("expected at least two texts, to compare their copies, got one")
    computed = {name: reading.compute for name, reading in readings.items() if reading.compute is not None}
    curves = dict(zip(computed, in_parts(lambda compute: compute(source), computed.values()), strict=True))
    available = {
        # a curve of labels leaves out layers by its own texts
        name: replace(curve, collapsed=source.collapsed(readings[name].needs) or curve.collapsed)
        for name, curve in curves.items()
        if curve is not None
    }
    for name, curve in available.items():
        if len(curve.values) != source.n_layers:
            raise DataError(f"expected {name} at each of {source.n_layers} layers, got {len(curve.values)} values")
    return available
