"""Texts -> token ids, a held-out part, and the batches of an epoch. Knows lengths and seeds; runs no model."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import report
from layerprobe.encoders.batching import Prepared, TokenizedTexts
from layerprobe.errors import DataError

# Texts from one report of progress to the next.
CHUNK = 20_000
# Batches whose texts are sorted by length together.
WINDOW = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corpus:
    """Texts as token ids, one behind the other: millions of them fit into memory."""

    ids: NDArray[np.int32]
    """(token,): those of all texts."""
    ends: NDArray[np.int64]
    """(text + 1,): text i is `ids[ends[i]:ends[i + 1]]`."""
    pad_id: int
    padding_side: str
    """left or right."""
    n_cut: int
    """Texts that were longer than the maximum length."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every text."""
        return np.diff(self.ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def padded(self, rows: Sequence[int] | NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the ids of the texts `rows`, padded to the longest, and 1 for ids and 0 for padding."""
        width = max(int(self.ends[row + 1] - self.ends[row]) for row in rows)
        ids = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for i, row in enumerate(rows):
            text = self.ids[self.ends[row] : self.ends[row + 1]]
            place = slice(width - len(text), None) if self.padding_side == "left" else slice(len(text))
            ids[i, place], mask[i, place] = text, 1
        return torch.from_numpy(ids), torch.from_numpy(mask)


def tokenize_corpus(tokenize: Callable[[list[str]], Prepared], texts: Sequence[str]) -> Corpus:
    """Return `texts` as token ids; what `tokenize` raises is passed on."""
    parts, lengths, n_cut = [np.zeros(0, dtype=np.int32)], [0], 0
    padding, side = 0, "right"
    for start in range(0, len(texts), CHUNK):
        tokenized = tokenize(list(texts[start : start + CHUNK]))
        assert isinstance(tokenized, TokenizedTexts)
        parts.append(tokenized.ids)
        lengths += tokenized.lengths
        n_cut += tokenized.n_truncated
        padding, side = tokenized.pad_id, tokenized.padding_side
        report("tokenizing", min(start + CHUNK, len(texts)), len(texts))
    ends = np.cumsum(lengths, dtype=np.int64)
    return Corpus(ids=np.concatenate(parts), ends=ends, pad_id=padding, padding_side=side, n_cut=n_cut)


def pack(corpus: Corpus, *, max_length: int, n_leading: int) -> Corpus:
    """Return the texts of `corpus` joined to sequences of at most `max_length` tokens, in their order.

    [CLS] a [SEP], [CLS] b [SEP] become [CLS] a [SEP] b [SEP]: no text is cut in two, and a text that does not fit
    begins the next sequence.

    The texts must have at most `max_length` tokens each. Their `n_leading` special tokens at the beginning are kept of
    the first text of a sequence only.
    """
    parts: list[NDArray[np.int32]] = []
    lengths: list[int] = []
    for start, end in itertools.pairwise(corpus.ends.tolist()):
        if not lengths or lengths[-1] + end - start - n_leading > max_length:
            lengths.append(0)
        parts.append(corpus.ids[start + (n_leading if lengths[-1] else 0) : end])
        lengths[-1] += len(parts[-1])
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    return replace(corpus, ids=np.concatenate(parts or [corpus.ids]), ends=ends)


def hold_out(n_texts: int, share: float, *, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the texts to train on and of those held out, ascending; DataError with fewer than two."""
    if n_texts < 2:
        raise DataError(f"expected at least two distinct texts, one of them to hold out, got {n_texts}")
    n_held_out = min(max(1, round(share * n_texts)), n_texts - 1)
    order = np.random.default_rng([seed, 0]).permutation(n_texts)
    return np.sort(order[n_held_out:]), np.sort(order[:n_held_out])


def epoch_batches(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], *, batch_size: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Return the batches of an epoch: texts of similar length, in a random order, every text once.

    The texts are shuffled; within each window of 50 batches they are sorted by length and cut into batches, and
    the batches of the window are shuffled. Nothing but the arguments decides, so an interrupted epoch goes on.

    `rows` are numbers of texts, `lengths` the tokens of all texts, of the others, too.
    """
    rng = np.random.default_rng([seed, 1, epoch])
    order = rng.permutation(rows)
    mixed: list[NDArray[np.int64]] = []
    for start in range(0, len(order), batch_size * WINDOW):
        window = order[start : start + batch_size * WINDOW]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches = [window[i : i + batch_size] for i in range(0, len(window), batch_size)]
        mixed += [batches[i] for i in rng.permutation(len(batches))]
    return mixed
