"""Tasks that a tiny model learns in seconds: words are letters, the gold score of a pair is the share in common."""

import random

from layerprobe.kinds.retrieval import RetrievalItems
from layerprobe.kinds.summaries import SummaryItems, greedy_oracle
from layerprobe.kinds.tokens import TaggedSentences
from layerprobe.kinds.triplets import Triplets
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Examples, Items, Task

TOY_KINDS = tuple(name for name in KINDS if name not in ("image classification", "question answering"))
"""Kinds that have a toy here; images and questions have theirs beside their tests."""
OF_EXAMPLES = tuple(name for name in TOY_KINDS if KINDS[name].items is None)
"""Kinds of texts or pairs with a number each."""
LETTERS = "abcdefghijklmnop"
N_WORDS = 4


def toy_pairs(n: int, seed: int) -> Examples:
    """`n` pairs of sentences of four letters."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        first = rng.sample(LETTERS, N_WORDS)
        n_common = rng.randint(0, N_WORDS)
        second = first[:n_common] + rng.sample([a for a in LETTERS if a not in first], N_WORDS - n_common)
        rng.shuffle(second)
        rows.append((" ".join(first), " ".join(second), n_common / N_WORDS))
    first_ones, second_ones, scores = zip(*rows, strict=True)
    return Examples(first=first_ones, second=second_ones, targets=scores)


TAGS = {"entities": ("O", "B-x", "I-x"), "tags": ("rest", "a or b", "c or d")}


def toy_sentences(kind: str, n: int, seed: int) -> TaggedSentences:
    """`n` sentences of four to six letters: entities begin with a or b, and c or d may go on with them."""
    rng, words, tags = random.Random(seed), [], []
    for _ in range(n):
        letters = rng.choices("abcdefgh", k=rng.randint(4, 6))
        places = [1 if letter in "ab" else 2 if letter in "cd" else 0 for letter in letters]
        if kind == "entities":
            places = [2 if tag == 2 and i and places[i - 1] == 1 else tag % 2 for i, tag in enumerate(places)]
        words.append(tuple(letters))
        tags.append(tuple(places))
    return TaggedSentences(words=tuple(words), tags=tuple(tags), labels=TAGS[kind])


def toy_retrieval(n: int, seed: int) -> RetrievalItems:
    """`n` queries for the same thirty documents, each of three letters of the one that is relevant."""
    rng, documents = random.Random(seed), toy_pairs(30, 0).first
    numbers = [rng.randrange(30) for _ in range(n)]
    return RetrievalItems(
        queries=tuple(" ".join(rng.sample(documents[number].split(), 3)) for number in numbers),
        documents=documents,
        relevance=tuple(((number, 1.0),) for number in numbers),
        trained=tuple(((number,),) for number in numbers),
        own=(-1,) * n,
    )


def toy_triplets(n: int, seed: int) -> Triplets:
    """`n` triplets whose positive has the letters of the anchor in another order."""
    anchors, others = toy_pairs(n, seed).first, toy_pairs(n, seed + 10).first
    turned = tuple(" ".join(text.split()[::-1]) for text in anchors)
    return Triplets(anchors=anchors, positives=turned, negatives=others)


def toy_examples(kind: str, n: int, seed: int) -> Examples:
    """`n` examples: a paraphrase shares half of its letters; three classes of overlap; an a or b, or none."""
    pairs = toy_pairs(n, seed)
    if kind == "sts":
        return pairs
    if kind == "classification":
        targets = tuple(float(any(letter in "ab" for letter in text)) for text in pairs.first)
        return Examples(first=pairs.first, second=None, targets=targets)
    if kind == "regression":
        targets = tuple(sum(letter < "h" for letter in text.split()) / N_WORDS for text in pairs.first)
        return Examples(first=pairs.first, second=None, targets=targets)
    borders = (0.5,) if kind == "paraphrase" else (0.25, 0.75)
    targets = tuple(float(sum(score >= border for border in borders)) for score in pairs.targets)
    return Examples(first=pairs.first, second=pairs.second, targets=targets)


LABELS: dict[str, tuple[str, ...]] = {
    "sts": (),
    "paraphrase": ("0", "1"),
    "entailment": ("no", "some", "much"),
    "regression": (),
    "classification": ("without", "with"),
    **TAGS,
    "retrieval": (),
    "triplets": (),
}


def toy_summaries(n: int, seed: int) -> SummaryItems:
    """`n` documents of five sentences of four letters; the summary has the letters of one of them, turned round."""
    rng = random.Random(seed)
    documents, summaries = [], []
    for _ in range(n):
        sentences = tuple(" ".join(rng.sample(LETTERS[1:], N_WORDS)) for _ in range(4))
        place = rng.randrange(5)
        chosen = " ".join(["a", *rng.sample(LETTERS[1:], N_WORDS - 1)])
        documents.append((*sentences[:place], chosen, *sentences[place:]))
        summaries.append((chosen,))
    oracle = tuple(greedy_oracle(each, summary, keep=1) for each, summary in zip(documents, summaries, strict=True))
    return SummaryItems(documents=tuple(documents), summaries=tuple(summaries), oracle=oracle, keep=1)


def toy_items(kind: str, n: int, seed: int) -> Items:
    """`n` items of a kind."""
    if kind in TAGS:
        return toy_sentences(kind, n, seed)
    own = {"retrieval": toy_retrieval, "triplets": toy_triplets, "summarization": toy_summaries}
    return own[kind](n, seed) if kind in own else toy_examples(kind, n, seed)


def toy_task_of(kind: str, *, train: int = 64, validation: int = 32, test: int = 32) -> Task:
    """A task of a kind with as many examples."""
    return Task(
        name=f"toy {kind}",
        kind=kind,
        train=toy_items(kind, train, 1),
        validation=toy_items(kind, validation, 2),
        test=toy_items(kind, test, 3),
        labels=LABELS.get(kind, ()),
        score_range=None if KINDS[kind].labelled or kind not in OF_EXAMPLES else (0.0, 1.0),
    )


def toy_task(*, train: int = 64, validation: int = 32, test: int = 32) -> Task:
    """A task with as many pairs."""
    return Task(
        name="toy",
        kind="sts",
        train=toy_pairs(train, 1),
        validation=toy_pairs(validation, 2),
        test=toy_pairs(test, 3),
        score_range=(0.0, 1.0),
    )
