"""How well outputs for words tell their tags, and what each sentence adds: entities, and accuracy by word.

Knows arrays of outputs and the tags of words; knows no models. Entities are those of seqeval in its default mode: a run
of B- and I- of one type, which an I- without a B- begins too.

Source: Tjong Kim Sang and De Meulder 2003 (CoNLL, F1 of whole entities); Nakayama 2018 (seqeval).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.checks import check_extra
from layerprobe.errors import DataError
from layerprobe.metrics.influence import Influences, ratio_influences
from layerprobe.metrics.scores import macro_f1
from layerprobe.stats.floors import NO_ENTITY, Floor, zero_floors

Array = NDArray[np.float64]
Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordTags:
    """The true tags of the words of sentences, one sentence behind the other."""

    tags: Numbers
    """(word,) numbers in `labels`."""
    ends: Numbers
    """(sentence + 1,): sentence i has the words `ends[i]` to `ends[i + 1]`."""
    labels: tuple[str, ...]
    """Names of the tags; the first is that of words without an output of their own."""

    def __len__(self) -> int:
        """Return the number of sentences, each of which counts once as an item."""
        return len(self.ends) - 1

    def by_sentence(self, values: Array) -> Array:
        """Return the sums over the words of each sentence, (sentence, ...), of (word, ...) values."""
        sums = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0, dtype=np.float64)])
        by_sentence: Array = np.diff(sums[self.ends], axis=0)
        return by_sentence


def entity_scores(outputs: Array, gold: WordTags) -> dict[str, float]:
    """Return how well (word, tags) outputs, of which the highest wins, find the entities of sentences.

    An entity is found where its type, its first and its last word are as they should be. F1 is 2 TP / (predicted +
    true), over the entities of all sentences together.
    """
    predicted = _predicted(outputs, gold)
    correct, n_predicted, true = _entity_counts(predicted, gold).sum(axis=0)
    return {
        "entity f1": _ratio(2 * correct, n_predicted + true),
        "entity precision": _ratio(correct, n_predicted),
        "entity recall": _ratio(correct, true),
        "accuracy": float(np.mean(predicted == gold.tags)),
    }


def entity_influences(outputs: Array, gold: WordTags) -> Influences:
    """Return the influences of sentences on the metrics of `entity_scores`, each a ratio of sums over sentences."""
    predicted = _predicted(outputs, gold)
    correct, n_predicted, true = _entity_counts(predicted, gold).T
    return {
        "entity f1": ratio_influences(2 * correct, n_predicted + true),
        "entity precision": ratio_influences(correct, n_predicted),
        "entity recall": ratio_influences(correct, true),
        "accuracy": _accuracy_influences(predicted, gold),
    }


def entity_floors(items: Any) -> dict[str, Floor]:
    """Return the scores of predicting no entity in `TaggedSentences`: 0, and accuracy as the share of other words."""
    outside = items.labels.index("O") if "O" in items.labels else -1
    share = 100 * float(np.mean(items.gold.tags == outside))
    floors = zero_floors("entity f1", "entity precision", "entity recall", by=NO_ENTITY)
    return {**floors, "accuracy": Floor(value=share, by=NO_ENTITY)}


def tag_scores(outputs: Array, gold: WordTags) -> dict[str, float]:
    """Return how well (word, tags) outputs, of which the highest wins, tell the tags of words."""
    predicted = _predicted(outputs, gold)
    return {
        "accuracy": float(np.mean(predicted == gold.tags)),
        "macro f1": macro_f1(predicted, gold.tags.astype(float)),
    }


def tag_influences(outputs: Array, gold: WordTags) -> Influences:
    """Return the influences of sentences on accuracy and macro F1, see `tag_scores`.

    Which tags there are, of which macro F1 is the mean, counts as given.
    """
    predicted = _predicted(outputs, gold)
    by_tag = []
    for number in np.union1d(predicted, gold.tags):
        chosen, true = predicted == number, gold.tags == number
        sums = gold.by_sentence(np.stack([2.0 * (chosen & true), chosen + true.astype(float)], axis=1))
        by_tag.append(ratio_influences(sums[:, 0], sums[:, 1]))
    return {"accuracy": _accuracy_influences(predicted, gold), "macro f1": np.mean(by_tag, axis=0)}


def by_sentence(predicted: Numbers, gold: WordTags, *, entities: bool) -> Array:
    """Return how wrong predicted tags of words are by sentence, 0 .. 100: the share of words, of entities 1 - F1."""
    if entities:
        correct, ours, true = _entity_counts(predicted, gold).T
        f1: Array = np.where(ours + true > 0, 2 * correct / np.maximum(ours + true, 1), 1.0)
        return 100 * (1 - f1)
    wrong = gold.by_sentence((predicted != gold.tags).astype(float))
    shares: Array = 100 * wrong / np.maximum(np.diff(gold.ends), 1)
    return shares


def _accuracy_influences(predicted: Numbers, gold: WordTags) -> Array:
    return ratio_influences(gold.by_sentence((predicted == gold.tags).astype(float)), np.diff(gold.ends).astype(float))


def _predicted(outputs: Array, gold: WordTags) -> Numbers:
    if outputs.shape != (len(gold.tags), len(gold.labels)):
        expected = f"{len(gold.tags)} words and {len(gold.labels)} tags"
        raise DataError(f"expected outputs for {expected}, got {' x '.join(map(str, outputs.shape))}")
    predicted: Numbers = outputs.argmax(axis=1)
    return predicted


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else 0.0


def _entity_counts(predicted: Numbers, gold: WordTags) -> Array:
    """Return (sentence, 3): entities that are found, predicted and true."""
    ours, true = (_entities(tags, gold) for tags in (predicted, gold.tags))
    return np.array([(len(a & b), len(a), len(b)) for a, b in zip(ours, true, strict=True)], dtype=np.float64)


def _entities(tags: Numbers, gold: WordTags) -> list[set[tuple[str, int, int]]]:
    """Return the entities of every sentence: type, first and last word."""
    entities_of, outside = get_entities(), gold.labels.index("O") if "O" in gold.labels else -1
    some = gold.by_sentence((tags != outside).astype(float)) > 0
    names = [gold.labels[tag] for tag in tags.tolist()]
    ends = gold.ends.tolist()
    return [
        set(entities_of(names[start:end])) if counted else set()
        for start, end, counted in zip(ends[:-1], ends[1:], some.tolist(), strict=True)
    ]


@functools.cache
def get_entities() -> Callable[[list[str]], list[tuple[Any, ...]]]:
    """Return what finds the entities of a sentence's tags; MissingPackageError without seqeval."""
    check_extra("tokens", needed_by="counting entities")
    from seqeval.metrics.sequence_labeling import get_entities as found

    function: Callable[[list[str]], list[tuple[Any, ...]]] = found
    return function
