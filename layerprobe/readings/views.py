"""A model's name and texts -> the label-free metrics of its layers."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.comparison.compare import cluster_numbers
from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract, measure_tokens
from layerprobe.progress import Progress, part_of, silent
from layerprobe.readings.values import LabelFreeMetrics, LayerCurve, Views
from layerprobe.similarity.inference import MIN_UNITS, curve_uncertainty
from layerprobe.similarity.label_free import dataset_entropy, dime, infonce, infonce_influences, lidar


def label_free_metrics(
    model: ModelLike,
    texts: Sequence[str],
    *,
    views: Views | None = None,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> LabelFreeMetrics:
    """Return what each layer is like by the metrics of Skean et al. 2025, which need no labels.

    One forward pass of the texts, which also puts their embeddings into the store, and one of their views: copies
    from which words are left out at random. Dropping words needs no other model and no list of synonyms, and works in
    every language that has spaces between words; a text of one word is its own view.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        texts: The texts; repeated ones count once.
        views: How copies are made.
        options: How to load and embed.
        progress: Told the tokens that are done.

    Raises:
        DataError: If there are fewer than two texts, an empty one, or none of three tokens.
        DegenerateLayerError: If a layer has embeddings of length 0, or the same one for all texts.
        ModelError: If the model cannot be had or truncated.
        StoreError: If the store cannot be written.

    Source: Skean et al. 2025 (arXiv 2502.02013). Their copies have letters and words altered; ours lack words.
    """
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code)
    views = views or Views()
    _check_texts(texts)
    altered = views.n_views * min(views.n_texts, len(set(texts)))
    whole = len(texts) + altered
    first = part_of(progress, start=0, share=len(texts), whole=whole)
    second = part_of(progress, start=len(texts), share=altered, whole=whole)
    tokens = measure_tokens(checkpoint, texts, options=options, progress=first)
    of_views = view_metrics(checkpoint, texts, views=views, options=options, progress=second)
    return LabelFreeMetrics(
        tokens=tokens,
        dataset_entropy=of_views["dataset entropy"],
        views=views,
        infonce=of_views["InfoNCE"],
        lidar=of_views["LiDAR"],
        dime=of_views["DiME"],
    )


INFONCE = "InfoNCE"
_OF_VIEWS: dict[str, Callable[..., float]] = {INFONCE: infonce, "LiDAR": lidar, "DiME": dime}
VIEW_METRICS = ("dataset entropy", *_OF_VIEWS)
"""What the pooled embeddings of texts and of their views say."""


def view_metrics(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    names: Collection[str] = VIEW_METRICS,
    *,
    views: Views | None = None,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> dict[str, tuple[float, ...]]:
    """Return by layer what pooled embeddings say without labels: those metrics of `VIEW_METRICS` that are asked for.

    Args:
        checkpoint: The model.
        texts: The texts; repeated ones count once.
        names: Of `VIEW_METRICS`.
        views: How copies are made; there is no pass of them where only the dataset entropy is asked for.
        options: How to load and embed.
        progress: Told the texts that are embedded.

    Raises:
        DataError: If there are fewer than two texts.
        DegenerateLayerError: If a layer has embeddings of length 0, or the same one for all texts.
    """
    _check_texts(texts)
    embedded = extract(checkpoint, texts, options=options)
    of_views = None
    if set(names) - {"dataset entropy"}:
        of_views = _Stacked(checkpoint, texts, views or Views(), options=options, progress=progress)
    found: dict[str, list[float]] = {name: [] for name in VIEW_METRICS if name in names}
    for layer in range(embedded.n_layers):
        name = f"layer {layer} of {embedded.model.name}"
        stacked = None if of_views is None else of_views.layer(layer)
        for metric, values in found.items():
            if stacked is None or metric == "dataset entropy":
                values.append(dataset_entropy(embedded.stored.rows(layer), name=name))
            else:
                values.append(_OF_VIEWS[metric](stacked, name=name))
    return {name: tuple(values) for name, values in found.items()}


def infonce_curve(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    *,
    level: float,
    documents: Mapping[str, str] | None = None,
    views: Views | None = None,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> LayerCurve:
    """Return InfoNCE of every layer, with its errors.

    Args:
        checkpoint: The model.
        texts: The texts; repeated ones count once.
        level: Confidence level of intervals.
        documents: Where each text comes from, if texts of one document are not independent.
        views: How copies are made.
        options: How to load and embed.
        progress: Told the texts that are embedded.

    Returns:
        Without errors where there are fewer than five texts or documents.

    Raises:
        DataError: If there are fewer than two texts, or there is no document for one.
        DegenerateLayerError: If a layer has embeddings of length 0.
    """
    views = views or Views()
    _check_texts(texts)
    stacked = _Stacked(checkpoint, texts, replace(views, n_views=2), options=options, progress=progress)
    found = [infonce_influences(stacked.layer(layer), name=stacked.name(layer)) for layer in range(stacked.n_layers)]
    values = tuple(value for value, _ in found)
    clusters = None if documents is None else cluster_numbers(chosen_texts(texts, views), documents)
    if (len(found[0][1]) if clusters is None else len(set(clusters))) < MIN_UNITS:
        return LayerCurve(values=values)
    uncertainty = curve_uncertainty(
        values,
        [influences for _, influences in found],
        level=level,
        clusters=None if clusters is None else np.array(clusters),
    )
    return LayerCurve(values=values, standard_errors=uncertainty.standard_errors, uncertainty=uncertainty)


class _Stacked:
    """The embeddings of the views of texts, a layer at a time: those of all layers may not fit into memory."""

    def __init__(
        self, checkpoint: Checkpoint, texts: Sequence[str], views: Views, *, options: Options, progress: Progress
    ) -> None:
        copies = text_views(texts, views)
        altered = tuple(dict.fromkeys(copy for each in copies for copy in each))
        self.seen = extract(checkpoint, altered, options=options, progress=progress)
        self.rows = np.array([self.seen.rows(each) for each in copies])

    @property
    def n_layers(self) -> int:
        return self.seen.n_layers

    def layer(self, layer: int) -> NDArray[np.float32]:
        """Return (view, text, feature)."""
        found: NDArray[np.float32] = self.seen.layer(layer)[self.rows]
        return found

    def name(self, layer: int) -> str:
        return f"layer {layer} of {self.seen.model.name}"


def _check_texts(texts: Sequence[str]) -> None:
    if len(set(texts)) == 1:
        raise DataError("expected at least two texts to tell their views apart, got one")


def text_views(texts: Sequence[str], views: Views) -> list[tuple[str, ...]]:
    """Return altered copies of texts: for each view, a copy of every chosen text, in one order.

    Example:
        >>> text_views(["one two three", "four"], Views(n_views=2, dropped=0.5, seed=3))
        [('one', 'four'), ('one two', 'four')]
    """
    chosen = chosen_texts(texts, views)
    return [
        tuple(_without_words(text, views.dropped, random.Random(f"{views.seed} {view} {text}")) for text in chosen)
        for view in range(views.n_views)
    ]


def chosen_texts(texts: Sequence[str], views: Views) -> list[str]:
    """Return the distinct texts that are altered: a random choice where there are many."""
    distinct = list(dict.fromkeys(texts))
    return distinct if len(distinct) <= views.n_texts else random.Random(views.seed).sample(distinct, views.n_texts)


def _without_words(text: str, dropped: float, rng: random.Random) -> str:
    words = text.split()
    kept = [word for word in words if rng.random() >= dropped]
    return " ".join(kept) or (rng.choice(words) if words else text)
