"""Question answering: where in a context the answer to a question is; its items and the kind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerprobe.errors import DataError
from layerprobe.kinds.answers.metrics import answer_floors, answer_influences, answer_scores, answer_threshold
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.values import Items


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A span of a context."""

    text: str
    """As the context has it."""
    start: int
    """Characters of the context before it."""

    @property
    def end(self) -> int:
        """One past its last character."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Questions(Items):
    """Questions, each with the text that has the answer, and where."""

    by_item = ("ids", "questions", "contexts", "answers")
    ids: tuple[str, ...]
    """What the source calls each."""
    questions: tuple[str, ...]
    """The texts of the questions."""
    contexts: tuple[str, ...]
    """(question,): the paragraph, which several questions share."""
    answers: tuple[tuple[Answer, ...], ...]
    """(question,): any of them is right, and the first is trained on; none where the context has no answer."""

    def __repr__(self) -> str:
        return f"<Questions: {len(self):,} about {len(set(self.contexts)):,} contexts>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """Questions and contexts: questions about one paragraph share a text."""
        return self.questions, self.contexts

    @property
    def windowed(self) -> tuple[str, ...]:
        """Contexts."""
        return self.contexts

    @property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """Contexts, which data sets can share between splits."""
        return "context", self.contexts

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...]:
        """(question,): the characters of the first answer, one past the last one; None where there is none."""
        return tuple((answers[0].start, answers[0].end) if answers else None for answers in self.answers)

    @property
    def gold(self) -> "Questions":
        """The questions themselves, whose contexts outputs are spans of."""
        return self

    def __getitem__(self, rows: Sequence[int]) -> "Questions":
        return self.take(rows)

    def prompted(self, prompt: str) -> "Questions":
        """Return them with the prompt before every question; contexts, in which answers have their places, stay."""
        return replace(self, questions=tuple(prompt + question for question in self.questions))

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless no text is empty and every answer is in its context where it is said to be."""
        self.check_texts(split, "questions", "contexts")
        for i, (context, answers) in enumerate(zip(self.contexts, self.answers, strict=True)):
            for answer in answers:
                if not is_in(answer, context):
                    raise DataError(
                        f"expected the answer {answer.text[:40]!r} at character {answer.start} of the context of "
                        f"{split}[{i}], got {context[max(0, answer.start) : answer.end][:40]!r}"
                    )


def is_in(answer: Answer, context: str) -> bool:
    """Return whether a context has an answer, which is no white space, where it is said to be."""
    return answer.start >= 0 and bool(answer.text.strip()) and context[answer.start : answer.end] == answer.text


def _recognises(path: Path) -> bool:
    from layerprobe.kinds.answers.loading import is_squad  # which `--help` does without

    return is_squad(path)


QUESTION_ANSWERING = Kind(
    name="question answering",
    view="layerprobe.kinds.answers.metrics:question_view",
    pairs=True,
    labelled=False,
    item="question",
    columns={"question": ("question",), "context": ("context",), "answers": ("answers",)},
    metrics=("f1", "exact match"),
    score=answer_scores,
    influences=answer_influences,
    threshold=answer_threshold,
    loss="layerprobe.kinds.answers.loss:AnswerSpan",
    zero_shot="own",
    untrained="layerprobe.kinds.answers.loss:answer_probe",
    one_target=True,
    items="layerprobe.kinds.answers.kind:Questions",
    loader="layerprobe.kinds.answers.loading:load_questions",
    recognises=_recognises,
    floors=answer_floors,
)
