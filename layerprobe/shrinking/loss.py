"""What a smaller model is trained on: the whole model's embeddings. Knows tensors and items as token ids."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from layerprobe.finetuning.losses import Criterion, PreparedItems


class LikeTeacher(Criterion):
    """1 - cos(student, teacher), and how much the similarities of the step's texts differ from the teacher's, squared.

    The first term is the mean over texts, half the squared error of normalised embeddings; the second the mean over
    all pairs of texts of a step, times `weight`. Only the directions are learnt: how long embeddings are is left open.
    """

    whole_batch: ClassVar[bool] = True
    weight: ClassVar[float] = 10.0
    """Of the similarities: their squared differences are a tenth of the first term's in size."""

    @classmethod
    def check_batch(cls, items: PreparedItems, batch_size: int) -> None:
        """Take any size of a batch."""

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of texts, whose embeddings are (text, width)."""
        student = F.normalize(states, dim=1)
        teacher = F.normalize(torch.from_numpy(items.targets[rows]).to(states.device, torch.float32), dim=1)
        similarities = (student @ student.T - teacher @ teacher.T).square().mean()
        return (1 - (student * teacher).sum(dim=1)).mean() + self.weight * similarities

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the (text, width) embeddings of all texts, as `agreement` takes them."""
        return np.asarray(states, dtype=np.float64)[items.sides[0]]
