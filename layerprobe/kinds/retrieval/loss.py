"""What queries with documents train: a loss of cosines. Knows items as token ids, and tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from layerprobe.encoders.encoder import Encoder
from layerprobe.errors import DataError
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.kinds.retrieval.items import RetrievalItems
from layerprobe.kinds.retrieval.metrics import closest_documents
from layerprobe.tasks.values import Items

SCALE = 20.0
"""Of cosines as logits, as in sentence-transformers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchedRows:
    """Which texts are queries and which documents."""

    queries: NDArray[np.int64]
    """(query,) rows of the texts."""
    documents: NDArray[np.int64]
    """(document,) rows of the texts, those first that come first where cosines are equal."""
    itself: NDArray[np.int64]
    """(query,) the document that is the query itself and not ranked, or -1."""


class MultipleNegatives(Criterion):
    """Each query's own document among all documents of the step: cross entropy of 20 times their cosines.

    The documents of the step are the positives of all its examples and, where there are any, their hard negatives. As
    in sentence-transformers, another positive of the same query counts as a negative where it is in the same step.

    Source: Henderson et al. 2017 (arXiv 1705.00652); `MultipleNegativesRankingLoss` of sentence-transformers.
    """

    whole_batch: ClassVar[bool] = True

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return queries and documents as token ids; an example is a query with a positive, and its negatives."""
        assert isinstance(items, RetrievalItems)
        texts = items.texts
        row = {text: i for i, text in enumerate(texts)}
        queries, documents = (
            np.array([row[text] for text in side], dtype=np.int64) for side in (items.query_texts, items.document_texts)
        )
        tokenized = encoder.tokenize(texts, max_length=max_length)
        # a split that is only scored has none
        examples = np.array(items.examples or np.zeros((0, 2)), dtype=np.int64)
        sides = (queries[examples[:, 0]], *documents[examples[:, 1:]].T)
        longest = np.max([np.array(tokenized.lengths)[side] for side in sides], axis=0)
        searched = SearchedRows(queries=queries, documents=documents, itself=np.array(items.own, dtype=np.int64))
        return PreparedItems(
            texts=tokenized, sides=sides, tokens=len(sides) * longest, gold=items.gold, targets=searched
        )

    @classmethod
    def check_batch(cls, items: PreparedItems, batch_size: int) -> None:
        """Raise DataError where there are no examples, or a step has a single document: nothing to tell it from."""
        if not len(items.sides[0]):
            raise DataError("expected queries with documents to train on in the train split, got none")
        if batch_size == 1 and len(items.sides) == 2:
            raise DataError(
                "expected at least two examples a step, whose documents are each other's negatives, got a batch size "
                "of 1: give a larger one, or hard negatives"
            )

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean over queries of -log softmax(20 cos(query, documents)) at their own documents."""
        units = F.normalize(states, dim=1)
        scores = SCALE * units[: len(rows)] @ units[len(rows) :].T
        return F.cross_entropy(scores, torch.arange(len(rows), device=states.device))

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the closest documents of every query with their cosines, see `closest_documents`."""
        searched: SearchedRows = items.targets
        return closest_documents(
            np.asarray(states), searched.queries, searched.documents, searched.itself, name="the embeddings"
        )
