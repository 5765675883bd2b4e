"""Which sentences of a document are its summary."""

from layerprobe.kinds.summaries.items import summary_influences, summary_scores
from layerprobe.kinds.summaries.loading import KIND, is_summaries
from layerprobe.kinds.summaries.metrics import ROUGE
from layerprobe.tasks.kind import Kind

PRIMARY = "rouge-l"
"""Defined, and seldom 0, for summaries as short as a title too; papers report all three."""


SUMMARIZATION = Kind(
    name=KIND,
    pairs=False,
    labelled=False,
    metrics=(PRIMARY, *(name for name in ROUGE if name != PRIMARY)),
    score=summary_scores,
    influences=summary_influences,
    loss="layerprobe.kinds.summaries.loss:SentenceScorer",
    zero_shot="own",
    untrained="layerprobe.kinds.summaries.untrained:central_sentences",
    outputs="layerprobe.kinds.summaries.untrained:central",
    one_target=True,
    items="layerprobe.kinds.summaries.items:SummaryItems",
    item="document",
    loader="layerprobe.kinds.summaries.loading:load_summaries",
    recognises=is_summaries,
    averages="values",
)
