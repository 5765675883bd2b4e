"""Which sentences of a document are its summary."""

from layerprobe.metrics.rouge import ROUGE
from layerprobe.tasks.kinds.kind import Kind
from layerprobe.tasks.loading import TaskSource
from layerprobe.tasks.summaries import is_summaries, load_summaries, summary_influences, summary_scores
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
    loss="layerprobe.finetuning.sentences:SentenceScorer",
    zero_shot="own",
    untrained="layerprobe.scoring.summaries:central_sentences",
    one_target=True,
    items="layerprobe.tasks.summaries:SummaryItems",
    item="document",
    loader="layerprobe.tasks.kinds.summarization:load",
    recognises=is_summaries,
    averages="values",
)
