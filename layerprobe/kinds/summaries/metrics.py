"""ROUGE of chosen sentences against a summary, and the sentences that score best. Knows texts, no tasks.

By Google's `rouge-score`, whose ROUGE-L is here that of whole summaries (rougeLsum: the longest common subsequences of
sentences), with Porter's stemmer, as papers on summaries report it. It reads the letters a to z and digits alone.

Source: Lin 2004 (Text Summarization Branches Out); greedy oracle: Nallapati, Zhai and Zhou 2017 (AAAI), section 3.
"""

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from layerprobe.checks import check_extra

ROUGE = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeLsum"}
"""Names of metrics, and of the library."""


@functools.lru_cache(maxsize=2**17)
def rouge(chosen: tuple[str, ...], summary: tuple[str, ...]) -> dict[str, float]:
    """Return F1 by ROUGE-1, -2 and -L of some sentences of a document against the sentences of a summary, 0 .. 1.

    Examples:
        >>> rouge(("the cat sat",), ("the cat slept",))["rouge-1"]
        0.6666666666666666
    """
    scores = _scorer(tuple(ROUGE.values())).score("\n".join(summary), "\n".join(chosen))
    return {name: float(scores[of_library].fmeasure) for name, of_library in ROUGE.items()}


def greedy_oracle(sentences: Sequence[str], summary: tuple[str, ...], *, keep: int) -> tuple[int, ...]:
    """Return which sentences of a document, at most `keep`, make the summary that scores best, one added after another.

    Each is the one that raises the sum of ROUGE-1 and ROUGE-2 most; where none raises it, no further one is added.

    Examples:
        >>> greedy_oracle(["the dog ran", "a cat sat", "it rained"], ("the cat sat",), keep=2)
        (1,)
    """
    scorer, chosen, highest = _scorer(("rouge1", "rouge2")), list[int](), 0.0
    reference = "\n".join(summary)
    while len(chosen) < min(keep, len(sentences)):
        gains: list[tuple[float, int]] = []
        for number in set(range(len(sentences))) - set(chosen):
            text = "\n".join(sentences[i] for i in sorted([*chosen, number]))
            gains.append((sum(rouge.fmeasure for rouge in scorer.score(reference, text).values()), -number))
        score, number = max(gains)
        if score <= highest:
            break
        highest, chosen = score, [*chosen, -number]
    return tuple(sorted(chosen))


def readable(text: str) -> bool:
    """Return whether the library finds a word in a text: a letter from a to z, or a digit."""
    return any(character.isascii() and character.isalnum() for character in text.lower())


@functools.cache
def _scorer(names: tuple[str, ...]) -> Any:
    check_extra("summaries", needed_by="scoring summaries")
    from nltk.stem.porter import PorterStemmer
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    stemmer = SimpleNamespace(stem=functools.lru_cache(maxsize=2**16)(PorterStemmer().stem))
    words = functools.lru_cache(maxsize=2**14)(lambda text: tokenize(text, stemmer))
    return RougeScorer(list(names), tokenizer=SimpleNamespace(tokenize=words))
