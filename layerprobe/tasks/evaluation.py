"""Scoring the outputs of a model on a task. Knows arrays and kinds of tasks, no models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.context import current, settings
from layerprobe.errors import DataError
from layerprobe.metrics.scores import cosine_scores, jackknife_influences
from layerprobe.stats.crossed import Links
from layerprobe.tasks.cells import plain
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Items, Task

Array = NDArray[np.float64]
Layer = NDArray[np.float32]
RowsOf = Callable[[Sequence[str]], NDArray[np.int64]]
"""Function from texts to their rows among the embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of a set of outputs."""

    metrics: dict[str, float]
    """Scores x 100 by metric."""
    threshold: float | None = None
    """The output from which an example counts as class 1; None for kinds without a threshold."""
    outputs: Array | None = None
    """The scored outputs; None unless `outputs` of the context."""
    influences: Array | None = None
    """(n,) influences of items on the primary metric, see `item_influences`; None unless `by_item` of the context."""


def evaluate_outputs(
    kind: str, outputs: Array, gold: Any, *, threshold: float | None = None, primary: str | None = None
) -> Evaluation:
    """Score outputs by every metric of a kind of task.

    Args:
        kind: Kind of the task.
        outputs: (n,), or (n, classes), where the highest wins; kinds with their own items have their own form.
        gold: Gold values, see `Items.gold`: (n,) scores or class numbers, unless the kind has its own form.
        threshold: Threshold chosen on other examples; by default it is chosen on these, if the kind has one.
        primary: The metric for influences, see `Task.primary`; by default the first of the kind.

    Returns:
        The metrics and the threshold.

    Raises:
        DataError: If an output is not finite, or a correlation is undefined.
    """
    if not np.isfinite(outputs).all():
        raise DataError("expected finite outputs, got NaN or infinity")
    rules = KINDS[kind]
    if rules.threshold is None:
        scores = rules.score(outputs, gold)
    else:
        threshold = rules.threshold(outputs, gold) if threshold is None else threshold
        scores = rules.score(outputs, gold, threshold)
    return Evaluation(
        metrics={name: 100 * scores[name] for name in rules.metrics},
        threshold=threshold,
        outputs=outputs if current().outputs else None,
        influences=(
            _influences(kind, outputs, gold, primary or rules.metrics[0], threshold) if current().by_item else None
        ),
    )


def item_influences(
    kind: str, outputs: Array, gold: Any, *, metric: str | None = None, threshold: float | None = None
) -> Array:
    """Return each item's influence on a score, to compute its error over items, see `item_covariance`.

    The arguments are those of `evaluate_outputs`; the metric is by default the first of the kind.

    Returns:
        (n,) influences with mean 0, on the scale of scores, x 100.
    """
    rules = KINDS[kind]
    metric = rules.metrics[0] if metric is None else metric
    if metric not in rules.metrics:
        raise DataError(f"expected a metric of {kind}, one of {', '.join(rules.metrics)}, got {metric!r}")
    with settings(by_item=False):
        threshold = evaluate_outputs(kind, outputs, gold, threshold=threshold).threshold  # and checks them
    return _influences(kind, outputs, gold, metric, threshold)


def _influences(kind: str, outputs: Array, gold: Any, metric: str, threshold: float | None) -> Array:
    rules, arguments = KINDS[kind], () if threshold is None else (threshold,)
    influences = {} if rules.influences is None else rules.influences(outputs, gold, *arguments)
    if metric in influences:
        return 100 * influences[metric]

    def score(items: NDArray[np.intp]) -> float:
        return float(rules.score(outputs[items], gold[items], *arguments)[metric])

    return 100 * jackknife_influences(score, len(gold))


def outputs_of_layer(values: Layer, rows: RowsOf, task: Task, items: Items) -> Array:
    """Return the outputs of untrained (text, width) embeddings of a layer for items, in the form of `Kind.score`.

    They are the cosines of pairs, the outputs of the kind's probe, fitted on the train split, or those of
    `Learning.outputs`; `rows` covers all their texts. DataError if an item has no output.
    """
    learning = KINDS[task.kind].learning()
    if learning.outputs is not None:
        return learning.outputs(values, rows, items)
    u, v = sides_of(values, rows, items)
    if KINDS[task.kind].zero_shot == "cosine":
        assert v is not None
        return cosine_scores(u, v)
    probe = learning.probe
    train = task.examples("train")
    fitted = probe.features(*sides_of(values, rows, train))
    return probe.fit(fitted, np.array(train.targets), probe.features(u, v))


def sides_of(values: Layer, rows: RowsOf, items: Items) -> tuple[Layer, Layer | None]:
    """Return the embeddings of the first texts, and of the second texts if there are any."""
    first, *second = (values[rows(side)] for side in items.sides)
    return first, second[0] if second else None


def links_of(examples: Items) -> Links | None:
    """Return the links between examples that share a text; None if no two do.

    Examples:
        >>> from layerprobe.tasks.values import Examples
        >>> links_of(Examples(first=("a", "b"), second=("c", "a"), targets=(0.0, 1.0))).sides[1].tolist()
        [2, 0]
        >>> links_of(Examples(first=("a", "b"), second=("c", "d"), targets=(0.0, 1.0)))
    """
    numbers: dict[str, int] = {}
    sides = [
        np.array([numbers.setdefault(plain(text), len(numbers)) for text in side], np.intp) for side in examples.sides
    ]
    if sum(len(set(item)) for item in zip(*sides, strict=True)) == len(numbers):
        return None
    return Links(sides=tuple(sides))
