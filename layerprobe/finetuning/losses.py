"""Losses of fine-tuning, with a head where one is needed. Knows items as token ids, and tensors.

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

from layerprobe.encoders.batching import Batch, Prepared, pool
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Pooling
from layerprobe.metrics.scores import cosine_scores
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Items, Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedItems:
    """The items of a split as token ids, and as what a criterion trains on: examples, usually one an item."""

    texts: Prepared
    """The distinct ones."""
    sides: tuple[NDArray[np.int64], ...]
    """(example,) each: rows in `texts` of the first texts, the second ones, and so on."""
    tokens: NDArray[np.int64]
    """(example,): the tokens of its texts, padded to the longest one."""
    gold: Any
    """What outputs for the items are scored against, see `Items.gold`."""
    targets: Any
    """(example,) or (example, ...): what is trained, as the criterion has it."""

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.tokens)


def prepared_sides(
    encoder: Encoder, items: Items, *, max_length: int, sides: Sequence[Sequence[str]] | None = None
) -> PreparedItems:
    """Tokenise the distinct texts of items once, for all epochs; an example has a text of each side."""
    texts = items.texts
    row = {text: i for i, text in enumerate(texts)}
    tokenized = encoder.tokenize(texts, max_length=max_length)
    rows = tuple(np.array([row[text] for text in side], dtype=np.int64) for side in sides or items.sides)
    lengths = np.array(tokenized.lengths)
    longest = np.max([lengths[side] for side in rows], axis=0)
    return PreparedItems(texts=tokenized, sides=rows, tokens=len(rows) * longest, gold=items.gold, targets=items.gold)


def pooled(states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """Return the pooled embeddings of a pass, (text, width) float32, of (text, token, width) states."""
    return pool(states, batch["attention_mask"], pooling)


class Criterion(nn.Module, abc.ABC):
    """Token states of a layer -> what is kept of each text -> the loss of examples, and the outputs for items.

    Its parameters, where it has any, are those of a head. It is made with the `width` of the states and the number of
    classes, `n_labels`, 0 where the task has none.
    """

    whole_batch: ClassVar[bool] = False
    """Whether the loss of an example depends on the others of its step, so that it is no mean over groups of them.

    `read` then returns (text, width), and may be asked twice for a text.
    """

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__()

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the items as token ids, at most `max_length` a text."""
        return prepared_sides(encoder, items, max_length=max_length)

    @classmethod
    def cut(cls, encoder: Encoder, items: Sequence[Items], *, max_length: int) -> str:
        """Return what of the splits of a task is cut at `max_length` tokens, in a line; empty where nothing is."""
        texts = list(dict.fromkeys(text for part in items for text in part.texts))
        n_cut = encoder.tokenize(texts, max_length=max_length).n_truncated
        limit = encoder.limit(max_length)
        return f"{n_cut} of {len(texts)} texts were cut at {limit} tokens in fine-tuning" if n_cut else ""

    @classmethod
    def check_batch(cls, items: PreparedItems, batch_size: int) -> None:
        """Raise DataError if nothing can be learnt from so many examples a step; by default it always can."""

    def read(self, states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
        """Return what is kept of each text of a pass: by default its pooled embedding, (text, width).

        What has a value for every token is (text, token, ...); outside of a loss it is cut to the text's own tokens.

        Args:
            states: (text, token, width) of the layer.
            batch: What the encoder read, with the attention mask.
            pooling: How a text has one embedding.
        """
        return pooled(states, batch, pooling)

    @abc.abstractmethod
    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of the examples `rows`.

        Args:
            states: What `read` returned of their texts: those of the first side, then those of the second, and so on.
            items: Of which the examples are.
            rows: (example,) numbers.
        """

    @abc.abstractmethod
    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the outputs for all items, (n,) or (n, ...), as the kind's `score` takes them.

        Args:
            states: What `read` returned of every text of `items`: (text, ...), or one (token, ...) for each text.
            items: To be scored.

        Raises:
            DataError: If there is no output for one, as where an embedding has no cosine.
        """


class Loss(Criterion):
    """Embeddings of `width` features -> outputs -> loss, for kinds whose items are texts or pairs with a number each.

    `n_labels` is the number of classes, 0 where targets are scores.
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
        """Return the outputs, (n,) or (n, classes), for (n, width) of first texts and, of pairs, second ones."""

    @abc.abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of (n,) float targets: gold scores or class numbers."""

    @torch.inference_mode()
    def outputs(self, u: NDArray[np.float32], v: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Return the outputs for arrays; DataError if an embedding has no cosine."""
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        outputs = self(*(None if side is None else torch.from_numpy(side).to(device) for side in (u, v)))
        array: NDArray[np.float64] = outputs.cpu().double().numpy()
        return array


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
        values: Tensor = self.head(u)[:, 0]
        return values

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(outputs, targets)


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


def criterion_of(task: Task, *, width: int) -> Criterion:
    """Return what a task trains, with a fresh head; DataError if what its kind names cannot be loaded."""
    criterion: Criterion = KINDS[task.kind].load("loss")(width=width, n_labels=len(task.labels))
    return criterion
