"""Kinds of tasks whose items are texts or pairs: similarity, paraphrase, entailment, regression and classification."""

from collections.abc import Set as AbstractSet

from layerprobe.errors import TaskError, option
from layerprobe.metrics.influence import class_influences, correlation_influences, decision_influences, fit_influences
from layerprobe.metrics.scores import best_threshold, class_scores, correlations, decision_scores, fit_scores
from layerprobe.stats.floors import NAMING_THE_MEAN, RANDOM_ORDER, class_floors, decision_floors, zero_floors
from layerprobe.tasks.cells import BINARY, detect_or_observe, is_binary, is_number, label_cell
from layerprobe.tasks.kind import LABEL_COLUMNS, Kind

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


STS = Kind(
    name="sts",
    view="layerprobe.tasks.explored:score_view",
    pairs=True,
    labelled=False,
    metrics=("spearman", "pearson"),
    score=correlations,
    influences=correlation_influences,
    loss="layerprobe.finetuning.losses:CosineScore",
    zero_shot="cosine",
    probe="layerprobe.scoring.probes:RIDGE",
    target_columns=(*SCORE_COLUMNS, *LABEL_COLUMNS),
    detects=lambda cells: not is_binary(cells) and (not cells or any(map(is_number, cells))),
    averages="values",
    merged="layerprobe.kinds.sentences.word_similarity:load_word_similarity",
    floors=lambda items: zero_floors("spearman", "pearson", by=RANDOM_ORDER),
)


def binary_label(cell: str, place: str) -> str:
    """Return 0 or 1; empty where the label is missing."""
    label = label_cell(cell).lower()
    if label and label not in BINARY:
        raise TaskError(
            f"{place}: expected 0 or 1 as the label of a paraphrase, got {cell[:40]!r}: mend it, or choose "
            f"{option('kind')}"
        )
    return BINARY.get(label, "")


PARAPHRASE = Kind(
    name="paraphrase",
    view="layerprobe.tasks.explored:decision_view",
    pairs=True,
    labelled=True,
    metrics=("f1", "average precision", "accuracy"),
    score=decision_scores,
    influences=decision_influences,
    loss="layerprobe.finetuning.losses:CosineDecision",
    zero_shot="cosine",
    threshold=best_threshold,
    classes=("0", "1"),
    read_label=binary_label,
    detects=is_binary,
    averages="values",
    floors=lambda items: decision_floors(items.gold),
)


def _relation(cell: str, place: str) -> str:
    """Return the label in a cell; SNLI writes - where annotators did not agree on one."""
    label = label_cell(cell)
    return "" if label == "-" else label


ENTAILMENT = Kind(
    name="entailment",
    view="layerprobe.tasks.explored:class_view",
    pairs=True,
    labelled=True,
    metrics=("macro f1", "accuracy"),
    score=class_scores,
    influences=class_influences,
    loss="layerprobe.finetuning.losses:PairClasses",
    zero_shot="probe",
    probe="layerprobe.scoring.probes:LOGISTIC",
    one_target=True,
    read_label=_relation,
    detects=lambda cells: True,  # what paraphrase and sts leave
    averages="probabilities",
    floors=lambda items: class_floors(items.gold),
)


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
    view="layerprobe.tasks.explored:score_view",
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


CLASSIFICATION = Kind(
    name="classification",
    view="layerprobe.tasks.explored:class_view",
    pairs=False,
    labelled=True,
    metrics=("accuracy", "macro f1"),
    score=class_scores,
    influences=class_influences,
    loss="layerprobe.finetuning.losses:TextClasses",
    zero_shot="probe",
    probe="layerprobe.scoring.probes:LOGISTIC",
    one_target=True,
    detects=lambda cells: True,
    averages="probabilities",
    floors=lambda items: class_floors(items.gold),
    primary_if_rare="macro f1",
)
