"""Classification: the class of one text."""

from layerprobe.metrics.influence import class_influences
from layerprobe.metrics.scores import class_scores
from layerprobe.stats.floors import class_floors
from layerprobe.tasks.kind import Kind

CLASSIFICATION = Kind(
    name="classification",
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
