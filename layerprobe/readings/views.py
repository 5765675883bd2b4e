"""Texts -> altered copies of them, which lack some of their words at random. Knows words, no models.

Dropping words needs no other model and no list of synonyms, and works in every language that has spaces between words;
a text of one word is its own view.
"""

import random
from collections.abc import Sequence

from layerprobe.readings.values import Views


def text_views(texts: Sequence[str], views: Views) -> list[tuple[str, ...]]:
    """Return altered copies of texts: for each view, a copy of every chosen text, in one order.

    Examples:
        >>> text_views(["one two three", "four"], Views(n_views=2, dropped=0.5, seed=3))
        [('one', 'four'), ('one two', 'four')]
    """
    chosen = chosen_texts(texts, views)
    return [
        tuple(_without_words(text, views.dropped, random.Random(f"{views.seed} {view} {text}")) for text in chosen)
        for view in range(views.n_views)
    ]


def chosen_texts(texts: Sequence[str], views: Views) -> list[str]:
    """Return the distinct texts that are altered: a random choice where there are many."""
    distinct = list(dict.fromkeys(texts))
    return distinct if len(distinct) <= views.n_texts else random.Random(views.seed).sample(distinct, views.n_texts)


def _without_words(text: str, dropped: float, rng: random.Random) -> str:
    words = text.split()
    words_left = [word for word in words if rng.random() >= dropped]
    return " ".join(words_left) or (rng.choice(words) if words else text)
