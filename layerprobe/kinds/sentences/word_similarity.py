"""Word similarity: several data sets of scored word pairs, merged into one task.

Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), who merge RG-65, WordSim-353 (similarity), SimLex-999 and
SimVerb-3500.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from layerprobe.errors import TaskError
from layerprobe.files.atomic import from_home
from layerprobe.kinds.sentences.kind import STS
from layerprobe.tasks.cells import LeftOut, check_left_out, detect_range, is_number, scale
from layerprobe.tasks.columns import task_columns
from layerprobe.tasks.examples import Row, example_of, items_of, parsed, task_of
from layerprobe.tasks.formats import Format
from layerprobe.tasks.sources import data_files
from layerprobe.tasks.splitting import with_counts
from layerprobe.tasks.tables import Table, read_table
from layerprobe.tasks.values import Task

SHARES = (0.7, 0.15, 0.15)
"""Of train, validation and test."""


def load_word_similarity(
    source: str | Path | Sequence[str | Path],
    *,
    seed: int = 0,
    format: Format | None = None,
    skip_empty: bool = False,
) -> Task:
    """Merge files of scored word pairs into one sts task.

    The scores of each file are scaled to 0 .. 1 by its own usual range. Of pairs that come again, swapped or
    not, the first one stays. The rest is split at random. In the paper it is trained on in batches of 128 for 50
    epochs.

    Args:
        source: A folder, all of whose data files are taken, or the files.
        seed: Of the split.
        format: How the files are written, where that is not to be found out.
        skip_empty: Leave rows with an empty cell out; otherwise they are an error.
    """
    notes, warnings, changed, left_out = list[str](), list[str](), list[str](), list[LeftOut]()
    read: dict[Path, list[Row]] = {}
    for file in _files(source):
        table = read_table(file, format)
        table, columns = task_columns(table, _columns(table), STS.name)
        read[file], left, remarks = items_of(table, columns, example_of, item="pair")
        notes += table.notes
        warnings += table.warnings
        changed += remarks
        left_out.append(left)
    warnings += [*check_left_out(left_out, skip=["skip_empty"] if skip_empty else [], item="pair"), *changed]
    rows = list[Row]()
    for file, pairs in read.items():
        scored = parsed(STS.name, file.name, pairs)
        low, high = detect_range([row.score for row in scored])
        rows.extend(replace(row, score=scale(row.score, (low, high))) for row in scored)
        notes.append(f"scaled {len(scored)} scores of {file.name} from {low:g} .. {high:g} to 0 .. 1")
    distinct: dict[frozenset[str], Row] = {}
    for row in rows:
        distinct.setdefault(frozenset(row.pair), row)
    if len(distinct) < len(rows):
        notes.append(f"left out {len(rows) - len(distinct)} of {len(rows)} pairs that had come before")
    task = task_of(
        str(source) if isinstance(source, (str, Path)) else ", ".join(map(str, source)),
        STS.name,
        {"train": list(distinct.values())},
        ratios=SHARES,
        seed=seed,
        score_range=(0.0, 1.0),
        notes=notes,
        warnings=warnings,
    )
    return with_counts(replace(task, score_range=None, notes=task.notes[:-1]))  # not of 0 .. 1 scaled to 0 .. 1


def _files(source: str | Path | Sequence[str | Path]) -> list[Path]:
    if not isinstance(source, (str, Path)):
        return [from_home(path) for path in source]
    path = from_home(source)
    if not path.is_dir():
        return [path]
    if not (files := data_files(path)):
        raise TaskError(f"{path} has no data file: expected files of two words and a score")
    return files


def _columns(table: Table) -> list[int] | None:
    """Return the first two columns of words and the only one of numbers, where a file without a header has these."""
    try:
        task_columns(table, None, STS.name)
    except TaskError:
        if table.header is not None or table.nested:
            raise
        numeric = [i for i in range(table.width) if all(is_number(row[i]) for row in table.rows)]
        one_word = [i for i in range(table.width) if all(len(row[i].split()) == 1 for row in table.rows)]
        words = [i for i in one_word if not any(is_number(row[i]) for row in table.rows)]
        if len(numeric) == 1 and len(words) >= 2:
            return [*words[:2], numeric[0]]
        raise
    return None
