"""Which sentences of a document are its summary."""

from layerprobe.kinds.summaries.items import summary_influences, summary_scores
from layerprobe.kinds.summaries.loading import is_summaries, load_summaries
from layerprobe.kinds.summaries.metrics import ROUGE
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.loading import TaskSource
from layerprobe.tasks.values import Task

NAME = "summarization"
PRIMARY = "rouge-l"
"""Defined, and seldom 0, for summaries as short as a title too; papers report all three."""


def load(source: TaskSource) -> Task:
    """Return documents with summaries as a task, see `load_summaries`."""
    return load_summaries(source, kind=NAME)


SUMMARIZATION = Kind(
    name=NAME,
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
    loader="layerprobe.kinds.summaries.kind:load",
    recognises=is_summaries,
    averages="values",
)
