"""Paraphrase: whether two texts say the same, 0 or 1."""

from layerprobe.errors import TaskError
from layerprobe.metrics.influence import decision_influences
from layerprobe.metrics.scores import best_threshold, decision_scores
from layerprobe.stats.floors import decision_floors
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.labels import BINARY, is_binary, label_cell


def binary_label(cell: str, place: str) -> str:
    """Return 0 or 1; empty where the label is missing."""
    label = label_cell(cell).lower()
    if label and label not in BINARY:
        raise TaskError(
            f"{place}: expected 0 or 1 as the label of a paraphrase, got {cell[:40]!r}: mend it, or choose --kind"
        )
    return BINARY.get(label, "")


PARAPHRASE = Kind(
    name="paraphrase",
    pairs=True,
    labelled=True,
    metrics=("f1", "average precision", "accuracy"),
    score=decision_scores,
    influences=decision_influences,
    loss="layerprobe.finetuning.losses:CosineDecision",
    zero_shot="cosine",
    threshold=best_threshold,
    classes=("0", "1"),
    read_label=binary_label,
    detects=is_binary,
    averages="values",
    floors=lambda items: decision_floors(items.gold),
)
