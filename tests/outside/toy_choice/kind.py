"""Multiple choice: which of several answers belongs to a question."""

from pathlib import Path

import numpy as np

from layerprobe.metrics.scores import mean_influences
from layerprobe.tasks.kind import Kind, Learning
from toy_choice.items import Choices
from toy_choice.loading import load_choices


def _right(outputs, gold):
    return outputs.argmax(axis=1) == gold


def _scores(outputs, gold):
    return {"accuracy": float(np.mean(_right(outputs, gold)))}


def _influences(outputs, gold):
    return {"accuracy": mean_influences(_right(outputs, gold))}


def is_choices(path: Path) -> bool:
    """Return whether a file has the ending of such questions."""
    return path.suffix == ".choices" and path.is_file()


def _learning():
    from toy_choice.loss import RightAnswer
    from toy_choice.untrained import closest_answers

    return Learning(loss=RightAnswer, untrained=closest_answers)


MULTIPLE_CHOICE = Kind(
    name="multiple choice",
    pairs=False,
    labelled=False,
    item="question",
    metrics=("accuracy",),
    score=_scores,
    influences=_influences,
    learning=_learning,
    zero_shot="own",
    one_target=True,
    items=Choices,
    loader=load_choices,
    recognises=is_choices,
    averages="probabilities",
)
