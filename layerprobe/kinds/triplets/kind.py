"""Triplets: which of two texts is closer to a third."""

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.influence import mean_influences
from layerprobe.stats.floors import RANDOM_ORDER, Floor
from layerprobe.tasks.kind import Kind

Array = NDArray[np.float64]


def _scores(outputs: Array, gold: Array) -> dict[str, float]:
    """Return the share of (n,) differences of cosines that are above 0."""
    return {"accuracy": float(np.mean(outputs > 0))}


TRIPLETS = Kind(
    name="triplets",
    pairs=False,
    labelled=False,
    metrics=("accuracy",),
    score=_scores,
    influences=lambda outputs, gold: {"accuracy": mean_influences(outputs > 0)},
    loss="layerprobe.kinds.triplets.loss:CosineTriplets",
    zero_shot="own",
    untrained="layerprobe.kinds.triplets.untrained:untrained_triplets",
    outputs="layerprobe.kinds.triplets.untrained:triplet_outputs",
    items="layerprobe.kinds.triplets.items:Triplets",
    item="triplet",
    loader="layerprobe.kinds.triplets.loading:load_triplets",
    one_target=True,
    averages="values",
    floors=lambda items: {"accuracy": Floor(value=50.0, by=RANDOM_ORDER)},
)
