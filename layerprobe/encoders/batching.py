"""Texts -> token ids -> padded batches. Knows tokenizers and lengths; runs no model."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerprobe.errors import DataError

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedTexts:
    """Texts as token ids."""

    features: dict[str, list[list[int]]]
    """input_ids, attention_mask and, where the model reads them, token_type_ids: one list a text."""
    padding: dict[str, int]
    """The value that fills up each feature."""
    padding_side: str
    """left or right."""
    n_truncated: int
    """Texts that were longer than the maximum length."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of every text."""
        return [len(ids) for ids in self.features["input_ids"]]


def tokenize(tokenizer: Any, texts: Sequence[str], *, max_length: int, token_types: bool) -> TokenizedTexts:
    """Return `texts` as token ids, cut at `max_length` tokens, special ones included.

    `token_types` says whether the model reads token type ids.

    Raises:
        DataError: If the maximum length leaves no room for words, or a text has no token.
    """
    n_special = tokenizer.num_special_tokens_to_add()
    if max_length <= n_special:
        raise DataError(f"expected a maximum length of more than the {n_special} special tokens, got {max_length}")
    encoded: Any = {"input_ids": [], "attention_mask": []}
    names = list(encoded)
    if texts:
        encoded = tokenizer(list(texts), truncation=True, max_length=max_length, return_overflowing_tokens=False)
    if token_types and "token_type_ids" in encoded:
        names.append("token_type_ids")
    for text, ids in zip(texts, encoded["input_ids"], strict=True):
        if not ids:
            raise DataError(f"the tokenizer finds no token in the text {text[:60]!r}: drop it")
    # a text of exactly max_length tokens is whole: ask for one token more to tell
    full = [text for text, ids in zip(texts, encoded["input_ids"], strict=True) if len(ids) >= max_length]
    longer = tokenizer(full, truncation=True, max_length=max_length + 1)["input_ids"] if full else []
    return TokenizedTexts(
        features={name: list(encoded[name]) for name in names},
        padding={
            "input_ids": tokenizer.pad_token_id or 0,
            "attention_mask": 0,
            "token_type_ids": tokenizer.pad_token_type_id,
        },
        padding_side=tokenizer.padding_side,
        n_truncated=sum(len(ids) > max_length for ids in longer),
    )


def collate(texts: TokenizedTexts, rows: Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Return the texts `rows`, padded to the longest of them, as (text, token) tensors."""
    width = max(len(texts.features["input_ids"][row]) for row in rows)
    batch = {}
    for name, values in texts.features.items():
        padded = []
        for row in rows:
            padding = [texts.padding[name]] * (width - len(values[row]))
            padded.append(padding + values[row] if texts.padding_side == "left" else values[row] + padding)
        batch[name] = torch.tensor(padded).to(device, non_blocking=True)
    return batch


def token_batches(lengths: Sequence[int], *, budget: int, same_length: bool = False) -> Iterator[list[int]]:
    """Yield batches of row numbers whose padded size stays within `budget` tokens, longest texts first.

    Args:
        lengths: Tokens of every text.
        budget: Tokens a batch, padding included; a single longer text is a batch of its own.
        same_length: Never pad: every batch holds texts of one length.

    Examples:
        >>> list(token_batches([2, 9, 3, 2], budget=6))
        [[1], [2, 0], [3]]
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        width = lengths[batch[0]] if batch else 0
        full = (len(batch) + 1) * width > budget or (same_length and lengths[row] != width)
        if batch and full:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def padded_groups(lengths: Sequence[int], *, budget: int | None = None, overhead: int = 0) -> list[list[int]]:
    """Cut rows into groups of like lengths, at the least cost of padding and of groups, longest first.

        cost = sum over groups of (rows x longest length + overhead)

    Exact: in the order of lengths, the cheapest end of every first part is known when the next is looked for. The time
    is quadratic in the rows, but where no cut can pay: it is meant for the examples of a step, not for a data set.

    Args:
        lengths: Tokens of every row.
        budget: As for `token_batches`, of a group.
        overhead: What another group costs, in tokens.

    Examples:
        >>> padded_groups([9, 2, 3, 8], overhead=2)
        [[0, 3], [2, 1]]
        >>> padded_groups([9, 2, 3, 8], overhead=20)
        [[0, 3, 2, 1]]
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    fits = bool(order) and (budget is None or len(order) * lengths[order[0]] <= budget)
    if fits and sum(lengths[order[0]] - length for length in lengths) < overhead:
        return [order]  # all padding there is costs less than a second group
    cost, begin = [0], [0]
    for end in range(1, len(order) + 1):
        cheapest, chosen = math.inf, end - 1
        for start in range(end - 1, -1, -1):
            tokens = (end - start) * lengths[order[start]]
            if budget is not None and tokens > budget and end - start > 1:
                break  # tokens only grow from here
            if cost[start] + tokens + overhead < cheapest:
                cheapest, chosen = cost[start] + tokens + overhead, start
        cost.append(int(cheapest))
        begin.append(chosen)
    groups = []
    end = len(order)
    while end:
        groups.append(order[begin[end] : end])
        end = begin[end]
    return groups[::-1]
