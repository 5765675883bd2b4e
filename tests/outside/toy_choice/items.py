"""Questions with several answers each, of which one is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layerprobe.errors import DataError
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.values import Items


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices(Items):
    """Questions, the answers to choose from, as many for each, and which one is right."""

    questions: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    """(item, answer)."""
    right: tuple[int, ...]
    """The number of the right answer, from 0."""

    by_item = ("questions", "answers", "right")

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The questions, then the first answers, the second ones, and so on."""
        return (self.questions, *zip(*self.answers, strict=True))

    @property
    def gold(self) -> Any:
        """(n,) numbers of the right answers."""
        return np.array(self.right)

    def prompted(self, prompt: str) -> Choices:
        """Return the items with the prompt before every text."""
        answers = tuple(tuple(prompt + answer for answer in each) for each in self.answers)
        return replace(self, questions=tuple(prompt + question for question in self.questions), answers=answers)

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless each question has the same number of answers, and a right one among them."""
        if len({len(each) for each in self.answers}) > 1:
            raise DataError(f"expected as many answers to every question in the {split} split")
        if any(not 0 <= right < len(answers) for right, answers in zip(self.right, self.answers, strict=True)):
            raise DataError(f"expected a right answer among those to every question in the {split} split")
