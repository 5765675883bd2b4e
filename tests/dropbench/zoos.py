"""Zoos made by hand, whose drops are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerprobe.dropbench.values import TunedLayers, Zoo, ZooEntry, ZooProvenance
from layerprobe.finetuning.values import Protocol
from layerprobe.readings.values import LayerCurve

DROPPING = (50.0, 60.0, 70.0, 75.0, 80.0, 70.0, 60.0)
"""Best at layer 4 of 6; the onset is layer 5."""
RISING = (50.0, 60.0, 70.0, 75.0, 78.0, 79.0, 80.0)
FALLING_CURVE = (0.9, 0.91, 0.9, 0.89, 0.9, 0.5, 0.4)
"""The plateau rule reads an onset at layer 5 off it."""
LEVEL_CURVE = (0.9, 0.91, 0.9, 0.89, 0.9, 0.9, 0.91)


def tuned(scores: Sequence[float], *, validation: Sequence[float] | None = None, noise: Any = None) -> TunedLayers:
    """The same scores for three seeds, each with its noise by layer on both splits."""
    moved = [[0.0] * len(scores)] * 3 if noise is None else noise

    def split(values: Sequence[float]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(value + each[layer] for each in moved) for layer, value in enumerate(values))

    return TunedLayers(
        protocol=Protocol(epochs=1),
        steps=100,
        seeds=tuple(range(len(moved))),
        validation=split(validation or scores),
        test=split(scores),
    )


def entry(
    name: str,
    family: str,
    scores: Sequence[float] = RISING,
    *,
    cka: Sequence[float] | None = None,
    metrics: Mapping[str, Sequence[float]] | None = None,
    labelled: Mapping[str, Sequence[float]] | None = None,
    **changes: Any,
) -> ZooEntry:
    def curves(values: Mapping[str, Sequence[float]] | None) -> dict[str, LayerCurve]:
        return {key: LayerCurve(values=tuple(value)) for key, value in (values or {}).items()}

    fields: dict[str, Any] = {
        "name": name,
        "family": family,
        "size": "tiny",
        "seed": 0,
        "corpus": "toy",
        "task": "toy",
        "metric": "spearman",
        "n_blocks": len(scores) - 1,
        "budgets": {"gentle": tuned(scores)},
        "cka": curves({"twin": cka} if cka else None),
        "metrics": curves(metrics),
        "labelled": curves(labelled),
    }
    return ZooEntry(**{**fields, **changes})


def zoo(*entries: ZooEntry) -> Zoo:
    return Zoo(
        provenance=ZooProvenance(layerprobe="0", created="2026-01-01T00:00:00+00:00", command="by hand"),
        entries=entries,
    )


def known_zoo() -> Zoo:
    """Two families that drop and two that do not; CKA falls in all that drop and in one that does not."""
    return zoo(
        entry("a0", "a", DROPPING, cka=FALLING_CURVE),
        entry("a1", "a", DROPPING, cka=FALLING_CURVE),
        entry("b0", "b", DROPPING, cka=LEVEL_CURVE),
        entry("c0", "c", RISING, cka=LEVEL_CURVE),
        entry("c1", "c", RISING, cka=FALLING_CURVE),
        entry("d0", "d", RISING, cka=LEVEL_CURVE),
    )
