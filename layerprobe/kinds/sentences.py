"""Kinds of tasks whose items are texts or pairs: similarity, paraphrase, entailment, regression and classification.

Word similarity is several data sets of scored word pairs, merged into one task.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), who merge RG-65, WordSim-353 (similarity), SimLex-999 and
SimVerb-3500.
"""

import functools
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from layerprobe.errors import TaskError, option
from layerprobe.files.inputs import from_home
from layerprobe.metrics.scores import (
    best_threshold,
    class_influences,
    class_scores,
    correlation_influences,
    correlations,
    decision_influences,
    decision_scores,
    fit_influences,
    fit_scores,
)
from layerprobe.stats.floors import NAMING_THE_MEAN, RANDOM_ORDER, class_floors, decision_floors, zero_floors
from layerprobe.tasks.cells import BINARY, detect_range, is_binary, is_number, label_cell, scale
from layerprobe.tasks.explored import class_view, decision_view, score_view
from layerprobe.tasks.formats import Format, Grid, read_grid
from layerprobe.tasks.kind import LABEL_COLUMNS, Kind, learning_of
from layerprobe.tasks.loading import example_of
from layerprobe.tasks.rows import find_columns, items_of, layouts_of
from layerprobe.tasks.sources import data_files
from layerprobe.tasks.splitting import Example, parsed, task_of, with_counts
from layerprobe.tasks.values import Task

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


SHARES = (0.7, 0.15, 0.15)
"""Shares of train, validation and test."""


def load_word_similarity(
    source: str | Path,
    *,
    seed: int = 0,
    format: Format | None = None,
    skip_empty: bool = False,
) -> Task:
    """Merge files of scored word pairs into one sts task.

    The scores of each file are scaled to 0 .. 1 by its own usual range. Repeated pairs, swapped or not, are left out.
    The rest is split at random. The paper trains on it in batches of 128 for 50
    epochs.

    Args:
        source: A file, or a folder, whose data files are all used.
        seed: Seed of the split.
        format: Format of the files, if it should not be detected.
        skip_empty: Leave out rows with an empty cell; otherwise they are an error.
    """
    path, skip = from_home(source), ["skip_empty"] if skip_empty else []
    files = data_files(path) if path.is_dir() else [path]
    if not files:
        raise TaskError(f"{path} has no data file: expected files of two words and a score")
    grids = (read_grid(file, format) for file in files)
    placed = (find_columns(grid, _columns(grid), layouts_of("sts")) for grid in grids)
    read, notes, warnings = items_of(placed, example_of, item="pair", skip=skip)
    rows = list[Example]()
    for file, pairs in zip(files, read, strict=True):
        scored = parsed("sts", file.name, pairs)
        low, high = detect_range([row.score for row in scored])
        rows.extend(replace(row, score=scale(row.score, (low, high))) for row in scored)
        notes.append(f"scaled {len(scored)} scores of {file.name} from {low:g} .. {high:g} to 0 .. 1")
    distinct: dict[frozenset[str], Example] = {}
    for row in rows:
        distinct.setdefault(frozenset(row.pair), row)
    if len(distinct) < len(rows):
        notes.append(f"left out {len(rows) - len(distinct)} of {len(rows)} repeated pairs")
    task = task_of(
        str(source),
        "sts",
        {"train": list(distinct.values())},
        ratios=SHARES,
        seed=seed,
        score_range=(0.0, 1.0),
        notes=notes,
        warnings=warnings,
    )
    return with_counts(replace(task, score_range=None, notes=task.notes[:-1]))  # not of 0 .. 1 scaled to 0 .. 1


def _columns(grid: Grid) -> list[int] | None:
    """Return the first two columns of words and the only one of numbers, if a file without a header has these."""
    try:
        find_columns(grid, None, layouts_of("sts"))
    except TaskError:
        if grid.header is not None or grid.nested:
            raise
        numeric = [i for i in range(grid.width) if all(is_number(row[i]) for row in grid.rows)]
        one_word = [i for i in range(grid.width) if all(len(row[i].split()) == 1 for row in grid.rows)]
        words = [i for i in one_word if not any(is_number(row[i]) for row in grid.rows)]
        if len(numeric) == 1 and len(words) >= 2:
            return [*words[:2], numeric[0]]
        raise
    return None


STS = Kind(
    name="sts",
    view=score_view,
    pairs=True,
    labelled=False,
    metrics=("spearman", "pearson"),
    score=correlations,
    influences=correlation_influences,
    learning=learning_of("sts"),
    zero_shot="cosine",
    target_columns=(*SCORE_COLUMNS, *LABEL_COLUMNS),
    detects=lambda cells: not is_binary(cells) and (not cells or any(map(is_number, cells))),
    averages="values",
    merged=load_word_similarity,
    floors=lambda items: zero_floors("spearman", "pearson", by=RANDOM_ORDER),
)


def binary_label(cell: str, place: str) -> str:
    """Return 0 or 1; empty if the label is missing."""
    label = label_cell(cell).lower()
    if label and label not in BINARY:
        raise TaskError(
            f"{place}: expected 0 or 1 as the label of a paraphrase, got {cell[:40]!r}: fix it, or choose "
            f"{option('kind')}"
        )
    return BINARY.get(label, "")


PARAPHRASE = Kind(
    name="paraphrase",
    view=decision_view,
    pairs=True,
    labelled=True,
    metrics=("f1", "average precision", "accuracy"),
    score=decision_scores,
    influences=decision_influences,
    learning=learning_of("paraphrase"),
    zero_shot="cosine",
    threshold=best_threshold,
    classes=("0", "1"),
    read_label=binary_label,
    detects=is_binary,
    averages="values",
    floors=lambda items: decision_floors(items.gold),
)


FEW = 20
"""Largest number of distinct whole numbers that can be classes, with gaps or not."""


def _are_values(cells: AbstractSet[str]) -> bool:
    """Return whether cells are values rather than class numbers: some with fractions, or many with gaps."""
    if not cells or not all(map(is_number, cells)):
        return False
    numbers = sorted(map(float, cells))
    if not all(number.is_integer() for number in numbers):  # neither is infinity, which is refused later with its line
        return True
    return len(numbers) > FEW and numbers[-1] - numbers[0] > len(numbers) - 1


REGRESSION = Kind(
    name="regression",
    view=score_view,
    pairs=False,
    labelled=False,
    metrics=("spearman", "pearson", "r2"),
    score=fit_scores,
    influences=fit_influences,
    learning=learning_of("regression"),
    zero_shot="probe",
    score_range=functools.partial(detect_range, observe=True),
    target_columns=(*SCORE_COLUMNS, "value", "rating", "grade", "price", *LABEL_COLUMNS),
    detects=_are_values,
    averages="values",
    floors=lambda items: {
        **zero_floors("spearman", "pearson", by=RANDOM_ORDER),
        **zero_floors("r2", by=NAMING_THE_MEAN),
    },
)


CLASSIFICATION = Kind(
    name="classification",
    view=class_view,
    pairs=False,
    labelled=True,
    metrics=("accuracy", "macro f1"),
    score=class_scores,
    influences=class_influences,
    learning=learning_of("classification"),
    zero_shot="probe",
    one_target=True,
    detects=lambda cells: True,  # what other kinds leave
    averages="probabilities",
    floors=lambda items: class_floors(items.gold),
    primary_if_rare="macro f1",
)
ENTAILMENT = replace(
    CLASSIFICATION,
    name="entailment",
    pairs=True,
    metrics=("macro f1", "accuracy"),
    learning=learning_of("entailment"),
    read_label=lambda cell, place: "" if cell.strip() == "-" else label_cell(cell),  # in SNLI: annotators disagreed
    primary_if_rare=None,
)
