"""Losses of fine-tuning, with a head if needed. Knows items as token ids, and tensors.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3 (STSB) and appendix (MRPC, SICK).
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.batching import Batch, ModelInputs, pool
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Pooling
from layerprobe.metrics.scores import cosine_scores
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Items, Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedItems:
    """The items of a split as token ids, and as training examples of a criterion, usually one per item."""

    texts: ModelInputs
    """The distinct texts."""
    sides: tuple[NDArray[np.int64], ...]
    """(example,) rows in `texts` of the first texts, of the second texts, and so on."""
    tokens: NDArray[np.int64]
    """(example,) number of tokens of the example's texts, padded to the longest one."""
    gold: Any
    """Gold values to score outputs against, see `Items.gold`."""
    targets: Any
    """(example,) or (example, ...) training targets, in the form of the criterion."""

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.tokens)


def prepared_sides(
    encoder: Encoder, items: Items, *, max_length: int, sides: Sequence[Sequence[str]] | None = None
) -> PreparedItems:
    """Tokenise the distinct texts of items once for all epochs; an example has one text of each side."""
    texts = items.texts
    row = {text: i for i, text in enumerate(texts)}
    tokenized = encoder.tokenize(texts, max_length=max_length)
    rows = tuple(np.array([row[text] for text in side], dtype=np.int64) for side in sides or items.sides)
    lengths = np.array(tokenized.lengths)
    longest = np.max([lengths[side] for side in rows], axis=0)
    return PreparedItems(texts=tokenized, sides=rows, tokens=len(rows) * longest, gold=items.gold, targets=items.gold)


def pooled(states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """Return the pooled embeddings, (text, width) float32, of (text, token, width) states of a pass."""
    return pool(states, batch["attention_mask"], pooling)


class Criterion(nn.Module, abc.ABC):
    """The loss of examples and the outputs for items, computed from the token states of a layer.

    Its parameters, if any, are those of a head. It is made with the `width` of the states and the number of classes,
    `n_labels`, 0 for a task without classes.
    """

    whole_batch: ClassVar[bool] = False
    """Whether the loss of an example depends on the others of its step, so that it is not a mean over groups.

    `read` then returns (text, width), and may be called twice for a text.
    """

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__()

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the items as token ids, at most `max_length` per text."""
        return prepared_sides(encoder, items, max_length=max_length)

    @classmethod
    def cut(cls, encoder: Encoder, items: Sequence[Items], *, max_length: int) -> str:
        """Return a line on the texts that are truncated at `max_length` tokens; empty if none is."""
        texts = list(dict.fromkeys(text for part in items for text in part.texts))
        n_cut = encoder.tokenize(texts, max_length=max_length).n_truncated
        limit = encoder.limit(max_length)
        return f"{n_cut} of {len(texts)} texts were cut at {limit} tokens in fine-tuning" if n_cut else ""

    @classmethod
    def check_batch(cls, items: PreparedItems, batch_size: int) -> None:
        """Raise DataError if nothing can be learnt with this batch size; by default any size works."""

    def read(self, states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
        """Return the values of each text of a pass: by default its pooled embedding, (text, width).

        Values per token are (text, token, ...); outside a loss they are cut to the text's own tokens.

        Args:
            states: (text, token, width) states of the layer.
            batch: Input of the encoder, with the attention mask.
            pooling: Pooling of the tokens of a text.
        """
        return pooled(states, batch, pooling)

    @abc.abstractmethod
    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of the examples `rows`.

        Args:
            states: Output of `read` for their texts: first side, then second side, and so on.
            items: Items of the examples.
            rows: (example,) numbers of the examples.
        """

    @abc.abstractmethod
    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the outputs for all items, (n,) or (n, ...), for the kind's `score`.

        Args:
            states: Output of `read` for every text of `items`: (text, ...), or one (token, ...) for each text.
            items: Items to score.

        Raises:
            DataError: If an item has no output, for example because an embedding has no cosine.
        """


class Loss(Criterion):
    """A criterion on embeddings of `width` features, for kinds whose items are texts or pairs with a number each.

    `n_labels` is the number of classes, 0 if targets are scores.
    """

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of examples, whose embeddings are (side * example, width)."""
        u, v = states[: len(rows)], states[len(rows) :] if len(items.sides) == 2 else None
        targets = torch.from_numpy(items.targets[rows]).to(states.device, torch.float32)
        return self.loss(self(u, v), targets)

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return `outputs` of the embeddings of all items."""
        embeddings = np.asarray(states)
        u, *v = (embeddings[side] for side in items.sides)
        return self.outputs(u, v[0] if v else None)

    @abc.abstractmethod
    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Return the outputs, (n,) or (n, classes), for (n, width) first texts and, for pairs, second texts."""

    @abc.abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss for (n,) float targets: gold scores or class numbers."""

    @torch.inference_mode()
    def outputs(self, u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Return the outputs for arrays; DataError if an embedding has no cosine."""
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        outputs = self(*(None if side is None else torch.from_numpy(side).to(device) for side in (u, v)))
        return outputs.cpu().double().numpy()


class CosineScore(Loss):
    """cos(u, v), trained on its squared error against the gold score of 0 .. 1."""

    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Return the cosines, (n,)."""
        assert v is not None
        return F.cosine_similarity(u, v)

    def outputs(self, u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Return the cosines for arrays, exact to float64; DataError if an embedding has none."""
        assert v is not None
        return cosine_scores(u, v)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(outputs, targets)


class CosineDecision(CosineScore):
    """cos(u, v) as a logit, trained on binary cross entropy."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean binary cross entropy."""
        return F.binary_cross_entropy_with_logits(outputs, targets)


class TextValue(Loss):
    """w u + b, trained on its squared error against the value scaled to 0 .. 1."""

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, 1)

    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Return the values, (n,)."""
        return self.head(u)[:, 0]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(outputs, targets)


class TextClasses(Loss):
    """W u + b, trained on cross entropy."""

    parts = 1
    """Number of head features, in multiples of the width."""

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(self.parts * width, n_labels)

    def forward(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Return the logits, (n, classes)."""
        return self.head(u if v is None else torch.cat([u, v, (u - v).abs()], dim=1))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy."""
        return F.cross_entropy(outputs, targets.long())


class PairClasses(TextClasses):
    """W (u, v, |u - v|) + b, trained on cross entropy."""

    parts = 3


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


def criterion_of(task: Task, *, width: int) -> Criterion:
    """Return the criterion of a task, with a new head."""
    return KINDS[task.kind].learning().loss(width=width, n_labels=len(task.labels))
