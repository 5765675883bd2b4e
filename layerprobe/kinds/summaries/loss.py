"""What is trained to choose the sentences of a summary. Knows items as token ids, and tensors.

Source: labels of a greedy oracle: Nallapati, Zhai and Zhou 2017 (AAAI); a linear layer on an encoder's sentences: Liu
and Lapata 2019 (EMNLP, BERTSUM), there with the whole document in one pass.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.encoder import Encoder
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.tasks.values import Items


class SentenceScorer(Criterion):
    """w u + b of a sentence's embedding u, trained on binary cross entropy: whether the greedy oracle has the sentence.

    An example is a sentence, an item a document. A sentence is scored by what it says, not by where it stands.
    """

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, 1)

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the sentences of all documents, one after the other, as token ids."""
        texts, gold = items.texts, items.gold
        row = {text: i for i, text in enumerate(texts)}
        tokenized = encoder.tokenize(texts, max_length=max_length)
        side = np.array([row[sentence] for sentence in gold.sentences], dtype=np.int64)
        return PreparedItems(
            texts=tokenized, sides=(side,), tokens=np.array(tokenized.lengths)[side], gold=gold, targets=gold.targets
        )

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean binary cross entropy of the sentences `rows`."""
        targets = torch.from_numpy(items.targets[rows]).to(states.device, torch.float32)
        return F.binary_cross_entropy_with_logits(self.head(states)[:, 0], targets)

    @torch.inference_mode()
    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the logits of sentences, (documents, longest document), 0 after the end of a document."""
        logits = self.head(torch.from_numpy(np.asarray(states)).to(self.head.weight.device))[:, 0]
        outputs: NDArray[np.float64] = items.gold.arranged(logits.cpu().double().numpy()[items.sides[0]])
        return outputs
