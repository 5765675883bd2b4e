"""Kinds of tasks and the names of what they are scored by. Knows names, no formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from layerprobe.errors import DataError

TaskKind = Literal["sts", "paraphrase", "entailment", "classification"]
Metric = Literal[
    "spearman",
    "pearson",
    "f1",
    "average precision",
    "accuracy",
    "macro f1",
    "ndcg@10",
    "mrr",
    "mrr@10",
    "recall@10",
]
Split = Literal["train", "validation", "test"]

METRICS: dict[TaskKind, tuple[Metric, ...]] = {
    "sts": ("spearman", "pearson"),
    "paraphrase": ("f1", "average precision", "accuracy"),
    "entailment": ("macro f1", "accuracy"),
    "classification": ("accuracy", "macro f1"),
}
"""The first one is the primary metric: epochs and layers are chosen by it, and verdicts are about it."""

RETRIEVAL_METRICS: tuple[Metric, ...] = ("ndcg@10", "mrr", "mrr@10", "recall@10")
"""Of a `RetrievalTask`; the first one is the primary metric."""

TITLES: dict[Metric, str] = {
    "spearman": "Spearman",
    "pearson": "Pearson",
    "f1": "F1",
    "average precision": "average precision",
    "accuracy": "accuracy",
    "macro f1": "macro F1",
    "ndcg@10": "nDCG@10",
    "mrr": "MRR",
    "mrr@10": "MRR@10",
    "recall@10": "recall@10",
}


def primary_metric(kind: TaskKind) -> Metric:
    """Return the metric by which epochs and layers are chosen.

    Example:
        >>> primary_metric("paraphrase")
        'f1'
    """
    return METRICS[kind][0]


def metric_title(metric: Metric) -> str:
    """Return what a metric is called in a sentence."""
    return TITLES[metric]


def check_primary(primary: Metric, metrics: Mapping[Any, object], *, what: str) -> None:
    """Raise DataError unless the primary metric is among the metrics."""
    if primary not in metrics:
        raise DataError(f"expected {primary!r}, the primary metric, among {what}, got {', '.join(metrics) or 'none'}")
