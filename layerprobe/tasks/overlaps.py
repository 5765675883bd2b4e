"""Items that stand in two splits: found, counted, and left out of the split that trains or chooses. Knows no models.

What spoils a score is an item that is scored and was learnt from, or chosen by: the same pair, turned round or not, the
same text, sentence, document or image, query, question with its context, or anchor with its positive, whatever their
targets, see `Items.alike`. The later of two splits keeps it: test before validation before train. Halves, which data
sets share by design (three quarters of the texts of SICK, a tenth of those of STS-B), spoil none by themselves and are
counted, see `Items.parts`.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from layerprobe.errors import TaskError, option
from layerprobe.metrics.names import Split
from layerprobe.names import counted, plural
from layerprobe.tasks.examples import MIN_EXAMPLES
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import with_all_splits
from layerprobe.tasks.values import Examples, Items, Task, check_task

logger = logging.getLogger(__name__)

RATIOS = (0.8, 0.1, 0.1)
PAIRS: tuple[tuple[Split, Split], ...] = (("validation", "test"), ("train", "test"), ("train", "validation"))
"""A split, and a later one that keeps what both have."""


def checked_task(task: object) -> Task:
    """Return a task without items that stand in two splits, where they are not to be kept; log what was left out."""
    check_task(task)
    assert isinstance(task, Task)
    if task.keep_overlaps:
        return task
    apart = without_overlaps(task)
    for warning in apart.warnings[len(task.warnings) :]:
        logger.warning("%s", warning)
    return apart


def without_overlaps(task: Task, *, ratios: Sequence[float] = RATIOS, seed: int = 0) -> Task:
    """Return a task without items that stand in a later split too, and with warnings that count them.

    Where too few are left of the validation split, it is drawn from the train split, by the ratios and the seed, as
    one that is missing is. A task that is to keep them has the warnings alone.
    """
    unit, items = KINDS[task.kind].unit, {split: task.split(split) for split in ("train", "validation", "test")}
    warnings = []
    for split, later in PAIRS:
        others = set(items[later].alike)
        rows = [row for row, key in enumerate(items[split].alike) if key not in others]
        if n := len(items[split]) - len(rows):
            these = f"{n:,} of {counted(len(items[split]), unit)} of the {split} split"
            where = f"{'is' if n == 1 else 'are'} in the {later} split too"
            if task.keep_overlaps:
                warnings.append(f"{these} {where} and kept: scores are spoilt")
            else:
                hint = "" if warnings else f"; {option('keep_overlaps', True)} keeps such {plural(unit)}"
                warnings.append(f"left out {these} that {where}{hint}")
                items[split] = items[split].take(rows)
    if not warnings or task.keep_overlaps:
        return replace(task, warnings=(*task.warnings, *warnings)) if warnings else task
    if len(items["validation"]) < len(task.validation) and _too_few(items["validation"]):
        del items["validation"]
        items, drawn = with_all_splits(items, items["train"].alike, ratios, seed=seed, unit=unit)
        warnings.append(f"too few are left to validate on: {drawn[0]}")
    for split in ("train", "validation"):
        _check_left(task, split, items[split])
    return replace(task, train=items["train"], validation=items["validation"], warnings=(*task.warnings, *warnings))


def spoilt_items(task: Task) -> int:
    """Return how many items to train on and to choose by stand in a later split too, and spoil its scores."""
    test, choosing = set(task.test.alike), set(task.validation.alike)
    return sum(key in test for key in task.validation.alike) + sum(key in test | choosing for key in task.train.alike)


def with_counts(task: Task) -> Task:
    """Return a task whose warnings also say how many halves of items its splits have in common."""
    warnings, unit = [], KINDS[task.kind].unit
    for split, later in PAIRS:
        (name, ours), (_, theirs) = task.split(later).parts, task.split(split).parts
        if n := len(set(ours) & set(theirs)):
            of = f"{n:,} of {counted(len(set(ours)), name)} of the {later} split"
            other = "" if task.keep_overlaps else f" (other {plural(unit)})"
            warnings.append(f"{of} are in the {split} split too{other}")
    return replace(task, warnings=(*task.warnings, *warnings)) if warnings else task


def _too_few(items: Items) -> bool:
    return len(items) < MIN_EXAMPLES or items.one_target


def _check_left(task: Task, split: Split, left: Items) -> None:
    """Raise TaskError if a split, after what others have was left out, has too few items, or no longer all classes."""
    before, lost = task.split(split), ""
    if task.labels and isinstance(left, Examples) and isinstance(before, Examples) and split == "train":
        lost = next((task.labels[int(target)] for target in {*before.targets} - {*left.targets}), "")
    if _too_few(left) or lost:
        has = f"{len(left)} {plural(KINDS[task.kind].unit)}" + (f" and none of class {lost[:40]!r}" if lost else "")
        raise TaskError(
            f"without what other splits have too, the {split} split has {has}, expected at least {MIN_EXAMPLES} with "
            f"different targets: give another {split} file, or keep all with {option('keep_overlaps', True)}"
        )
