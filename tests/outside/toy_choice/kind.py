"""Multiple choice: which of several answers belongs to a question."""

from pathlib import Path

import numpy as np

from layerprobe.metrics.scores import mean_influences
from layerprobe.tasks.kind import Kind


def _right(outputs, gold):
    return outputs.argmax(axis=1) == gold


def _scores(outputs, gold):
    return {"accuracy": float(np.mean(_right(outputs, gold)))}


def _influences(outputs, gold):
    return {"accuracy": mean_influences(_right(outputs, gold))}


def is_choices(path: Path) -> bool:
    """Return whether a file has the ending of such questions."""
    return path.suffix == ".choices" and path.is_file()


MULTIPLE_CHOICE = Kind(
    name="multiple choice",
    pairs=False,
    labelled=False,
    item="question",
    metrics=("accuracy",),
    score=_scores,
    influences=_influences,
    loss="toy_choice.loss:RightAnswer",
    zero_shot="own",
    untrained="toy_choice.untrained:closest_answers",
    one_target=True,
    items="toy_choice.items:Choices",
    loader="toy_choice.loading:load_choices",
    recognises=is_choices,
    averages="probabilities",
)
