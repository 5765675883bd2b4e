"""What frozen embeddings score on the validation split of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve
from layerprobe.tasks.kind import KINDS

if TYPE_CHECKING:
    from layerprobe.readings.source import Source
    from layerprobe.scoring.values import LayerScores


def _zero_shot(source: Source) -> LayerCurve:
    from layerprobe.scoring.zero_shot import zero_shot  # loads torch, which rules do without

    task, kind = source.labels, KINDS[source.labels.kind]
    if (untrained := kind.load("untrained")) is not None:
        return _curve(untrained(source.checkpoint, task, split="validation"))
    fit = kind.fitted_on
    fitted = None if fit is None else source.split(fit)
    validation = source.split("validation")
    return _curve(zero_shot(validation, task, split="validation", fitted=fitted))


def _probe(source: Source) -> LayerCurve | None:
    from layerprobe.scoring.zero_shot import probed  # loads torch, which rules do without

    kind = KINDS[source.labels.kind]
    if kind.zero_shot != "cosine" or kind.probe is None:
        return None  # zero-shot scores are those of a probe, or there is none
    validation, fitted = source.split("validation"), source.split("train")
    return _curve(probed(validation, source.labels, split="validation", fitted=fitted))


def _curve(scores: LayerScores) -> LayerCurve:
    return LayerCurve(values=scores.scores, first_layer=scores.first_layer)


ZERO_SHOT = Reading(
    description="primary metric of the task x 100, without training", direction=1, needs="labels", compute=_zero_shot
)
PROBE = Reading(description="the same of ridge regression on frozen pairs", direction=1, needs="labels", compute=_probe)
