"""Natural language inference: which of several relations two texts have."""

from layerprobe.metrics.influence import class_influences
from layerprobe.metrics.scores import class_scores
from layerprobe.stats.floors import class_floors
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.labels import label_cell


def _relation(cell: str, place: str) -> str:
    """Return the label in a cell; SNLI writes - where annotators did not agree on one."""
    label = label_cell(cell)
    return "" if label == "-" else label


ENTAILMENT = Kind(
    name="entailment",
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
