"""Embeddings of triplets -> how often the positive is closer, layer by layer, without fine-tuning."""

from layerprobe.encoders.loading import Checkpoint
from layerprobe.extraction.embeddings import extract_split
from layerprobe.metrics.correlation import cosine_scores
from layerprobe.scoring.values import LayerScores
from layerprobe.scoring.zero_shot import LayerOutputs, naming_layer
from layerprobe.tasks.values import Task, TextSplit


def untrained_triplets(checkpoint: Checkpoint, task: Task, *, split: TextSplit) -> LayerScores:
    """Return the share of triplets whose anchor is closer to the positive, by cosine, see `triplet_outputs`."""
    return triplet_outputs(checkpoint, task, split=split).scored(task, split)


def triplet_outputs(checkpoint: Checkpoint, task: Task, *, split: TextSplit) -> LayerOutputs:
    """Return by how much the anchor is closer to the positive than to the negative, by cosine.

    Raises:
        DataError: If a layer has an embedding without a direction.
    """
    embeddings, items = extract_split(checkpoint, task, split), task.split(split)
    rows = [embeddings.rows(side) for side in items.sides]
    by_layer = []
    for layer in range(embeddings.n_layers):
        with naming_layer(layer, embeddings):
            values = embeddings.measured(layer)
            anchor, positive, negative = (values[side] for side in rows)
            by_layer.append(cosine_scores(anchor, positive) - cosine_scores(anchor, negative))
    return LayerOutputs(
        by_layer=by_layer,
        gold=items.gold,
        thresholds=[None] * len(by_layer),
        method="cosine",
        first_layer=embeddings.first_layer,
    )
