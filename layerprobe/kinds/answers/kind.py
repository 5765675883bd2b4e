"""Question answering: where in a context the answer to a question is; its items, its metrics and the kind.

An output is of one question: (first character, one past the last one, score of the span, score of no answer), of which
the first two are offsets in its context. Spans are scored as SQuAD does, by exact match and F1 of words.

Source: Rajpurkar, Zhang, Lopyrev and Liang 2016 (EMNLP), section 6.1; without an answer: Rajpurkar, Jia and Liang 2018
(ACL), section 5.
"""

import functools
import re
import string
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.metrics.scores import Influences, mean_influences
from layerprobe.stats.floors import NO_ANSWER, Floor
from layerprobe.tasks.explored import ItemView, ReadOutputs
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


Array = NDArray[np.float64]
Words = tuple[str, ...]

ALWAYS = sys.float_info.max
"""The threshold where every question has an answer: no difference of scores is above it."""
BEFORE = 150
"""Characters of a context that are shown before its answer."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@functools.lru_cache(maxsize=2**16)
def answer_words(text: str) -> Words:
    """Return the words by which answers are compared: lower case, without punctuation and English articles.

    Articles of other languages count, as in the official script, with which XQuAD is scored too.

    Examples:
        >>> answer_words("The  U.S. (of an A.)")
        ('us', 'of')
    """
    return tuple(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(predicted: Words, gold: Words) -> float:
    """Return token F1, 0 .. 1, counting repeated words; of two texts without words, equality.

    Examples:
        >>> word_f1(("denver", "broncos"), ("the", "denver", "broncos", "team"))
        0.6666666666666666
        >>> word_f1((), ()), word_f1((), ("denver",))
        (1.0, 0.0)
    """
    if not predicted or not gold:
        return float(predicted == gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold))


def answer_scores(outputs: Array, gold: Questions, threshold: float) -> dict[str, float]:
    """Return the mean F1 and the share of exact matches over questions.

    Args:
        outputs: (n, 4), see above.
        gold: Of the same questions.
        threshold: A question counts as unanswered where the score of no answer exceeds that of the span by more.
    """
    return {name: float(np.mean(values)) for name, values in _by_question(outputs, gold, threshold).items()}


def answer_influences(outputs: Array, gold: Questions, threshold: float) -> Influences:
    """Return the influences of questions on F1 and exact match; the threshold counts as given."""
    return {name: mean_influences(values) for name, values in _by_question(outputs, gold, threshold).items()}


def answer_floors(items: Any) -> dict[str, Floor]:
    """Return the scores of answering no question: the share of `Questions` without an answer."""
    value = 100 * float(np.mean([() in right for right in _right_words(items)]))
    return {metric: Floor(value=value, by=NO_ANSWER) for metric in ("f1", "exact match")}


def answer_threshold(outputs: Array, gold: Questions) -> float:
    """Return the threshold that maximises F1, as SQuAD 2.0 chooses it; `ALWAYS` where every question has an answer.

    It is the score of no answer less that of the span of the last question that is answered; of equals the lowest.
    Where it is best to answer none it is below all of them, for which the official script has 0.
    """
    unanswerable = np.array([not answers for answers in gold.answers])
    if not unanswerable.any():
        return ALWAYS
    differences = outputs[:, 3] - outputs[:, 2]
    gained = _by_question(outputs, gold, ALWAYS)["f1"] - unanswerable
    order = np.argsort(differences, kind="stable")
    rising, sums = differences[order], np.cumsum(gained[order])
    last_of_equals = np.append(rising[1:] > rising[:-1], True)
    best = int(np.argmax(np.where(last_of_equals, sums, -np.inf)))
    return float(rising[best]) if sums[best] > 0 else float(rising[0]) - 1


def predicted_answers(outputs: Array, contexts: tuple[str, ...], threshold: float) -> list[str]:
    """Return the answer to each question; an empty text where it is unanswered."""
    answered = outputs[:, 3] - outputs[:, 2] <= threshold
    return [
        context[int(first) : int(end)] if answered else ""
        for context, (first, end), answered in zip(contexts, outputs[:, :2], answered, strict=True)
    ]


def question_view(task: Any, items: Questions) -> ItemView:
    """Return how questions are shown: what is answered, and its F1."""

    def read(outputs: Array, threshold: float | None) -> ReadOutputs:
        cut = ALWAYS if threshold is None else threshold
        f1 = 100 * _by_question(outputs, items, cut)["f1"]
        answers = predicted_answers(outputs, items.contexts, cut)
        return ReadOutputs(f1.tolist(), 100 - f1, [answer or "no answer" for answer in answers])

    starts = (max(0, (span or (0, 0))[0] - BEFORE) for span in items.spans)
    return ItemView(
        form="shares",
        texts={
            "Question": items.questions,
            "Context": [context[start:] for context, start in zip(items.contexts, starts, strict=True)],
        },
        gold=[" | ".join(dict.fromkeys(one.text for one in right)) or "no answer" for right in items.answers],
        output="answer",
        error="100 less F1",
        limit=50.0,
        read=read,
        embedded=(items.questions,),
    )


def _by_question(outputs: Array, gold: Questions, threshold: float) -> dict[str, Array]:
    predicted = map(answer_words, predicted_answers(outputs, gold.contexts, threshold))
    scores = np.array(
        [
            (max(word_f1(words, one) for one in right), float(words in right))
            for words, right in zip(predicted, _right_words(gold), strict=True)
        ]
    )
    return {"f1": scores[:, 0], "exact match": scores[:, 1]}


def _right_words(gold: Questions) -> list[tuple[Words, ...]]:
    """Return the words of each right answer to every question; no words are right where there is none."""
    return [
        tuple(words for answer in answers if (words := answer_words(answer.text))) or ((),) for answers in gold.answers
    ]


def _recognises(path: Path) -> bool:
    from layerprobe.kinds.answers.loading import is_squad  # which `--help` does without

    return is_squad(path)


QUESTION_ANSWERING = Kind(
    name="question answering",
    view="layerprobe.kinds.answers.kind:question_view",
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
