"""Checks how a model's tokenizer reads texts before they are embedded. Loads no weights."""

import functools
import itertools
import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.loading import ModelLike, Resolved, resolve
from layerprobe.encoders.vocabulary import FEW_MISSING, is_far_smaller, missing_share
from layerprobe.errors import option, unreliable
from layerprobe.files.images import caption_texts, readable_as
from layerprobe.names import counted, short_name
from layerprobe.tasks.quality import MANY_TOKENS, DataQuality, task_quality, text_quality
from layerprobe.tasks.values import Task, TextSplit

LOOKED_AT = 2000
"""Most texts to examine; more are sampled at equal distances."""
FEW = 64
"""Most texts to examine when no table was requested."""
WORDS = 200
"""Most different words that are read one by one."""
FEWEST_WORDS = 5
MOST_TOKENS = 1_000_000
"""Largest vocabulary of words; beyond it are all characters of Unicode, as in CANINE."""
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_WORD = re.compile(r"[^\W\d_]{4,}")
_MARKS = re.compile(r"^(##|[▁Ġ ])|</w>$")
"""Marks on tokens of a vocabulary besides letters."""


def reading_cautions(checkpoint: Resolved, texts: Sequence[str]) -> tuple[str, ...]:
    """Return problems of a model's tokenizer with a sample of texts; none for images."""
    if checkpoint.modality == "image":
        return ()
    texts = [texts[i] for i in range(0, len(texts), math.ceil(len(texts) / FEW))] if texts else []
    quality = _read(text_quality(()), checkpoint, caption_texts(texts))
    return (*tokenizer_cautions(checkpoint), *quality.cautions)


def tokenizer_cautions(checkpoint: Resolved) -> tuple[str, ...]:
    """Return problems of a model's tokenizer with any text."""
    if checkpoint.modality == "image":
        return ()
    name, tokenizer, recipe = short_name(checkpoint.label), checkpoint.tokenizer, checkpoint.recipe
    cautions = []
    if is_far_smaller(tokenizer, checkpoint.config):
        sizes = f"it has {len(tokenizer):,} tokens, and the model {checkpoint.config.vocab_size:,}"
        cautions.append(unreliable(f"the tokenizer of {name} seems to belong to another model: {sizes}"))
    tokens = " ".join(map(str, tokenizer.convert_ids_to_tokens(tokenizer("a")["input_ids"])))
    promise = f"token around texts that its tokenizer_config.json promises ('a' is read as {tokens})"
    if "begin" in recipe.lacking and (recipe.causal or checkpoint.pooling == "cls"):
        cautions.append(f"{name} has no begin {promise}: fix the post_processor of its tokenizer.json")
    if "end" in recipe.lacking and checkpoint.pooling == "last":
        can = checkpoint.loaded is None and tokenizer.eos_token is not None
        advice = f"append one with {option('end_token', True)}" if can else "use a tokenizer that appends one"
        cautions.append(f"{name} pools the last word, because it has no end {promise}: {advice}")
    return tuple(cautions)


def data_quality(
    model: ModelLike,
    data: Task | Sequence[str],
    *,
    split: TextSplit = "all",
) -> DataQuality:
    """Return the problems of texts or of a split of a task, and how a model's tokenizer reads them.

    The model's weights are not loaded.
    """
    quality, texts = (task_quality(data), data.texts(split)) if isinstance(data, Task) else (text_quality(data), data)
    items = readable_as(texts)
    checkpoint = resolve(model, items=items)
    if checkpoint.modality == "image":
        return quality
    whole = frozenset(data.split(split).windowed) if isinstance(data, Task) else frozenset()
    return _read(quality, checkpoint, caption_texts(texts), windowed=whole)


def _read(
    quality: DataQuality, checkpoint: Resolved, texts: Sequence[str], *, windowed: Collection[str] = ()
) -> DataQuality:
    with model_errors(checkpoint.label, "tokenizing"):
        about: dict[str, Any] = {"limit": checkpoint.limit, "model": short_name(checkpoint.label)}
        return with_tokens(quality, checkpoint.tokenizer, texts, windowed=windowed, **about)


def with_tokens(
    quality: DataQuality,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    limit: int,
    model: str,
    windowed: Collection[str] = (),
) -> DataQuality:
    """Return the quality extended by the tokenizer's reading of texts, or of `LOOKED_AT` of them.

    Texts in `windowed` are never truncated.
    """
    step = max(1, math.ceil(len(texts) / LOOKED_AT))
    texts = [text for text in texts[::step] if text.strip()]
    offsets = bool(tokenizer.is_fast)
    encoded = tokenizer(
        texts, add_special_tokens=False, truncation=False, return_offsets_mapping=offsets, verbose=False
    )
    unknown, n_characters, n_lost = tokenizer.unk_token_id, 0, 0
    for row, text in enumerate(texts):
        ids = encoded["input_ids"][row]
        characters = _visible(text)
        n_characters += characters
        if offsets:
            spans = zip(ids, encoded["offset_mapping"][row], strict=True)
            n_lost += _visible(_unread(text, [span for token, span in spans if token != unknown]))
        elif ids:
            n_lost += round(characters * sum(token == unknown for token in ids) / len(ids))
    by_text = [len(ids) + tokenizer.num_special_tokens_to_add() for ids in encoded["input_ids"]]
    n_cut = sum(length > limit and text not in windowed for length, text in zip(by_text, texts, strict=True))
    tokens_per_letter, example = _words(tokenizer, texts) if _has_words(tokenizer) else (0.0, ())
    missing = missing_share(tokenizer, texts)
    sizes = (len(tokenizer.get_vocab()), tokenizer.whole.get_vocab_size()) if missing > FEW_MISSING else None
    return replace(
        quality,
        model=model,
        tokens_per_letter=tokens_per_letter,
        example=example,
        missing="" if sizes is None else f"of {counted(len(texts), 'text')}, {missing_sentence(missing, sizes)}",
        unknown_characters=n_lost / max(1, n_characters),
        limit=limit,
        truncated=n_cut / max(1, len(texts)),
    )


@functools.lru_cache(maxsize=2)
def _has_words(tokenizer: Any) -> bool:
    """Return whether most tokens of a vocabulary have several letters."""
    if len(tokenizer) > MOST_TOKENS:
        return False
    tokens = {*map(str, tokenizer.convert_ids_to_tokens(range(len(tokenizer))))} - {*tokenizer.all_special_tokens}
    words = [token for token in tokens if not _BYTE.match(token)]
    return sum(len(_MARKS.sub("", token)) > 1 for token in words) > len(words) / 2


def _words(tokenizer: Any, texts: Sequence[str]) -> tuple[float, tuple[str, ...]]:
    """Return the tokens per letter of some words and, if they are many, the worst word with its tokens.

    Scripts with one sign per syllable or word, such as Chinese, are ignored.
    """
    every = (word.casefold() for text in texts for word in _WORD.findall(text))
    spaced = (word for word in every if unicodedata.east_asian_width(word[0]) not in "WF")
    words = list(dict.fromkeys(itertools.islice(spaced, 10 * WORDS)))[:WORDS]
    if len(words) < FEWEST_WORDS:
        return 0.0, ()
    read = tokenizer(words, add_special_tokens=False)["input_ids"]
    per_letter = sum(map(len, read)) / sum(map(len, words))
    word, ids = max(zip(words, read, strict=True), key=lambda pair: len(pair[1]))
    example = word, *map(str, tokenizer.convert_ids_to_tokens(ids))
    return per_letter, example if per_letter > MANY_TOKENS else ()


def _visible(text: str) -> int:
    """Return the number of characters that are not white space."""
    return sum(map(len, text.split()))


def _unread(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the characters outside of all spans."""
    unread = bytearray(b"\1") * len(text)
    for start, stop in spans:
        unread[start:stop] = bytes(stop - start)
    return "".join(itertools.compress(text, unread))


def missing_sentence(missing: float, tokens: tuple[int, int]) -> str:
    """Return the share of texts' tokens that are no longer in the vocabulary, and what to do."""
    return (
        f"{100 * missing:.0f} % of their tokens were removed from its vocabulary, which has {tokens_phrase(tokens)}, "
        "and are spelt with shorter ones, so embeddings are worse: keep the tokens of texts in this language and "
        "domain, or use the whole model"
    )


def tokens_phrase(tokens: tuple[int, int]) -> str:
    """Return the number of tokens kept, out of the vocabulary.

    Examples:
        >>> tokens_phrase((15000, 30522))
        '15,000 of 30,522 tokens'
    """
    return f"{tokens[0]:,} of {tokens[1]:,} tokens"
