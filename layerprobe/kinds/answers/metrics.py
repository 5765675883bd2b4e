"""How well spans of contexts answer questions, as SQuAD counts it: exact match and F1 of words.

Knows texts and arrays, no models. An output is of one question: (first character, one past the last one, score of the
span, score of no answer), of which the first two are offsets in its context.

Source: Rajpurkar, Zhang, Lopyrev and Liang 2016 (EMNLP), section 6.1; without an answer: Rajpurkar, Jia and Liang 2018
(ACL), section 5.
"""

import functools
import re
import string
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.metrics.influence import Influences, mean_influences
from layerprobe.stats.floors import NO_ANSWER, Floor
from layerprobe.tasks.explored import ItemView, ReadOutputs

if TYPE_CHECKING:
    from layerprobe.kinds.answers.kind import Questions

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


def answer_scores(outputs: Array, gold: "Questions", threshold: float) -> dict[str, float]:
    """Return the mean F1 and the share of exact matches over questions.

    Args:
        outputs: (n, 4), see above.
        gold: Of the same questions.
        threshold: A question counts as unanswered where the score of no answer exceeds that of the span by more.
    """
    return {name: float(np.mean(values)) for name, values in _by_question(outputs, gold, threshold).items()}


def answer_influences(outputs: Array, gold: "Questions", threshold: float) -> Influences:
    """Return the influences of questions on F1 and exact match; the threshold counts as given."""
    return {name: mean_influences(values) for name, values in _by_question(outputs, gold, threshold).items()}


def answer_floors(items: Any) -> dict[str, Floor]:
    """Return the scores of answering no question: the share of `Questions` without an answer."""
    value = 100 * float(np.mean([() in right for right in _right_words(items)]))
    return {metric: Floor(value=value, by=NO_ANSWER) for metric in ("f1", "exact match")}


def answer_threshold(outputs: Array, gold: "Questions") -> float:
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


def question_view(task: Any, items: "Questions") -> ItemView:
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


def _by_question(outputs: Array, gold: "Questions", threshold: float) -> dict[str, Array]:
    predicted = map(answer_words, predicted_answers(outputs, gold.contexts, threshold))
    scores = np.array(
        [
            (max(word_f1(words, one) for one in right), float(words in right))
            for words, right in zip(predicted, _right_words(gold), strict=True)
        ]
    )
    return {"f1": scores[:, 0], "exact match": scores[:, 1]}


def _right_words(gold: "Questions") -> list[tuple[Words, ...]]:
    """Return the words of each right answer to every question; no words are right where there is none."""
    return [
        tuple(words for answer in answers if (words := answer_words(answer.text))) or ((),) for answers in gold.answers
    ]
