"""Extractive question answering: which span of a context answers a question, if any does."""

from pathlib import Path

from layerprobe.kinds.answers.metrics import answer_floors, answer_influences, answer_scores, answer_threshold
from layerprobe.tasks.kind import Kind


def _recognises(path: Path) -> bool:
    from layerprobe.kinds.answers.loading import is_squad  # which `--help` does without

    return is_squad(path)


QUESTION_ANSWERING = Kind(
    name="question answering",
    pairs=True,
    labelled=False,
    item="question",
    metrics=("f1", "exact match"),
    score=answer_scores,
    influences=answer_influences,
    threshold=answer_threshold,
    loss="layerprobe.kinds.answers.loss:AnswerSpan",
    zero_shot="own",
    untrained="layerprobe.kinds.answers.untrained:answer_probe",
    one_target=True,
    items="layerprobe.kinds.answers.items:Questions",
    loader="layerprobe.kinds.answers.loading:load_questions",
    recognises=_recognises,
    floors=answer_floors,
)
