"""Training of triplets, and how often the positive is closer without fine-tuning."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from layerprobe.encoders.loading import Resolved
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.metrics.scores import cosine_scores
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import score_outputs
from layerprobe.tasks.evaluation import Rows
from layerprobe.tasks.values import Items, Task, TextSplit


class CosineTriplets(Criterion):
    """max(0, margin - cos(anchor, positive) + cos(anchor, negative)).

    This is `TripletLoss` of sentence-transformers with its cosine distance. Its default is the Euclidean distance with
    a margin of 5, but norms of embeddings differ between layers, so that the margin would have another meaning at
    each; triplets are also scored by cosines.
    """

    margin: ClassVar[float] = 0.5
    """Wanted difference between the distances of the negative and of the positive from the anchor."""

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of triplets."""
        anchor, positive, negative = states.view(3, len(rows), -1)
        closer, farther = F.cosine_similarity(anchor, positive), F.cosine_similarity(anchor, negative)
        return F.relu((1 - closer) - (1 - farther) + self.margin).mean()

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return (n,) cos(anchor, positive) - cos(anchor, negative)."""
        anchor, positive, negative = (np.asarray(states)[side] for side in items.sides)
        return cosine_scores(anchor, positive) - cosine_scores(anchor, negative)


def untrained_triplets(checkpoint: Resolved, task: Task, *, split: TextSplit) -> LayerScores:
    """Return the share of triplets whose anchor is closer to the positive, by cosine."""
    return score_outputs(checkpoint, task, split=split, method="cosine")


def triplet_outputs(values: NDArray[np.float32], rows: Rows, items: Items) -> NDArray[np.float64]:
    """Return (n,) cos(anchor, positive) - cos(anchor, negative) from (text, width) embeddings."""
    anchor, positive, negative = (values[rows(side)] for side in items.sides)
    return cosine_scores(anchor, positive) - cosine_scores(anchor, negative)
