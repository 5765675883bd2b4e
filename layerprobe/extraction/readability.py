"""Checks how a model's tokenizer reads texts before they are embedded. Loads no weights."""

import itertools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH
from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.loading import ModelLike, resolve
from layerprobe.files.images import captions_of, readable_as
from layerprobe.names import short_name
from layerprobe.tasks.quality import DataQuality, task_quality, text_quality
from layerprobe.tasks.values import Task, TextSplit

LOOKED_AT = 2000
"""Texts, at most; more are drawn from at equal distances."""
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def data_quality(
    model: ModelLike,
    data: Task | Sequence[str],
    *,
    split: TextSplit = "all",
    max_length: int | None = None,
) -> DataQuality:
    """Return what is odd about a task or texts, and what a model's tokenizer makes of them.

    Args:
        model: A name, a folder, or a `Model`; its weights are not loaded.
        data: A task, or texts.
        split: Whose texts of a task.
        max_length: Tokens at which texts are cut; by default as the options say.
    """
    quality, texts = (task_quality(data), data.texts(split)) if isinstance(data, Task) else (text_quality(data), data)
    items = readable_as(texts)
    checkpoint = resolve(model, items=items)
    if checkpoint.modality == "image":
        return quality
    texts = captions_of(texts)
    max_tokens = max_length or checkpoint.max_length or DEFAULT_MAX_LENGTH
    limit = min(max_tokens, checkpoint.tokenizer.model_max_length)
    with model_errors(checkpoint.label, "tokenizing"):
        whole = frozenset(data.split(split).windowed) if isinstance(data, Task) else frozenset()
        name = short_name(checkpoint.label)
        return with_tokens(quality, checkpoint.tokenizer, texts, limit=limit, model=name, windowed=whole)


def with_tokens(
    quality: DataQuality,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    limit: int,
    model: str,
    windowed: Collection[str] = (),
) -> DataQuality:
    """Return the quality with what a tokenizer makes of texts; of more than `LOOKED_AT`, from as many of them.

    Those that are `windowed` are never cut.
    """
    step = max(1, math.ceil(len(texts) / LOOKED_AT))
    texts = [text for text in texts[::step] if text.strip()]
    offsets = bool(tokenizer.is_fast)
    encoded = tokenizer(
        texts, add_special_tokens=False, truncation=False, return_offsets_mapping=offsets, verbose=False
    )
    unknown = tokenizer.unk_token_id
    is_byte = {
        i for i, token in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))) if _BYTE.match(str(token))
    }
    n_tokens = n_bytes = n_characters = n_lost = 0
    for row, text in enumerate(texts):
        ids = encoded["input_ids"][row]
        n_tokens += len(ids)
        n_bytes += sum(token in is_byte for token in ids) if is_byte else 0
        characters = _visible(text)
        n_characters += characters
        if offsets:
            spans = zip(ids, encoded["offset_mapping"][row], strict=True)
            n_lost += _visible(_unread(text, [span for token, span in spans if token != unknown]))
        elif ids:
            n_lost += round(characters * sum(token == unknown for token in ids) / len(ids))
    by_text = [len(ids) + tokenizer.num_special_tokens_to_add() for ids in encoded["input_ids"]]
    n_cut = sum(length > limit and text not in windowed for length, text in zip(by_text, texts, strict=True))
    return replace(
        quality,
        model=model,
        unknown_characters=n_lost / max(1, n_characters),
        byte_tokens=n_bytes / max(1, n_tokens),
        limit=limit,
        truncated=n_cut / max(1, len(texts)),
    )


def _visible(text: str) -> int:
    """Return how many characters are no white space."""
    return sum(map(len, text.split()))


def _unread(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the characters that are in none of some spans."""
    unread = bytearray(b"\1") * len(text)
    for start, stop in spans:
        unread[start:stop] = bytes(stop - start)
    return "".join(itertools.compress(text, unread))
