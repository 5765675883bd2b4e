"""Cosines of questions and answers as they are, layer by layer."""

import numpy as np

from layerprobe.extraction.embeddings import extract_split
from layerprobe.metrics.scores import cosine_scores
from layerprobe.scoring.score import layer_scores, naming_layer
from layerprobe.tasks.evaluation import evaluate_outputs


def closest_answers(checkpoint, task, *, split):
    """Return how often the right answer is the closest to its question."""
    embeddings, items = extract_split(checkpoint, task, split), task.split(split)
    rows = [embeddings.rows(side) for side in items.sides]
    by_layer = []
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            question, *answers = (embeddings.measured(layer)[side] for side in rows)
            outputs = np.stack([cosine_scores(question, answer) for answer in answers], axis=1)
            by_layer.append(evaluate_outputs(task.kind, outputs, items.gold))
    return layer_scores(task, split, "cosine", by_layer, embeddings.first_layer)
