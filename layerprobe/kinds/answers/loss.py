"""What extractive question answering trains: where the answer begins and ends. Knows windows, and tensors.

Source: Devlin, Chang, Lee and Toutanova 2019 (NAACL), sections 4.2 and 4.3; as run_qa of transformers does, every
window is trained on, and one without the answer on its first special token, whether or not all questions have one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Pooling
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.kinds.answers.kind import Questions
from layerprobe.kinds.answers.windows import Windows, said_of_cut_questions, windowed
from layerprobe.tasks.values import Items


class AnswerSpan(Criterion):
    """W h + b of every token: the logits of being the first and the last token of the answer, by cross entropy."""

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, 2)

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the windows of the questions, at most `max_length` tokens each."""
        assert isinstance(items, Questions)
        windows = windowed(encoder, items.questions, items.contexts, max_length=max_length)
        lengths = np.array(windows.texts.lengths, dtype=np.int64)
        return PreparedItems(
            texts=windows.texts,
            sides=(np.arange(len(lengths)),),
            tokens=lengths,
            gold=items.gold,
            targets=(windows, windows.targets(items.spans)),
        )

    @classmethod
    def cut(cls, encoder: Encoder, items: Sequence[Items], *, max_length: int) -> str:
        """Return how many answers are whole in no window, and how many questions are cut; empty where none is."""
        splits = [
            (windowed(encoder, part.questions, part.contexts, max_length=max_length), part.spans)
            for part in items
            if isinstance(part, Questions)
        ]
        return said_of_cut_questions(splits, encoder.limit(max_length))

    def read(self, states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
        """Return the logits of every token, (window, token, 2)."""
        logits: Tensor = self.head(states.float())
        return logits

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean cross entropy of first and last token, over a window's own tokens."""
        lengths = torch.from_numpy(items.tokens[rows]).to(states.device)
        beyond = torch.arange(states.shape[1], device=states.device) >= lengths[:, None]
        logits = states.masked_fill(beyond[:, :, None], -torch.inf)
        return F.cross_entropy(logits, torch.from_numpy(items.targets[1][rows]).to(states.device))

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the best span of every question, its score and that of no answer, (question, 4)."""
        windows: Windows = items.targets[0]
        return windows.spans(states)
