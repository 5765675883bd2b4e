"""What frozen embeddings score on the validation split of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve

if TYPE_CHECKING:
    from layerprobe.readings.source import Source


def _zero_shot(source: Source) -> LayerCurve:
    from layerprobe.scoring.zero_shot import fitted_on, zero_shot  # loads torch, which rules do without

    task, fit = source.labels, fitted_on(source.labels.kind)
    fitted = None if fit is None else source.split(fit)
    validation = source.split("validation")
    return LayerCurve(
        values=zero_shot(validation, task, split="validation", fitted=fitted, progress=source.progress).scores
    )


def _probe(source: Source) -> LayerCurve | None:
    from layerprobe.scoring.sts_probe import sts_probe  # loads torch, which rules do without

    if source.labels.kind != "sts":
        return None  # zero-shot scores of other kinds are those of a probe
    fitted = source.split("train")
    return LayerCurve(
        values=sts_probe(source.split("validation"), source.labels, fitted=fitted, progress=source.progress).scores
    )


ZERO_SHOT = Reading(
    description="primary metric of the task x 100, without training", direction=1, needs="labels", compute=_zero_shot
)
PROBE = Reading(description="the same of ridge regression on frozen pairs", direction=1, needs="labels", compute=_probe)
