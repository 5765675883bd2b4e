"""The rule that reads a drop off a CKA curve. Knows numbers only.

Rep, Dukic and Snajder 2024 (arXiv 2402.13130) saw that CKA against an MLM reference drops in the layers whose
fine-tuned embeddings are worse. A decline is a necessary sign, not a sufficient one: flagged layers are
candidates until fine-tuning confirms them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.prediction.baselines import fixed_fraction, last_layer
from layerprobe.results import CKACurve, DropPrediction, Evidence

# A decline counts when it exceeds both of these.
MINIMUM_DECLINE = 0.05
# Three, because a steady decline by w a layer lies 2 w below the plateau two layers on: with two wobbles, rounding
# or a jitter of 0.005 decided (99 % of declines by 0.03 a layer were flagged); with three, 3 % are.
WOBBLES = 3.0
# The level before a decline is the median of this many layers.
PLATEAU_LAYERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A final run of layers that may be a decline, beginning at `onset`."""

    onset: int
    evidence: Evidence
    margin: float
    """How much lower than it must the highest of its layers lies; positive for a drop."""


def plateau_rule(
    curve: CKACurve,
    *,
    model: str = "the model",
    reference: str = "the reference",
    other_baselines: Mapping[str, int] | None = None,
) -> DropPrediction:
    """Flag the final layers that lie below the plateau before them by more than the curve wobbles.

    A layer o begins a drop if every layer from o to the last lies more than t below the plateau, the median
    CKA of the three layers before o, where

        t = max(0.05, 3 w),   w = the median change |c_l - c_(l-1)| of the layers l < o.

    The first such o is the onset, the layer before it is recommended. A curve that sinks steadily has w as
    large as its steps and no onset; nor has one whose only fall is from layer 0 to 1, since at least two layers
    must come before o, or there would be no wobble to compare with. A later fall counts even if the curve is
    level from there on: all those layers are unlike the reference.

    Args:
        curve: CKA of every layer against the reference.
        model: What the sentence calls the model.
        reference: What the sentence calls the reference.
        other_baselines: Layers that other ways recommend, shown beside those known from the depth alone.

    Raises:
        DataError: If the curve has fewer than four layers, or a value that is not finite.

    Example:
        >>> values = (0.90, 0.91, 0.90, 0.89, 0.70, 0.55)
        >>> curve = CKACurve(values=values, reference_layers=tuple(range(6)), alignment="same-index")
        >>> plateau_rule(curve).drop_layers
        (4, 5)
    """
    values = np.array(curve.values)
    n_blocks = len(values) - 1
    if n_blocks < 3:
        raise DataError(f"expected a curve of at least 4 layers to see a decline in, {model} has {len(values)}")
    if not np.isfinite(values).all():
        raise DataError(f"expected finite CKA at every layer of {model}, got {curve.values}")
    candidates = [_candidate(values, onset) for onset in range(2, n_blocks + 1)]
    drops = [candidate for candidate in candidates if candidate.margin > 0]
    found = drops[0] if drops else max(candidates, key=lambda candidate: candidate.margin)
    onset = found.onset if drops else None
    return DropPrediction(
        drop_layers=tuple(range(onset, n_blocks + 1)) if onset is not None else (),
        onset=onset,
        recommended_layer=n_blocks if onset is None else onset - 1,
        rule="plateau",
        evidence=found.evidence,
        sentence=_sentence(values, found, dropping=bool(drops), model=model, reference=reference),
        baselines={
            "last layer": last_layer(n_blocks),
            "fixed fraction of depth": fixed_fraction(n_blocks),
            **(other_baselines or {}),
        },
    )


def _candidate(values: NDArray[np.float64], onset: int) -> Candidate:
    plateau_layers = tuple(range(max(0, onset - PLATEAU_LAYERS), onset))
    plateau = float(np.median(values[list(plateau_layers)]))
    wobble = float(np.median(np.abs(np.diff(values[:onset]))))
    threshold = max(MINIMUM_DECLINE, WOBBLES * wobble)
    evidence = Evidence(
        plateau_layers=plateau_layers,
        plateau=plateau,
        decline=plateau - float(values[-1]),
        wobble=wobble,
        threshold=threshold,
    )
    return Candidate(onset=onset, evidence=evidence, margin=plateau - threshold - float(values[onset:].max()))


def _sentence(values: NDArray[np.float64], found: Candidate, *, dropping: bool, model: str, reference: str) -> str:
    evidence, last = found.evidence, len(values) - 1
    if not dropping:
        return (
            f"No drop is expected: the final layers of {model} do not fall away from {reference} by more than the "
            f"curve wobbles (CKA {values[-1]:.2f} at layer {last}); keep all {last} blocks."
        )
    plateau = _span("layer", evidence.plateau_layers)
    return (
        f"A drop after fine-tuning is expected at {_span('layer', range(found.onset, last + 1))} of {model}: CKA with "
        f"{reference} falls from {evidence.plateau:.2f} ({plateau}) to {values[-1]:.2f} at layer {last}, where "
        f"{evidence.threshold:.2f} would count; layer {found.onset - 1} is recommended; fine-tuning must confirm it."
    )


def _span(noun: str, layers: Sequence[int]) -> str:
    return f"{noun} {layers[0]}" if len(layers) == 1 else f"{noun}s {layers[0]} to {layers[-1]}"
