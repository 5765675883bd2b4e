"""Image classification: the class of one image."""

from pathlib import Path

from layerprobe.metrics.influence import class_influences
from layerprobe.metrics.scores import class_scores
from layerprobe.stats.floors import class_floors
from layerprobe.tasks.kind import Kind


def _recognises(path: Path) -> bool:
    from layerprobe.kinds.images.loading import recognises

    return recognises(path)


IMAGE_CLASSIFICATION = Kind(
    name="image classification",
    pairs=False,
    labelled=True,
    item="image",
    metrics=("accuracy", "macro f1"),
    score=class_scores,
    influences=class_influences,
    loss="layerprobe.finetuning.losses:TextClasses",
    zero_shot="probe",
    probe="layerprobe.scoring.probes:LOGISTIC",
    one_target=True,
    averages="probabilities",
    loader="layerprobe.kinds.images.loading:load_image_task",
    recognises=_recognises,
    unlabelled="layerprobe.kinds.images.loading:load_images",
    floors=lambda items: class_floors(items.gold),
    primary_if_rare="macro f1",
)
