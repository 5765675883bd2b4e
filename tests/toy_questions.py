"""Questions about contexts of letters, which a tiny model answers at once: the answer is what stands about the z."""

import random

from layerprobe.kinds.answers import Answer, Questions
from layerprobe.tasks.values import Task


def toy_questions(n: int, seed: int, *, impossible: float = 0.0, length: int = 12, each: int = 2) -> Questions:
    """`n` questions, `each` of them about one context; some about one without a z."""
    rng = random.Random(seed)
    ids, questions, contexts, answers = [], [], [], []
    context, answer = "", None
    for number in range(n):
        if number % each == 0:
            letters = rng.choices("abcdefgh", k=length)
            place = rng.randrange(length)
            answer = None
            if rng.random() >= impossible:
                letters[place] = "z"
                answer = Answer(text="z", start=2 * place)
            context = " ".join(letters)
        ids.append(f"q{number}")
        questions.append(" ".join(rng.choices("abcdefgh", k=3)))
        contexts.append(context)
        answers.append((answer,) if answer else ())
    return Questions(ids=tuple(ids), questions=tuple(questions), contexts=tuple(contexts), answers=tuple(answers))


def toy_question_task(*, n: int = 60, impossible: float = 0.0) -> Task:
    """A task with n questions to train on, and half as many in the other splits."""
    return Task(
        name="toy questions",
        kind="question answering",
        train=toy_questions(n, 1, impossible=impossible),
        validation=toy_questions(n // 2, 2, impossible=impossible),
        test=toy_questions(n // 2, 3, impossible=impossible),
    )


def squad_json(items: Questions, *, second: bool = False) -> dict[str, object]:
    """The questions in the layout of SQuAD, a paragraph a context; with `second` in that of SQuAD 2.0."""
    paragraphs: dict[str, list[dict[str, object]]] = {}
    for id, question, context, answers in zip(items.ids, items.questions, items.contexts, items.answers, strict=True):
        entry: dict[str, object] = {
            "id": id,
            "question": question,
            "answers": [{"text": answer.text, "answer_start": answer.start} for answer in answers],
        }
        if second:
            entry["is_impossible"] = not answers
            entry["plausible_answers"] = [{"text": context[:1], "answer_start": 0}]
        paragraphs.setdefault(context, []).append(entry)
    listed = [{"context": context, "qas": entries} for context, entries in paragraphs.items()]
    return {"version": "toy", "data": [{"title": "toy", "paragraphs": listed}]}
