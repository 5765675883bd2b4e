"""Regression: a number that a text has, such as a rating or a price."""

from collections.abc import Set as AbstractSet

from layerprobe.kinds.sentences.sts import SCORE_COLUMNS
from layerprobe.metrics.influence import fit_influences
from layerprobe.metrics.scores import fit_scores
from layerprobe.stats.floors import NAMING_THE_MEAN, RANDOM_ORDER, zero_floors
from layerprobe.tasks.kind import LABEL_COLUMNS, Kind
from layerprobe.tasks.scores import detect_or_observe, is_number

FEW = 20
"""Distinct whole numbers that may be classes whichever they are."""


def _are_values(cells: AbstractSet[str]) -> bool:
    """Return whether cells are numbers and not those of classes: some with fractions, or many with gaps."""
    if not cells or not all(map(is_number, cells)):
        return False
    numbers = sorted(map(float, cells))
    if not all(number.is_integer() for number in numbers):  # nor is infinity, which is then refused with its line
        return True
    return len(numbers) > FEW and numbers[-1] - numbers[0] > len(numbers) - 1


REGRESSION = Kind(
    name="regression",
    pairs=False,
    labelled=False,
    metrics=("spearman", "pearson", "r2"),
    score=fit_scores,
    influences=fit_influences,
    loss="layerprobe.finetuning.losses:TextValue",
    zero_shot="probe",
    probe="layerprobe.scoring.probes:RIDGE",
    score_range=detect_or_observe,
    target_columns=(*SCORE_COLUMNS, "value", "rating", "grade", "price", *LABEL_COLUMNS),
    detects=_are_values,
    averages="values",
    floors=lambda items: {
        **zero_floors("spearman", "pearson", by=RANDOM_ORDER),
        **zero_floors("r2", by=NAMING_THE_MEAN),
    },
)
