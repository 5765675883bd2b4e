"""Extractive question answering: which span of a context answers a question, if any does."""

from pathlib import Path

from layerprobe.metrics.answers import answer_influences, answer_scores, answer_threshold
from layerprobe.tasks.kinds.kind import Kind


def _recognises(path: Path) -> bool:
    from layerprobe.tasks.squad import is_squad  # which `--help` does without

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
    loss="layerprobe.finetuning.answers:AnswerSpan",
    zero_shot="own",
    untrained="layerprobe.scoring.answers:answer_probe",
    one_target=True,
    items="layerprobe.tasks.questions:Questions",
    loader="layerprobe.tasks.squad:load_questions",
    recognises=_recognises,
)
