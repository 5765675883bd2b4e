"""Means of two layers as one embedding: all pairs of layers scored untrained, the pair chosen on validation.

Source: the mean of two layers: Li et al. 2020 (BERT-flow, EMNLP), Huang et al. 2021 (WhiteningBERT, Findings of EMNLP).
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from layerprobe.context import current, report
from layerprobe.encoders.loading import Resolved
from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.extraction.embeddings import Embeddings, extract_split
from layerprobe.metrics.correlation import DIGITS
from layerprobe.metrics.names import Split
from layerprobe.scoring.probes import Probe
from layerprobe.scoring.values import LayerMean, LayerMeans, MeanForm
from layerprobe.stats.crossed import crossed, errors_known
from layerprobe.stats.values import CrossedInterval, best_of
from layerprobe.store.shards import StoredLayer
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs, item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, Task

Array = NDArray[np.float64]
Embedded = NDArray[np.float32]
Pair = tuple[int, int]
Outputs = Callable[[MeanForm, Pair], tuple[Array, Array]]
"""Form and two layers, which can be one -> outputs for the validation and the test split."""

CHUNK = 2**22
"""Numbers of embeddings in float64 at once."""


def layer_means(checkpoint: Resolved, task: Task) -> LayerMeans:
    """Score the mean of every two layers as an embedding, without fine-tuning, and compare the best with one layer.

    A text's embedding is (a / |a| + b / |b|) / 2 of layers a and b, or (a + b) / 2 as they are. Norms grow with depth
    in many models, so that as they are the deeper layer decides; at unit norm both count alike. Both are scored, by the
    cosines of pairs or the probe of the kind, as `zero_shot` scores a layer. The pair of layers and the single layer it
    is compared with have the highest primary metric on the validation split; the gain is on test, with its interval
    over test items.

    By cosines no mean is ever made: the inner products of all layers of the two texts of a pair give all of them.
    """
    kind = KINDS[task.kind]
    if kind.zero_shot == "own":
        raise DataError(f"expected a task that is scored by cosines or by a probe, got one of kind {task.kind}")
    splits: tuple[Split, ...] = ("validation", "test") if kind.zero_shot == "cosine" else get_args(Split)
    embedded = {split: extract_split(checkpoint, task, split) for split in splits}
    test = embedded["test"]
    outputs = _by_probe(embedded, task) if kind.zero_shot == "probe" else _by_cosines(embedded, task)
    layers = test.layers
    if len(layers) < 2:
        raise DataError(f"expected at least two layers to average, got those of {test.model.name}")
    pairs = list(itertools.combinations(layers, 2))
    alone = [_chosen(task, outputs, "plain", (layer, layer)).metrics[task.primary] for layer in layers]
    single, means = layers[best_of(alone)], []
    for number, form in enumerate(get_args(MeanForm)):
        scores = []
        for done, pair in enumerate(pairs, 1 + number * len(pairs)):
            scores.append(_chosen(task, outputs, form, pair).metrics[task.primary])
            report(f"averaging layers of {test.model.name}", done, 2 * len(pairs))
        best = pairs[best_of(scores)]
        means.append(
            LayerMean(
                form=form,
                layers=best,
                validation=max(scores),
                test=_tested(task, outputs, form, best).metrics[task.primary],
                gain=_gain(task, outputs, form, best, single),
                by_pair=tuple(scores),
            )
        )
    return LayerMeans(
        primary=task.primary,
        first_layer=test.first_layer,
        layer=single,
        by_layer=tuple(alone),
        validation=max(alone),
        test=_tested(task, outputs, "plain", (single, single)).metrics[task.primary],
        means=tuple(means),
    )


def _chosen(task: Task, outputs: Outputs, form: MeanForm, pair: Pair) -> Evaluation:
    """Return the scores of a mean on the validation split; a layer paired with itself gives its own."""
    return evaluate_outputs(task.kind, outputs(form, pair)[0], task.validation.gold)


def _tested(task: Task, outputs: Outputs, form: MeanForm, pair: Pair) -> Evaluation:
    """Return the scores on the test split, at the threshold of the validation split if there is one."""
    threshold = _chosen(task, outputs, form, pair).threshold
    return evaluate_outputs(task.kind, outputs(form, pair)[1], task.test.gold, threshold=threshold)


def _gain(task: Task, outputs: Outputs, form: MeanForm, pair: Pair, single: int) -> CrossedInterval | None:
    """Return the gain on test of the mean of a pair over a single layer, with its interval over items."""
    means: tuple[tuple[MeanForm, Pair], ...] = ((form, pair), ("plain", (single, single)))
    (ours, theirs), links = (_tested(task, outputs, *mean) for mean in means), links_of(task.test)
    influences = None
    if errors_known(len(task.test), links):
        first, second = (
            item_influences(
                task.kind,
                outputs(*mean)[1],
                task.test.gold,
                metric=task.primary,
                threshold=_chosen(task, outputs, *mean).threshold,
            )
            for mean in means
        )
        influences = (first - second)[None]
    return crossed(
        [ours.metrics[task.primary] - theirs.metrics[task.primary]],
        influences,
        links=links,
        level=current().level,
        unit=KINDS[task.kind].unit,
        metric=task.primary,
    )


# ---- outputs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The embeddings of the first or second texts at a layer, (n, width); rows are read lazily."""

    stored: StoredLayer
    rows: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.stored.shape[1]

    def __getitem__(self, items: slice) -> Embedded:
        return self.stored[self.rows[items]].astype(np.float32, copy=False)


def _by_cosines(embedded: Mapping[Split, Embeddings], task: Task) -> Outputs:
    """Return outputs by the cosines of pairs."""
    cosines = {split: mean_cosines(*_layers(embedded[split], task.examples(split))) for split in ("validation", "test")}

    def outputs(form: MeanForm, pair: Pair) -> tuple[Array, Array]:
        validation, test = (cosines[split][form][pair] for split in ("validation", "test"))
        return validation, test

    return outputs


def mean_cosines(first: Sequence[Embedded | _Side], second: Sequence[Embedded | _Side]) -> dict[MeanForm, Array]:
    """Return the cosines of the means of every two layers of two texts, from inner products alone.

    With u_a the first text at layer a and v_a the second, the cosine of u_a + u_b and v_a + v_b is

        (u_a v_a + u_a v_b + u_b v_a + u_b v_b) / (|u_a + u_b| |v_a + v_b|),

    of which |u_a + u_b|^2 = u_a u_a + 2 u_a u_b + u_b u_b; at unit norm each product is divided by the two norms.

    Args:
        first: By layer, (n, width) of the first texts.
        second: By layer, (n, width) of the second ones.

    Returns:
        By form, (layers, layers, n); on the diagonal the cosines of single layers.
    """
    layers, (n, width) = len(first), first[0].shape
    cosines: dict[MeanForm, Array] = {form: np.empty((layers, layers, n)) for form in get_args(MeanForm)}
    step = max(1, CHUNK // (2 * layers * width))
    for start in range(0, n, step):
        u, v = (
            np.stack([side[start : start + step] for side in sides], 1).astype(np.float64) for sides in (first, second)
        )
        products = u @ v.swapaxes(1, 2), u @ u.swapaxes(1, 2), v @ v.swapaxes(1, 2)
        norms = [np.sqrt(np.diagonal(product, axis1=1, axis2=2)) for product in products[1:]]
        if not all(np.isfinite(norm).all() and (norm > 0).all() for norm in norms):
            raise DegenerateLayerError("expected finite embeddings that are not zero, got others: no cosine is defined")
        cosines["plain"][..., start : start + step] = _of_sums(*products)
        units = [
            product / (left[:, :, None] * right[:, None, :])
            for product, left, right in zip(products, (norms[0], *norms), (norms[1], *norms), strict=True)
        ]
        cosines["unit"][..., start : start + step] = _of_sums(*units)
    return cosines


def _of_sums(across: Array, of_first: Array, of_second: Array) -> Array:
    """Return cosines of sums of two layers, (layers, layers, n), from the (n, layers, layers) inner products."""
    diagonal = np.diagonal(across, axis1=1, axis2=2)
    dots = diagonal[:, :, None] + diagonal[:, None, :] + across + across.swapaxes(1, 2)
    squares = []
    for products in (of_first, of_second):
        lengths = np.diagonal(products, axis1=1, axis2=2)
        squares.append(lengths[:, :, None] + lengths[:, None, :] + 2 * products)
    if min(float(square.min()) for square in squares) <= 0:
        raise DegenerateLayerError("expected means of layers that are not zero, got two layers that cancel out")
    cosines: Array = (dots / np.sqrt(squares[0] * squares[1])).round(DIGITS).transpose(1, 2, 0)
    return cosines


def _by_probe(embedded: Mapping[Split, Embeddings], task: Task) -> Outputs:
    """Return outputs by the probe of the kind, fitted on the train split; those of the last mean are kept."""
    probe: Probe = KINDS[task.kind].load("probe")
    sides = {split: _layers(embedded[split], task.examples(split)) for split in get_args(Split)}
    targets, n = np.array(task.examples("train").targets), len(task.validation)

    def features(split: Split, form: MeanForm, pair: Pair) -> NDArray[Any]:
        u, *v = (_mean(side, form, pair) for side in sides[split] if side)
        return probe.features(u, v[0] if v else None)

    @functools.lru_cache(maxsize=1)
    def outputs(form: MeanForm, pair: Pair) -> tuple[Array, Array]:
        rest = np.concatenate([features(split, form, pair) for split in ("validation", "test")])
        both = probe.fit(features("train", form, pair), targets, rest)
        return both[:n], both[n:]

    return outputs


def _mean(layers: Sequence[_Side], form: MeanForm, pair: Pair) -> Embedded:
    a, b = (layers[layer][:] for layer in pair)
    if form == "unit" and pair[0] != pair[1]:
        a, b = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (a, b))
    mean: Embedded = (a + b) / np.float32(2)
    return mean


def _layers(embeddings: Embeddings, examples: Examples) -> tuple[list[_Side], list[_Side]]:
    """Return the embeddings by layer of first texts and of second ones; an empty list for single texts."""
    sides = [embeddings.rows(side) for side in examples.sides]
    stored = [embeddings.stored.rows(embeddings.nearest(layer)) for layer in range(embeddings.n_layers)]
    first, *second = ([_Side(layer, rows) for layer in stored] for rows in sides)
    return first, second[0] if second else []
