"""Metrics by name, with titles and ranges. Knows names, no formulas."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from layerprobe.registry import Registry
from layerprobe.results.table import Quantity

Split = Literal["train", "validation", "test"]


def split_title(split: str) -> str:
    """Return the name of a split, or of all data, for a sentence."""
    return "all items" if split == "all" else f"the {split} split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric for scoring outputs."""

    title: str
    """Name in sentences."""
    low: float = -math.inf
    """Lowest possible score, x 100."""
    high: float = math.inf
    """Highest possible score, x 100."""


SPEARMAN = Metric(title="Spearman", low=-100.0, high=100.0)
PEARSON = Metric(title="Pearson", low=-100.0, high=100.0)
F1 = Metric(title="F1", low=0.0, high=100.0)
AVERAGE_PRECISION = Metric(title="average precision", low=0.0, high=100.0)
ACCURACY = Metric(title="accuracy", low=0.0, high=100.0)
MACRO_F1 = Metric(title="macro F1", low=0.0, high=100.0)
R2 = Metric(title="R2", high=100.0)
ENTITY_F1 = Metric(title="entity F1", low=0.0, high=100.0)
ENTITY_PRECISION = Metric(title="entity precision", low=0.0, high=100.0)
ENTITY_RECALL = Metric(title="entity recall", low=0.0, high=100.0)
EXACT_MATCH = Metric(title="exact match", low=0.0, high=100.0)
NDCG_10 = Metric(title="nDCG@10", low=0.0, high=100.0)
MRR_10 = Metric(title="MRR@10", low=0.0, high=100.0)
RECALL_10 = Metric(title="recall@10", low=0.0, high=100.0)
ROUGE_1 = Metric(title="ROUGE-1", low=0.0, high=100.0)
ROUGE_2 = Metric(title="ROUGE-2", low=0.0, high=100.0)
ROUGE_L = Metric(title="ROUGE-L", low=0.0, high=100.0)
AGREEMENT = Metric(title="agreement", low=-100.0, high=100.0)
NEIGHBOURS = Metric(title="shared neighbours", low=0.0, high=100.0)

METRICS: Registry[Metric] = Registry(
    "layerprobe.metrics",
    Metric,
    what="metric",
    shipped={
        name: f"{__name__}:{re.sub(r'[ @-]', '_', name).upper()}"
        for name in (
            *("spearman", "pearson", "f1", "average precision", "accuracy", "macro f1", "r2"),
            *("entity f1", "entity precision", "entity recall", "exact match"),
            *("ndcg@10", "mrr@10", "recall@10", "rouge-1", "rouge-2", "rouge-l"),
            *("agreement", "neighbours"),
        )
    },
)

RETRIEVAL_METRICS = ("ndcg@10", "mrr@10", "recall@10")
"""Metrics of retrieval tasks, from the first documents of each ranking; the first one is primary."""


def metric_title(metric: str) -> str:
    """Return the name of a metric for a sentence.

    Examples:
        >>> metric_title("f1")
        'F1'
    """
    return find_metric(metric).title


def find_metric(name: str) -> Metric:
    """Return a metric by name; unregistered ones, such as scorers of scikit-learn, have only a name."""
    return METRICS[name] if name in METRICS else Metric(title=name)


def points(metric: str, split: str = "") -> Quantity:
    """Return the quantity for charts: scores x 100 by a metric on a split."""
    return Quantity(f"{metric_title(metric)} × 100", split, "higher")


def bounded(metric: str, ends: tuple[float, float], *, difference: bool = False) -> tuple[float, float]:
    """Return the ends of an interval, clipped to the range of a metric x 100, or of a difference of two such scores.

    Examples:
        >>> bounded("accuracy", (95.0, 103.0)), bounded("spearman", (-230.0, 3.0), difference=True)
        ((95.0, 100.0), (-200.0, 3.0))
    """
    low, high = find_metric(metric).low, find_metric(metric).high
    if difference:
        low, high = low - high, high - low
    return min(max(ends[0], low), high), max(min(ends[1], high), low)
