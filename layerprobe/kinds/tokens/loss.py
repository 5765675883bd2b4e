"""Trains tags of words: a linear head on the state of each word's first token. Knows sentences and tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.model import Pooling
from layerprobe.finetuning.losses import Criterion, PreparedItems
from layerprobe.kinds.tokens.kind import TaggedSentences
from layerprobe.kinds.tokens.tokenized import NO_TOKEN, TokenizedWords, tokenize_words
from layerprobe.tasks.values import Items


class WordClasses(Criterion):
    """W s + b of the state s of every word's first token, trained on cross entropy.

    All words count alike, whatever sentences they share a step with: the loss of a sentence is the sum over its words,
    by the words that a sentence has in the mean. A step's loss is then that of transformers' own recipe, the mean over
    the words of the step, but for how many words it has.

    Source: Devlin et al. 2019 (BERT), section 5.3; the first token of a word stands for it.
    """

    def __init__(self, *, width: int, n_labels: int) -> None:
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, n_labels)

    @classmethod
    def prepare(cls, encoder: Encoder, items: Items, *, max_length: int) -> PreparedItems:
        """Return the sentences as token ids, cut at `max_length` tokens, each an example."""
        assert isinstance(items, TaggedSentences)
        words = tokenize_words(encoder, items.words, max_length=max_length)
        return PreparedItems(
            texts=words.texts,
            sides=(np.arange(len(items)),),
            tokens=np.array(words.texts.lengths, dtype=np.int64),
            gold=items.gold,
            targets=words,
        )

    @classmethod
    def cut(cls, encoder: Encoder, items: Sequence[Items], *, max_length: int) -> str:
        """Return how many words are cut off; empty where none is."""
        sentences = [words for part in items if isinstance(part, TaggedSentences) for words in part.words]
        n_cut = tokenize_words(encoder, sentences, max_length=max_length).n_cut
        limit = encoder.limit(max_length)
        return said_of_cut_words(n_cut, sum(map(len, sentences)), limit) if n_cut else ""

    def read(self, states: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
        """Return the logits of every token, (text, token, classes)."""
        logits: Tensor = self.head(states.float())
        return logits

    def example_loss(self, states: Tensor, items: PreparedItems, rows: NDArray[np.int64]) -> Tensor:
        """Return the mean loss of the sentences `rows`, of logits (sentence, token, classes)."""
        targets: TokenizedWords = items.targets
        ends = targets.ends
        words = np.concatenate([np.arange(ends[row], ends[row + 1]) for row in rows])
        sentence = np.repeat(np.arange(len(rows)), ends[rows + 1] - ends[rows])
        seen = targets.first[words] != NO_TOKEN
        words, sentence = words[seen], sentence[seen]
        places = torch.from_numpy(targets.first[words])
        logits = states[torch.from_numpy(sentence).to(states.device), places.to(states.device)]
        tags = torch.from_numpy(items.gold.tags[words].astype(np.int64)).to(states.device)
        return F.cross_entropy(logits, tags, reduction="sum") / (targets.words_read * len(rows))

    def item_outputs(
        self, states: NDArray[np.float32] | Sequence[NDArray[np.float32]], items: PreparedItems
    ) -> NDArray[np.float64]:
        """Return the logits of all words, (word, classes); 0 of those without a token, for which the first tag wins."""
        words: TokenizedWords = items.targets
        outputs = np.zeros((len(words.first), states[0].shape[-1]))
        for sentence, logits in enumerate(states):
            place = slice(words.ends[sentence], words.ends[sentence + 1])
            first = words.first[place]
            outputs[place][first != NO_TOKEN] = logits[first[first != NO_TOKEN]]
        return outputs


def said_of_cut_words(n_cut: int, n_words: int, limit: int) -> str:
    """Return how words that are cut off are counted."""
    return f"{n_cut:,} of {n_words:,} words were cut off at {limit} tokens: they count as the first tag"
