"""Sentences as words -> token ids, and which token stands for each word: its first one. Runs no model."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.encoders.batching import CHUNK, TokenizedTexts
from layerprobe.encoders.encoder import Encoder, check_known, reads_token_types
from layerprobe.encoders.failures import model_errors
from layerprobe.errors import DataError

NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedWords:
    """Sentences as token ids, and where each of their words begins."""

    texts: TokenizedTexts
    """A text a sentence."""
    ends: NDArray[np.int64]
    """(sentence + 1,): sentence i has the words `ends[i]` to `ends[i + 1]`."""
    first: NDArray[np.int64]
    """(word,): the place of its first token in its sentence; `NO_TOKEN` where it has none, or is cut off."""
    n_cut: int
    """Words that are cut off by the maximum length."""

    @property
    def sentence(self) -> NDArray[np.int64]:
        """(word,): the number of its sentence."""
        numbers: NDArray[np.int64] = np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))
        return numbers


def tokenize_words(
    encoder: Encoder, sentences: Sequence[Sequence[str]], *, max_length: int | None = None
) -> TokenizedWords:
    """Return sentences as token ids, cut at the model's own limit or `max_length`, and the first token of every word.

    They are those that transformers gives for words (`is_split_into_words`), of tokenizers that begin words with a
    space as with `add_prefix_space`. Slow tokenizers, which tell no words, are given one word at a time.
    """
    tokenizer, limit = encoder.tokenizer, encoder.limit(max_length)
    n_special = tokenizer.num_special_tokens_to_add()
    if limit <= n_special:
        raise DataError(f"expected a maximum length of more than the {n_special} special tokens, got {limit}")
    ids: list[list[int]] = []
    first: list[NDArray[np.int64]] = []
    types: list[list[int]] = []
    n_cut = n_truncated = 0
    token_types = reads_token_types(encoder.model)
    with model_errors(encoder.description.name, "tokenizing", advice="take another checkpoint, or drop odd texts"):
        tokenized = _by_words if tokenizer.is_fast else _word_by_word
        for words, tokens, of_type, places, cut in tokenized(tokenizer, sentences, limit):
            if not tokens:
                raise DataError(f"the tokenizer finds no token in the text {' '.join(words)[:60]!r}: drop it")
            ids.append(tokens)
            first.append(places)
            types.append(of_type if token_types else [])
            n_cut += cut
            n_truncated += cut > 0
    flat = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int32)
    check_known(encoder.model, flat)
    texts = TokenizedTexts(
        ids=flat,
        types=np.fromiter(itertools.chain.from_iterable(types), dtype=np.uint8) if any(types) else None,
        ends=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        pad_id=tokenizer.pad_token_id or 0,
        pad_type=tokenizer.pad_token_type_id,
        padding_side=tokenizer.padding_side,
        n_truncated=n_truncated,
    )
    return TokenizedWords(
        texts=texts,
        ends=np.cumsum([0, *map(len, sentences)], dtype=np.int64),
        first=np.concatenate([np.zeros(0, dtype=np.int64), *first]),
        n_cut=n_cut,
    )


_Tokens = tuple[Sequence[str], list[int], list[int], NDArray[np.int64], int]
"""Words, their ids, token types where there are some, the place of each word's first token, and words cut off."""


def _by_words(tokenizer: Any, sentences: Sequence[Sequence[str]], limit: int) -> Iterator[_Tokens]:
    space = " " if _begins_words_with_a_space(tokenizer) else ""
    for start in range(0, len(sentences), CHUNK):
        part = sentences[start : start + CHUNK]
        spaced = [[space + word for word in words] for words in part]
        # uncut, to tell words that are cut off from those without a token
        whole = tokenizer(
            spaced, is_split_into_words=True, truncation=False, return_attention_mask=False, verbose=False
        )
        cut = tokenizer(
            spaced, is_split_into_words=True, truncation=True, max_length=limit, return_attention_mask=False
        )
        for i, words in enumerate(part):
            places = _places(cut.word_ids(i), len(words))
            n_cut = int(((places == NO_TOKEN) & (_places(whole.word_ids(i), len(words)) != NO_TOKEN)).sum())
            yield words, cut["input_ids"][i], cut["token_type_ids"][i] if "token_type_ids" in cut else [], places, n_cut


def _places(word_ids: Sequence[int | None], n_words: int) -> NDArray[np.int64]:
    places = np.full(n_words, NO_TOKEN, dtype=np.int64)
    for place, word in reversed(list(enumerate(word_ids))):
        if word is not None:
            places[word] = place
    return places


def _begins_words_with_a_space(tokenizer: Any) -> bool:
    """Return whether words in a text have a space in front that words by themselves lack, as in GPT-2 and RoBERTa."""
    text, alone, spaced = (
        tokenizer(text, is_split_into_words=isinstance(text, list), add_special_tokens=False)["input_ids"]
        for text in ("two two", ["two", "two"], [" two", " two"])
    )
    second = spaced[len(spaced) // 2 :]
    return bool(second) and alone != text and text[-len(second) :] == second


def _word_by_word(tokenizer: Any, sentences: Sequence[Sequence[str]], limit: int) -> Iterator[_Tokens]:
    ids_of: dict[str, list[int]] = {}
    room = limit - tokenizer.num_special_tokens_to_add()
    sample = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("two"))[:1]
    before = tokenizer.build_inputs_with_special_tokens(sample).index(sample[0])
    for words in sentences:
        for word in words:
            if word not in ids_of:
                ids_of[word] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word))
        pieces = [ids_of[word] for word in words]
        ids = list(itertools.chain.from_iterable(pieces))[:room]
        starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)[:-1]
        empty = np.array([not piece for piece in pieces], dtype=bool)
        cut = (starts >= room) & ~empty
        built = tokenizer.build_inputs_with_special_tokens(ids)
        yield words, built, [0] * len(built), np.where(cut | empty, NO_TOKEN, starts + before), int(cut.sum())
