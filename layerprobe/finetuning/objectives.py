"""What each kind of task trains: its loss, and the head on top of the embeddings. Knows tensors, not texts.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3 (STSB) and appendix (MRPC, SICK).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.metrics.correlation import cosine_scores
from layerprobe.metrics.names import TaskKind
from layerprobe.tasks.values import Task


class Objective(nn.Module):
    """Embeddings -> outputs -> loss; its parameters, where it has any, are those of a linear head.

    sts             cos(u, v)                   mean squared error against the gold score of 0 .. 1
    paraphrase      cos(u, v) as a logit        binary cross entropy
    entailment      W (u, v, |u - v|) + b       cross entropy
    classification  W u + b                     cross entropy
    """

    def __init__(self, kind: TaskKind, *, width: int, n_labels: int = 0) -> None:
        super().__init__()
        self.kind: TaskKind = kind
        parts = {"entailment": 3, "classification": 1}.get(kind)
        self.head = None if parts is None else nn.Linear(parts * width, n_labels)

    @classmethod
    def of(cls, task: Task, *, width: int) -> Objective:
        """Return the objective of a task with a fresh head, for embeddings of `width` features."""
        return cls(task.kind, width=width, n_labels=len(task.labels))

    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Return the outputs: (n,) cosines, or (n, labels) logits.

        Args:
            u: (n, width) embeddings of the first texts.
            v: (n, width) of the second ones; None for single texts.
        """
        if self.head is not None:
            return self.head(u if v is None else torch.cat([u, v, (u - v).abs()], dim=1))  # type: ignore[no-any-return]
        assert v is not None
        return F.cosine_similarity(u, v)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of (n,) float targets: gold scores or class numbers."""
        if self.head is not None:
            return F.cross_entropy(outputs, targets.long())
        if self.kind == "paraphrase":
            return F.binary_cross_entropy_with_logits(outputs, targets)
        return F.mse_loss(outputs, targets)

    def outputs(self, u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Return the outputs for arrays in float64, cosines exact to it.

        Raises:
            DataError: If an embedding has no cosine.
        """
        if self.head is None:
            assert v is not None
            return cosine_scores(u, v)
        device = self.head.weight.device
        with torch.inference_mode():
            logits = self(*(None if side is None else torch.from_numpy(side).to(device) for side in (u, v)))
        found: NDArray[np.float64] = logits.double().cpu().numpy()
        return found
