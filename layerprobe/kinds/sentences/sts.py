"""Semantic textual similarity: how similar two texts are."""

from collections.abc import Set as AbstractSet

from layerprobe.metrics.influence import correlation_influences
from layerprobe.metrics.scores import correlations
from layerprobe.stats.floors import RANDOM_ORDER, zero_floors
from layerprobe.tasks.kind import LABEL_COLUMNS, Kind
from layerprobe.tasks.labels import is_binary
from layerprobe.tasks.scores import is_number

SCORE_COLUMNS = (
    "score",
    "similarity",
    "similarityscore",
    "relatednessscore",
    "relatedness",
    "label",
    "labels",
    "gold",
    "goldscore",
    "goldlabel",
    "quality",
    "simlex999",
)


def _are_scores(cells: AbstractSet[str]) -> bool:
    return not is_binary(cells) and (not cells or any(map(is_number, cells)))


STS = Kind(
    name="sts",
    pairs=True,
    labelled=False,
    metrics=("spearman", "pearson"),
    score=correlations,
    influences=correlation_influences,
    loss="layerprobe.finetuning.losses:CosineScore",
    zero_shot="cosine",
    probe="layerprobe.scoring.probes:RIDGE",
    target_columns=(*SCORE_COLUMNS, *LABEL_COLUMNS),
    detects=_are_scores,
    averages="values",
    merged="layerprobe.kinds.sentences.word_similarity:load_word_similarity",
    floors=lambda items: zero_floors("spearman", "pearson", by=RANDOM_ORDER),
)
