"""Files with a line a question: the question, its answers, the right one marked by a star, with bars between."""

from pathlib import Path

from layerprobe.errors import TaskError
from layerprobe.tasks.rows import TaskSource
from layerprobe.tasks.splitting import split_by_ratio
from layerprobe.tasks.values import Task
from toy_choice.items import Choices


def load_choices(source: TaskSource) -> Task:
    """Load questions with answers in three splits, drawn at random."""
    rows = [line.split("|") for line in Path(source.data["train"]).read_text("utf-8").splitlines()]
    for number, (_, *answers) in enumerate(rows, 1):
        if sum(answer.startswith("*") for answer in answers) != 1:
            raise TaskError(f"{source.name}, line {number}: expected one answer marked by *, got {answers}")
    items = Choices(
        questions=tuple(question for question, *_ in rows),
        answers=tuple(tuple(answer.lstrip("*") for answer in answers) for _, *answers in rows),
        right=tuple(next(i for i, answer in enumerate(answers) if answer.startswith("*")) for _, *answers in rows),
    )
    keys = [(question,) for question in items.questions]
    train, validation, test = (
        items.take(part) for part in split_by_ratio(keys, source.ratios, seed=source.settings.split_seed)
    )
    return Task(name=source.name, kind="multiple choice", train=train, validation=validation, test=test)
