"""Frozen embeddings of queries and documents -> scores of every layer, as of any other kind of task."""

import numpy as np

from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.options import Options
from layerprobe.extraction.embeddings import extract_split
from layerprobe.kinds.retrieval.items import RetrievalItems
from layerprobe.kinds.retrieval.metrics import closest_documents
from layerprobe.metrics.names import Split
from layerprobe.progress import Progress
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import layer_scores, naming_layer
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.values import Task


def untrained_retrieval(
    checkpoint: Checkpoint, task: Task, *, split: Split, options: Options, progress: Progress
) -> LayerScores:
    """Return how well every layer finds the relevant documents of a split's queries, by cosine.

    The scores are those of `evaluate_retrieval`.

    Raises:
        DataError: If a layer has an embedding that is not finite or has no direction.
    """
    embeddings, items = extract_split(checkpoint, task, split, options=options, progress=progress), task.split(split)
    assert isinstance(items, RetrievalItems)
    queries, documents = (embeddings.rows(texts) for texts in (items.query_texts, items.document_texts))
    own, by_layer = np.array(items.own, dtype=np.int64), []
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            name = f"layer {layer}"
            outputs = closest_documents(embeddings.measured(layer), queries, documents, own, name=name)
            by_layer.append(evaluate_outputs(task.kind, outputs, items.gold))
        progress(f"ranking by {embeddings.model.name}", layer + 1, embeddings.n_layers)
    return layer_scores(task, split, "cosine", by_layer, embeddings.first_layer)
