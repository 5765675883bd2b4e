"""Texts -> token ids, a held-out part, the batches of an epoch, and batches with some tokens masked.

Knows lengths and seeds; runs no model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.context import report
from layerprobe.encoders.batching import Prepared, TokenizedTexts, on_device
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedBatch:
    """A batch with the positions that the model must fill in."""

    ids: Tensor
    """(text, token): the original."""
    attention_mask: Tensor
    """(text, token): 1 for tokens, 0 for padding."""
    input_ids: Tensor
    """(text, token): with the selected tokens masked, replaced or kept."""
    selected: Tensor
    """(text, token) bool: the masked positions."""
    targets: Tensor
    """(selected,): the original ids there."""

    @property
    def n_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device) -> MaskedBatch:
        """Return it on a device."""
        return MaskedBatch(**{f.name: on_device(getattr(self, f.name), device) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """Which tokens are selected, and what is shown in their place: by default the shares of BERT.

    With both shares 0 every selected token becomes the mask, as for ELECTRA's generator.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Clark et al. 2020 (arXiv 2003.10555).
    """

    mask_id: int
    vocab_size: int
    """Random tokens are drawn below this id."""
    special_ids: tuple[int, ...]
    """Never selected."""
    rate: float = 0.15
    """Probability of a token to be selected."""
    random_share: float = 0.1
    """Share of the selected tokens that are shown as a random token."""
    kept_share: float = 0.1
    """Share of them that are shown as they are; the rest is shown as the mask."""

    @classmethod
    def of(cls, protocol: Any, tokenizer: Any, *, vocab_size: int, special_ids: Iterable[int]) -> Masking:
        """Return that of a protocol of adaptation or pretraining, whose fields have the same names."""
        return cls(
            mask_id=tokenizer.mask_token_id,
            vocab_size=vocab_size,
            special_ids=tuple(special_ids),
            rate=protocol.masking_rate,
            random_share=protocol.random_share,
            kept_share=protocol.kept_share,
        )

    def mask(self, ids: Tensor, attention_mask: Tensor, rng: torch.Generator) -> MaskedBatch:
        """Return (text, token) ids with some of them masked, on the CPU; padding and special tokens never are."""
        special = torch.isin(ids, torch.tensor(self.special_ids, dtype=ids.dtype)) | (attention_mask == 0)
        selected = (torch.rand(ids.shape, generator=rng) < self.rate) & ~special
        masked = ids.masked_fill(selected, self.mask_id)
        if self.random_share or self.kept_share:
            draw = torch.rand(ids.shape, generator=rng)
            random = torch.randint(self.vocab_size, ids.shape, generator=rng)
            masked = torch.where(selected & (draw < self.random_share + self.kept_share), ids, masked)
            masked = torch.where(selected & (draw < self.random_share), random, masked)
        return MaskedBatch(
            ids=ids, attention_mask=attention_mask, input_ids=masked, selected=selected, targets=ids[selected]
        )
