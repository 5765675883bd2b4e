"""Triplets: which of two texts is closer to a third."""

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.influence import mean_influences
from layerprobe.tasks.kinds.kind import Kind

Array = NDArray[np.float64]


def _scores(outputs: Array, gold: Array) -> dict[str, float]:
    """Return the share of (n,) differences of cosines that are above 0."""
    return {"accuracy": float(np.mean(outputs > 0))}


def _influences(outputs: Array, gold: Array) -> dict[str, Array]:
    return {"accuracy": mean_influences(outputs > 0)}


TRIPLETS = Kind(
    name="triplets",
    pairs=False,
    labelled=False,
    metrics=("accuracy",),
    score=_scores,
    influences=_influences,
    loss="layerprobe.finetuning.ranking:CosineTriplets",
    zero_shot="own",
    untrained="layerprobe.scoring.triplets:untrained_triplets",
    items="layerprobe.tasks.triplets:Triplets",
    item="triplet",
    loader="layerprobe.tasks.triplets:load_triplets",
    one_target=True,
    averages="values",
)
