"""Tags: one of a few for every word of a sentence, such as its part of speech."""

from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.kinds.tokens.metrics import tag_influences, tag_scores
from layerprobe.stats.floors import class_floors
from layerprobe.tasks.kind import Kind

if TYPE_CHECKING:
    from layerprobe.tasks.loading import TaskSource
    from layerprobe.tasks.values import Task

TAG_COLUMNS = ("postags", "pos", "upostags", "upos", "xpos", "tags", "labels")


def has_tags(path: Path) -> bool:
    """Return whether a file, or one of a folder, holds words with tags that are not of BIO."""
    from layerprobe.kinds.tokens.loading import cells_of
    from layerprobe.tasks.tables import CONLL_SUFFIXES

    cells, may_be_table = cells_of(path, TAG_COLUMNS)
    if not cells and path.suffix.lower() in CONLL_SUFFIXES:
        return path.is_file()  # what is wrong with it is said where it is read
    return bool(cells) and not may_be_table and not any(cell.startswith(("B-", "I-")) for cell in cells)


def load_tags(source: "TaskSource") -> "Task":
    """Load sentences with a tag a word; TaskError as `load_tagged`."""
    from layerprobe.kinds.tokens.loading import load_tagged

    return load_tagged(source, TAGS)


TAGS = Kind(
    name="tags",
    pairs=False,
    labelled=True,
    metrics=("accuracy", "macro f1"),
    score=tag_scores,
    influences=tag_influences,
    loss="layerprobe.kinds.tokens.loss:WordClasses",
    zero_shot="own",
    probe="layerprobe.scoring.probes:LOGISTIC",
    untrained="layerprobe.kinds.tokens.untrained:score_words",
    one_target=True,
    target_columns=TAG_COLUMNS,
    items="layerprobe.kinds.tokens.items:TaggedSentences",
    item="sentence",
    loader="layerprobe.kinds.tokens.tags:load_tags",
    recognises=has_tags,
    averages="probabilities",
    floors=lambda items: class_floors(items.gold.tags),
)
