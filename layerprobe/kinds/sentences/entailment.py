"""Natural language inference: which of several relations two texts have."""

from layerprobe.metrics.influence import class_influences
from layerprobe.metrics.scores import class_scores
from layerprobe.tasks.kind import Kind

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
    detects=lambda cells: True,  # what paraphrase and sts leave
    averages="probabilities",
)
