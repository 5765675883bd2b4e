"""Training of retrieval, and scores of every layer without fine-tuning."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from layerprobe.context import EMBEDDED, current, part, report
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import Resolved
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract_items
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.kinds.retrieval import RetrievalItems, closest_documents, listed_metrics
from layerprobe.metrics.names import RETRIEVAL_METRICS
from layerprobe.scoring.score import layer_scores, naming_layer
from layerprobe.scoring.values import LayerScores
from layerprobe.tasks.evaluation import Evaluation, RowsOf, evaluate_outputs
from layerprobe.tasks.values import Items, Task, TextSplit

SCALE = 20.0
"""Scale of cosines as logits, as in sentence-transformers."""


SearchedRows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""(query,) and (document,) rows of the texts, documents in the order of ties, and for each query the document that is
the query itself and not ranked, or -1."""


class MultipleNegatives(Criterion):
    """Each query's own document among all documents of the step: cross entropy of 20 times their cosines.

    The documents of the step are the positives of all its examples and their hard negatives, if any. As
    in sentence-transformers, another positive of the same query counts as a negative if it is in the same step.

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
        # a split that is only scored has no examples
        examples = np.array(items.examples or np.zeros((0, 2)), dtype=np.int64)
        sides = (queries[examples[:, 0]], *documents[examples[:, 1:]].T)
        longest = np.max([np.array(tokenized.lengths)[side] for side in sides], axis=0)
        searched: SearchedRows = queries, documents, np.array(items.own, dtype=np.int64)
        return PreparedItems(
            texts=tokenized, sides=sides, tokens=len(sides) * longest, gold=items.gold, targets=searched
        )

    @classmethod
    def check_batch(cls, items: PreparedItems, batch_size: int) -> None:
        """Raise DataError if there are no examples, or a step has a single document, so that nothing is learnt."""
        if not len(items.sides[0]):
            raise DataError("expected queries with documents to train on in the train split, got none")
        if batch_size == 1 and len(items.sides) == 2:
            raise DataError(
                "expected at least two examples per step, whose documents are each other's negatives, got a batch size "
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
        return closest_documents(np.asarray(states), *searched, name="the embeddings")


def untrained_retrieval(checkpoint: Resolved, task: Task, *, split: TextSplit) -> LayerScores:
    """Return the retrieval scores of every layer on a split, with the scores of each query."""
    with part(start=0, share=EMBEDDED, whole=1):
        items, embeddings = extract_items(checkpoint, cast(RetrievalItems, task.split(split)), task=task)
    by_layer, by_query = list[Evaluation](), list[dict[str, NDArray[np.float64]]]()
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            outputs = closest(embeddings.measured(layer), embeddings.rows, items)
            by_layer.append(evaluate_outputs(task.kind, outputs, items.gold))
            by_query.append(listed_metrics(outputs, items.gold))
        report(f"ranking by {embeddings.model.name}", EMBEDDED + (1 - EMBEDDED) * (layer + 1) / embeddings.n_layers, 1)
    scores = layer_scores(task, split, items.ranking, by_layer, embeddings.first_layer, embeddings.collapsed)
    if not current().by_item:
        return scores
    by_item = {
        metric: tuple(tuple((100 * of_layer[metric]).tolist()) for of_layer in by_query) for metric in RETRIEVAL_METRICS
    }
    return replace(scores, by_item=by_item)


def closest(values: NDArray[np.float32], rows: RowsOf, items: RetrievalItems) -> NDArray[np.float64]:
    """Return the closest documents of every query by (text, width) embeddings, see `closest_documents`."""
    queries, documents = (rows(texts) for texts in (items.query_texts, items.document_texts))
    units = items.ranking == "cosine"
    return closest_documents(values, queries, documents, np.array(items.own), name="the embeddings", units=units)
