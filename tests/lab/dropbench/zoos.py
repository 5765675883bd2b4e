"""Zoos made by hand, whose drops are known."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.lab.dropbench.zoo import ItemErrors, ScanScores, TunedLayers, Zoo, ZooEntry, ZooProvenance
from layerprobe.readings.reading import LayerCurve

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


def recorded(
    name: str,
    family: str,
    quality: Sequence[float] = DROPPING,
    *,
    n_seeds: int = 3,
    scans: Sequence[Weighting] = ("falling", "falling", "equal"),
    item_error: float = 0.4,
    seed_error: float = 0.3,
    seed: int = 0,
    **changes: Any,
) -> ZooEntry:
    """A model with all that is kept of its runs: scores are quality, errors over items, and over seeds."""
    rng, n = np.random.default_rng(seed), len(quality)
    common = item_error**2 * 0.9 ** np.abs(np.subtract.outer(np.arange(2 * n) % n, np.arange(2 * n) % n))
    own = (item_error / 2) ** 2
    by_run = seed_error * rng.normal(size=(n, n_seeds))
    of_scans = 0.8 * np.array(quality) + 0.2 * max(quality) + 0.05 * seed_error * rng.normal(size=(len(scans), n))
    root = np.linalg.cholesky(common + 1e-9 * np.eye(2 * n))

    def split(scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        shared = scale * root @ rng.normal(size=2 * n)
        alone = scale * math.sqrt(own) * rng.normal(size=(n, n_seeds))
        return np.array(quality)[:, None] + by_run + shared[:n, None] + alone, of_scans + shared[n:]

    def rows(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
        return tuple(map(tuple, values.round(4).tolist()))

    def errors(scale: float = 1.0) -> ItemErrors:
        lower = tuple(tuple(row[: i + 1].tolist()) for i, row in enumerate(scale**2 * common[:n, :n]))
        return ItemErrors(n_items=400, units=400.0, common=lower, own=(scale**2 * own,) * n)

    validation, scanned = split()
    halves = [split(0.5) for _ in range(2)]
    test = np.mean([half for half, _ in halves], axis=0)
    tested = np.mean([half for _, half in halves], axis=0)
    whole = TunedLayers(
        protocol=Protocol(epochs=2),
        steps=100,
        seeds=tuple(range(n_seeds)),
        validation=rows(validation),
        test=rows(test),
        epochs=tuple(rows(np.stack([layer - 5, layer], axis=1)) for layer in validation),
        halves=tuple(rows(half) for half, _ in halves),
        validation_errors=errors(),
        test_errors=errors(0.5 / math.sqrt(2)),
        scans=tuple(
            ScanScores(
                weighting=weighting,
                seed=list(scans[:number]).count(weighting),
                epochs=rows(np.stack([scanned[number] - 5, scanned[number]])),
                validation=rows(scanned)[number],
                test=rows(tested)[number],
            )
            for number, weighting in enumerate(scans)
        ),
    )
    return entry(name, family, quality, budgets={"converged": whole}, **changes)


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
