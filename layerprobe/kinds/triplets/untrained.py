"""Embeddings of triplets -> how often the positive is closer, layer by layer, without fine-tuning."""

import numpy as np
from numpy.typing import NDArray

from layerprobe.encoders.loading import Checkpoint
from layerprobe.extraction.embeddings import extract_split
from layerprobe.metrics.correlation import cosine_scores
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import Rows, layer_scores, naming_layer
from layerprobe.tasks.evaluation import evaluate_outputs
from layerprobe.tasks.values import Items, Task, TextSplit


def untrained_triplets(checkpoint: Checkpoint, task: Task, *, split: TextSplit) -> LayerScores:
    """Return the share of triplets whose anchor is closer to the positive, by cosine."""
    embeddings, items = extract_split(checkpoint, task, split), task.split(split)
    by_layer = []
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            outputs = triplet_outputs(embeddings.measured(layer), embeddings.rows, items)
            by_layer.append(evaluate_outputs(task.kind, outputs, items.gold))
    return layer_scores(task, split, "cosine", by_layer, embeddings.first_layer)


def triplet_outputs(values: NDArray[np.float32], rows: Rows, items: Items) -> NDArray[np.float64]:
    """Return (n,) cos(anchor, positive) - cos(anchor, negative) of (text, width) embeddings."""
    anchor, positive, negative = (values[rows(side)] for side in items.sides)
    return cosine_scores(anchor, positive) - cosine_scores(anchor, negative)
