"""The paper's figures beside ours. Knows means over seeds, no models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from layerprobe.reproduction.paper import PaperScores, PlannedModel
from layerprobe.results import LayerOutcome, Metric, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedScore:
    """One metric on one split; everything x 100."""

    split: Literal["validation", "test"]
    metric: Metric
    paper: float | None
    """Mean over the paper's seeds; None where it gives no figure."""
    mean: float
    """Ours, over seeds."""
    std: float | None
    """Ours, over seeds; None for one."""
    difference: float | None
    """Ours less the paper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedLayer:
    """One model truncated at one layer."""

    model: str
    """Hub id of the paper."""
    runs_model: str
    """What was run in its place."""
    layer: int
    parameters: int
    """Of what was run."""
    seeds: tuple[int, ...]
    scores: tuple[ReproducedScore, ...]
    """Validation and test, the primary metric first."""

    def score(self, split: str, metric: Metric) -> ReproducedScore:
        """Return one score."""
        return next(each for each in self.scores if (each.split, each.metric) == (split, metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """An experiment, done again."""

    experiment: str
    source: str
    """Where the paper has it."""
    task: str
    """What was learnt, as the user gave it."""
    protocol: Protocol
    primary: Metric
    layers: tuple[ReproducedLayer, ...]
    """In the order of the paper."""


def reproduced_layer(
    paper: PaperScores, model: PlannedModel, ours: LayerOutcome, metrics: Sequence[Metric]
) -> ReproducedLayer:
    """Set the outcome of fine-tuning at a layer beside the paper's figures."""
    return ReproducedLayer(
        model=model.hub_id,
        runs_model=model.runs,
        layer=paper.layer,
        parameters=ours.parameters,
        seeds=ours.seeds,
        scores=(
            *(_score("validation", each, paper.validation.get(each), ours.validation[each]) for each in metrics),
            *(_score("test", each, paper.test.get(each), ours.test[each]) for each in metrics),
        ),
    )


def _score(
    split: Literal["validation", "test"], metric: Metric, paper: float | None, ours: Sequence[float]
) -> ReproducedScore:
    mean = statistics.fmean(ours)
    return ReproducedScore(
        split=split,
        metric=metric,
        paper=paper,
        mean=mean,
        std=statistics.stdev(ours) if len(ours) > 1 else None,
        difference=None if paper is None else mean - paper,
    )
