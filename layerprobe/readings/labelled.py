"""What frozen embeddings score on the validation split of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerprobe.readings.reading import Reading
from layerprobe.readings.values import LayerCurve

if TYPE_CHECKING:
    from layerprobe.readings.source import Source


def _zero_shot(source: Source) -> LayerCurve:
    from layerprobe.scoring.zero_shot import fitted_on, zero_shot  # loads torch, which rules do without

    assert source.task is not None
    fit = fitted_on(source.task.kind)
    fitted = None if fit is None else source.split(fit)
    scores = zero_shot(
        source.split("validation"), source.task, split="validation", fitted=fitted, progress=source.progress
    )
    return LayerCurve(values=scores.scores)


def _probe(source: Source) -> LayerCurve | None:
    from layerprobe.scoring.sts_probe import sts_probe  # loads torch, which rules do without

    assert source.task is not None
    if source.task.kind != "sts":
        return None  # zero-shot scores of other kinds are those of a probe
    scores = sts_probe(
        source.split("validation"),
        source.task,
        split="validation",
        fitted=source.split("train"),
        progress=source.progress,
    )
    return LayerCurve(values=scores.scores)


ZERO_SHOT = Reading(
    description="primary metric of the task x 100 without fine-tuning",
    direction=1,
    needs="labels",
    compute=_zero_shot,
)
PROBE = Reading(description="the same of ridge regression on frozen pairs", direction=1, needs="labels", compute=_probe)
