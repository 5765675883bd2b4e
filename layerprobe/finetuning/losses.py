"""What kinds of tasks train: losses, with a head on the embeddings where they need one. Knows tensors, not texts.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3 (STSB) and appendix (MRPC, SICK).
"""

import abc

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.metrics.correlation import cosine_scores
from layerprobe.tasks.kinds.kind import KINDS
from layerprobe.tasks.values import Task


class Loss(nn.Module, abc.ABC):
    """Embeddings of `width` features -> outputs -> loss; its parameters, where it has any, are those of a head.

    `n_labels` is the number of classes, 0 where targets are scores.
    """

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__()

    @abc.abstractmethod
    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Return the outputs, (n,) or (n, classes), for (n, width) of first texts and, of pairs, second ones."""

    @abc.abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of (n,) float targets: gold scores or class numbers."""

    @torch.inference_mode()
    def outputs(self, u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Return the outputs for arrays; DataError if an embedding has no cosine."""
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        outputs = self(*(None if side is None else torch.from_numpy(side).to(device) for side in (u, v)))
        array: NDArray[np.float64] = outputs.double().cpu().numpy()
        return array


class _Cosine(Loss):
    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        assert v is not None
        return F.cosine_similarity(u, v)

    def outputs(self, u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float64]:
        assert v is not None
        return cosine_scores(u, v)  # exact to float64


class CosineScore(_Cosine):
    """cos(u, v), trained on its squared error against the gold score of 0 .. 1."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(outputs, targets)


class CosineDecision(_Cosine):
    """cos(u, v) as a logit, trained on binary cross entropy."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean binary cross entropy."""
        return F.binary_cross_entropy_with_logits(outputs, targets)


class TextClasses(Loss):
    """W u + b, trained on cross entropy."""

    parts = 1
    """Features of the head by width."""

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(self.parts * width, n_labels)

    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Return the logits, (n, classes)."""
        logits: Tensor = self.head(u if v is None else torch.cat([u, v, (u - v).abs()], dim=1))
        return logits

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy."""
        return F.cross_entropy(outputs, targets.long())


class PairClasses(TextClasses):
    """W (u, v, |u - v|) + b, trained on cross entropy."""

    parts = 3


def loss_of(task: Task, *, width: int) -> Loss:
    """Return the loss of a task with a fresh head; DataError if what its kind names cannot be loaded."""
    loss: Loss = KINDS[task.kind].load_loss()(width=width, n_labels=len(task.labels))
    return loss
