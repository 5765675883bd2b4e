"""Transferability scores of frozen features and labels, at every layer.

`layerprobe.scoring.transferability` has the formulas. All are of the training items alone, a random choice of
`ITEMS` where there are more. The features of an item are

- of a single text its embedding u;
- of a pair that is trained by its cosine (sts, paraphrase) |u - v| and u * v of embeddings scaled to length 1: the
  cosine is the sum of the latter, and which text comes first does not matter;
- of any other pair (entailment) u, v and |u - v|, what the head of training sees.

TransformerRanker embeds a pair as one text, which is no sentence embedding, and takes items of all splits, test among
them; L3Prune trains with a hard negative for each pair, which tasks do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, DegenerateLayerError
from layerprobe.metrics.correlation import spearman
from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.scoring.probes import logistic_features
from layerprobe.scoring.transferability import (
    class_columns,
    contrastive_loss,
    h_score,
    linear_mse,
    log_evidence,
    neighbour_predictions,
)
from layerprobe.similarity.checks import Array, centred_layer, unit_rows
from layerprobe.tasks.kind import KINDS, Kind
from layerprobe.tasks.values import Examples, Task

if TYPE_CHECKING:
    from layerprobe.readings.source import Source

ITEMS = 2000
"""Training items that are read, at most."""
BATCH = 64
"""Positive pairs, or single texts, among which one has to be identified, as in L3Prune."""
SIMILAR = 0.8
"""Pairs with a higher gold score are positive, 4 of 5 as in SimCSE (Gao et al. 2021, arXiv 2104.08821)."""
ENTAILED = "entail"
"""How the class begins whose pairs are positive, as in SimCSE."""


def item_features(kind: Kind, u: NDArray[np.float32], v: NDArray[np.float32] | None, *, name: str) -> Array:
    """Return (n, features) of items from the (n, width) embeddings of their first texts and, of pairs, second ones.

    The module's docstring says what they are.
    """
    if v is None or kind.zero_shot != "cosine":
        return logistic_features(u, v).astype(np.float64)
    first, second = (unit_rows(side.astype(np.float64), name=name) for side in (u, v))
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def read_items(source: Source, number: Callable[[Array, Array, str], float]) -> LayerCurve | None:
    """Return a number of every layer, computed from (n, features), (n,) targets and the name of the layer.

    None where items are not texts or pairs with a number each.
    """
    task, examples = source.labels, source.labels.train
    if not isinstance(examples, Examples):
        return None
    embedded = source.split("train")
    chosen = _chosen(np.arange(len(examples)))
    kind, targets = KINDS[task.kind], np.array(examples.targets)[chosen]
    first = embedded.rows(examples.first)[chosen]
    second = None if examples.second is None else embedded.rows(examples.second)[chosen]

    def of_layer(layer: int, name: str) -> float:
        values = embedded.measured(layer)
        centred_layer(values, name=name)  # refuses a layer that is the same for all texts
        features = item_features(kind, values[first], None if second is None else values[second], name=name)
        try:
            return number(features, targets, name)
        except DegenerateLayerError:
            raise
        except DataError as error:
            raise DataError(f"{name} cannot be scored: {error}") from error

    return source.by_layer(of_layer, first_layer=embedded.first_layer)


def _chosen(items: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the items that are read, a random choice where there are many."""
    return items if len(items) <= ITEMS else np.sort(np.random.default_rng(0).choice(items, ITEMS, replace=False))


def _log_evidence(source: Source) -> LayerCurve | None:
    classes = KINDS[source.labels.kind].labelled
    return read_items(
        source, lambda features, y, name: log_evidence(features, class_columns(y) if classes else y, name=name)
    )


def _h_score(source: Source) -> LayerCurve | None:
    if not KINDS[source.labels.kind].labelled:
        return None  # there are no class means
    return read_items(source, lambda features, classes, name: h_score(features, classes, name=name))


def _linear_mse(source: Source) -> LayerCurve | None:
    if KINDS[source.labels.kind].labelled:
        return None  # it is of scores
    return read_items(source, lambda features, scores, name: linear_mse(features, scores, name=name))


def _neighbours(source: Source) -> LayerCurve | None:
    classes = KINDS[source.labels.kind].labelled

    def score(features: Array, targets: Array, name: str) -> float:
        predicted = neighbour_predictions(features, targets, classes=classes, name=name)
        return 100 * (float(np.mean(predicted == targets)) if classes else spearman(predicted, targets))

    return read_items(source, score)


# ---- the loss of contrastive training --------------------------------------------------------------------


def _contrastive_loss(source: Source) -> LayerCurve | None:
    """Return the mean loss over batches; None where no two texts of the task belong together."""
    task = source.labels
    batches = _batches(task)
    if not batches:
        return None
    examples, embedded = task.examples("train"), source.split("train")
    classes, first = np.array(examples.targets), embedded.rows(examples.first)
    second = None if examples.second is None else embedded.rows(examples.second)

    def of_batch(values: NDArray[np.float32], batch: NDArray[np.intp], name: str) -> float:
        texts, others = values[first[batch]], ~np.eye(len(batch), dtype=bool)
        if second is not None:
            return contrastive_loss(texts, values[second[batch]], ~others, name=name)
        return contrastive_loss(texts, texts, _same(classes[batch]) & others, others, name=name)

    def of_layer(layer: int, name: str) -> float:
        values = embedded.measured(layer)
        centred_layer(values, name=name)  # refuses a layer that is the same for all texts
        return float(np.mean([of_batch(values, batch, name) for batch in batches]))

    return source.by_layer(of_layer, first_layer=embedded.first_layer)


def _batches(task: Task) -> list[NDArray[np.intp]]:
    """Return batches of items in which something belongs together, and something else does not."""
    items = positive_pairs(task)
    if items is None or len(items) < 2:
        return []
    shuffled = np.random.default_rng(0).permutation(_chosen(items))
    batches = np.array_split(shuffled, math.ceil(len(shuffled) / BATCH))
    examples = task.examples("train")
    if examples.second is not None:
        return batches
    classes = np.array(examples.targets)
    return [batch for batch in batches if _same(classes[batch]).sum() > len(batch)]


def _same(classes: Array) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = classes[:, None] == classes
    return same


def positive_pairs(task: Task) -> NDArray[np.intp] | None:
    """Return which training pairs say the same, so that contrastive training would pull their texts together.

    Of scored pairs those above `SIMILAR`, of decisions by a threshold those of class 1, of other classes those of the
    one that is called entailment.

    Returns:
        All items where they are single texts of classes, which belong together with those of their class; None where
        nothing says what belongs together.
    """
    if not isinstance(task.train, Examples):
        return None
    kind, targets = KINDS[task.kind], np.array(task.train.targets)
    if not kind.labelled:
        return np.flatnonzero(targets > SIMILAR) if kind.pairs else None
    if not kind.pairs:
        return np.arange(len(targets))
    if kind.threshold is not None:
        return np.flatnonzero(targets == 1)
    entailed = [number for number, label in enumerate(task.labels) if label.lower().startswith(ENTAILED)]
    return np.flatnonzero(np.isin(targets, entailed)) if entailed else None


LOG_EVIDENCE = Reading(
    description="log evidence, an item, of a linear model of the targets on frozen features",
    unit="nats",
    direction=1,
    needs="labels",
    compute=_log_evidence,
    source="You et al. 2021 (arXiv 2102.11005)",
)
H_SCORE = Reading(
    description="spread of the class means of frozen features in that of all items, regularised",
    direction=1,
    needs="labels",
    compute=_h_score,
    source="Ibrahim et al. 2022 (arXiv 2110.06893); Bao et al. 2019 (arXiv 2212.10082)",
)
LINEAR_MSE = Reading(
    description="minus the penalised squared error of a linear model of the scores on frozen features",
    direction=1,
    needs="labels",
    compute=_linear_mse,
    source="Nguyen et al. 2023 (arXiv 2312.00656)",
)
NEIGHBOURS = Reading(
    description="accuracy, or Spearman of scores, x 100 of what the three nearest other training items say",
    direction=1,
    needs="labels",
    compute=_neighbours,
    source="Sorkhei et al. 2025 (arXiv 2503.18528)",
)
CONTRASTIVE_LOSS = Reading(
    description="how hard it is to tell which texts belong together, by cosines, before training",
    unit="nats",
    direction=-1,
    needs="labels",
    compute=_contrastive_loss,
    source="Thennal et al. 2025 (arXiv 2410.14578)",
)
