"""Entities: which words of a sentence are names, and of what, by BIO tags."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.errors import TaskError
from layerprobe.kinds.tokens.metrics import entity_floors, entity_influences, entity_scores, get_entities
from layerprobe.tasks.kind import Kind

if TYPE_CHECKING:
    from layerprobe.tasks.loading import TaskSource
    from layerprobe.tasks.values import Task

BIO = re.compile(r"O|[BI]-[^\s,]+")
TAG_COLUMNS = ("nertags", "ner", "entitytags", "tags", "labels")


def bio_tag(cell: str, place: str) -> str:
    """Return a BIO tag, of several with commas between, as annotators differ, the first; empty where it is missing."""
    tags = cell.strip().split(",")
    for tag in tags if cell.strip() else ():
        if BIO.fullmatch(tag) is None:
            raise TaskError(
                f"{place}: expected O, B-TYPE or I-TYPE as the tag of a word, got {tag[:40]!r}: mend it, name the "
                "column of the tag with --columns, or choose --kind"
            )
    return tags[0]


def has_bio_tags(path: Path) -> bool:
    """Return whether a file, or one of a folder, holds words with BIO tags."""
    from layerprobe.kinds.tokens.loading import cells_of

    cells, may_be_table = cells_of(path, TAG_COLUMNS)
    begun = any(cell.startswith(("B-", "I-")) for cell in cells)
    return begun and not (may_be_table and not all(BIO.fullmatch(cell.split(",")[0]) for cell in cells))


def load_entities(source: "TaskSource") -> "Task":
    """Load sentences with BIO tags."""
    from layerprobe.kinds.tokens.loading import load_tagged

    get_entities()
    return load_tagged(source, ENTITIES)


ENTITIES = Kind(
    name="entities",
    pairs=False,
    labelled=True,
    metrics=("entity f1", "entity precision", "entity recall", "accuracy"),
    score=entity_scores,
    influences=entity_influences,
    loss="layerprobe.kinds.tokens.loss:WordClasses",
    zero_shot="own",
    probe="layerprobe.scoring.probes:LOGISTIC",
    untrained="layerprobe.kinds.tokens.untrained:score_words",
    one_target=True,
    target_columns=TAG_COLUMNS,
    read_label=bio_tag,
    items="layerprobe.kinds.tokens.items:TaggedSentences",
    item="sentence",
    loader="layerprobe.kinds.tokens.entities:load_entities",
    recognises=has_bio_tags,
    averages="probabilities",
    floors=entity_floors,
)
