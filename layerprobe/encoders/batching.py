"""Texts -> token ids -> padded batches; their states -> one embedding a text. Knows tokenizers, runs no model."""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, ModelError

if TYPE_CHECKING:
    from layerprobe.encoders.vision import PreparedImages


Batch = dict[str, Tensor]

TOKEN, EXTRA = 1, 2
"""In an attention mask, where 0 is padding: a token, and one of an image that is no patch of it, such as [CLS]."""

POOLED = "pooled"
"""The mask of the tokens that are pooled, in a batch whose prompts are not."""

# Texts that are tokenised at once: a tokenizer's own records of a text are far larger than its ids.
CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedTexts:
    """Texts as token ids, one behind the other: millions of them fit into memory."""

    ids: NDArray[np.int32]
    """(token,): those of all texts."""
    types: NDArray[np.uint8] | None
    """(token,): their token type ids, where the model reads them."""
    ends: NDArray[np.int64]
    """(text + 1,): text i is `ids[ends[i]:ends[i + 1]]`."""
    pad_id: int
    pad_type: int
    padding_side: str
    """left or right."""
    n_truncated: int
    """Texts that were longer than the maximum length."""
    n_unpooled: NDArray[np.int64] | None = None
    """(text,): how many of its first tokens are those of a prompt that is not pooled; None: all are pooled."""

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> list[int]:
        """Tokens of every text."""
        lengths: list[int] = np.diff(self.ends).tolist()
        return lengths

    def length(self, row: int) -> int:
        """Return the tokens of one text."""
        return int(self.ends[row + 1] - self.ends[row])

    @property
    def digests(self) -> NDArray[np.bytes_]:
        """(text,): 16 bytes of a hash, the same for two texts only where the model reads the same tokens of both."""
        read = (self.ids,) if self.types is None else (self.ids, self.types)
        spans = (slice(start, end) for start, end in itertools.pairwise(self.ends.tolist()))
        texts = (b"".join(numbers[span].tobytes() for numbers in read) for span in spans)
        return as_digests(hashlib.blake2b(text, digest_size=16).digest() for text in texts)


Prepared = Union[TokenizedTexts, "PreparedImages"]
"""What batches are made of."""


def _encoded(tokenizer: Any, texts: Sequence[str], **options: Any) -> Any:
    """Return what a tokenizer makes of texts that are cut; ModelError where it gives up, as patterns may explode."""
    try:
        return tokenizer(texts, truncation=True, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, which is no Exception
            raise
        raise ModelError(f"the tokenizer of the model cannot read the texts: {str(error)[:120]}") from None


def tokenize(tokenizer: Any, texts: Sequence[str], *, max_length: int, token_types: bool) -> TokenizedTexts:
    """Return `texts` as token ids, cut at `max_length` tokens, special ones included.

    `token_types` says whether the model reads token type ids.
    """
    n_special = tokenizer.num_special_tokens_to_add()
    if max_length <= n_special:
        raise DataError(f"expected a maximum length of more than the {n_special} special tokens, got {max_length}")
    ids, types = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.uint8)]
    lengths, n_truncated = [0], 0
    for start in range(0, len(texts), CHUNK):
        part = list(texts[start : start + CHUNK])
        encoded = _encoded(
            tokenizer,
            part,
            max_length=max_length,
            return_overflowing_tokens=False,
            return_attention_mask=False,  # all ones: nothing is padded here
        )
        lengths += map(len, encoded["input_ids"])
        ids.append(np.fromiter(itertools.chain.from_iterable(encoded["input_ids"]), np.int32))
        token_types = token_types and "token_type_ids" in encoded
        if token_types:
            types.append(np.fromiter(itertools.chain.from_iterable(encoded["token_type_ids"]), np.uint8))
        full = []
        for text, tokens in zip(part, encoded["input_ids"], strict=True):
            if not tokens:
                raise DataError(f"the tokenizer finds no token in the text {text[:60]!r}: drop it")
            if len(tokens) >= max_length:
                full.append(text)
        # a text of exactly max_length tokens is whole: ask for one token more to tell
        longer = _encoded(tokenizer, full, max_length=max_length + 1)["input_ids"] if full else []
        n_truncated += sum(len(tokens) > max_length for tokens in longer)
    return TokenizedTexts(
        ids=np.concatenate(ids),
        types=np.concatenate(types) if token_types else None,
        ends=np.cumsum(lengths, dtype=np.int64),
        pad_id=tokenizer.pad_token_id or 0,
        pad_type=tokenizer.pad_token_type_id,
        padding_side=tokenizer.padding_side,
        n_truncated=n_truncated,
    )


def prompt_lengths(
    tokenizer: Any, texts: Sequence[str], prompts: Sequence[str], *, max_length: int
) -> NDArray[np.int64]:
    """Return (text,): how many tokens of each text are those of the longest of some prompts that it begins with.

    As in sentence-transformers, these are the tokens of the prompt alone, but for a special one at its end.
    """
    lengths = dict[str, int]()
    for prompt in prompts:
        ids = _encoded(tokenizer, [prompt], max_length=max_length)["input_ids"][0]
        lengths[prompt] = len(ids) - (ids[-1:] != [] and ids[-1] in tokenizer.all_special_ids)
    longest = (max(filter(text.startswith, prompts), key=len, default="") for text in texts)
    return np.array([lengths.get(prompt, 0) for prompt in longest], dtype=np.int64)


def as_digests(digests: Iterable[bytes]) -> NDArray[np.bytes_]:
    """Return digests of 16 bytes as an array."""
    return np.frombuffer(b"".join(digests), dtype="S16")


def copies(texts: Prepared) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return texts whose tokens equal those of an earlier text, and that text's row, (n,) both.

    What is computed of them in other batches differs by rounding, and would tell equal inputs apart.
    """
    _, first, number = np.unique(texts.digests, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[number] != np.arange(len(number)))
    return again, first[number[again]]


def collate(texts: Prepared, rows: Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Return the texts `rows`, padded to the longest of them, as (text, token) tensors; or the pixels of images.

    Returns:
        input_ids, attention_mask (1 for tokens, 0 for padding) and, where the model reads them, token_type_ids; POOLED,
        the mask without prompts, where these are not pooled; of images see `PreparedImages.collate`.
    """
    if not isinstance(texts, TokenizedTexts):
        return texts.collate(rows, device)
    starts, ends = texts.ends[:-1][rows], texts.ends[1:][rows]
    width = int((ends - starts).max())
    # where each place of the batch is in the ids of all texts
    places = np.arange(width) + (starts if texts.padding_side == "right" else ends - width)[:, None]
    in_text = (places >= starts[:, None]) & (places < ends[:, None])
    places = np.where(in_text, places, 0)
    batch = {"input_ids": np.where(in_text, texts.ids[places], texts.pad_id), "attention_mask": in_text}
    if texts.types is not None:
        batch["token_type_ids"] = np.where(in_text, texts.types[places], texts.pad_type)
    if texts.n_unpooled is not None:
        batch[POOLED] = in_text & (places >= (starts + texts.n_unpooled[rows])[:, None])
    tensors = {name: torch.from_numpy(values.astype(np.int64)) for name, values in batch.items()}
    return {name: on_device(values, device) for name, values in tensors.items()}


def on_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; only CUDA is not waited for.

    A copy to MPS that is not waited for may read memory that is in use for something else by then (pytorch#83015).
    """
    return values.to(device, non_blocking=torch.device(device).type == "cuda")


def read_by_model(batch: Batch) -> Batch:
    """Return the model's inputs from a batch; the mask of images, which have no padding, is for pooling alone."""
    if "pixel_values" in batch:
        return {"pixel_values": batch["pixel_values"]}
    return {name: values for name, values in batch.items() if name != POOLED}


def difference(computed: Tensor, expected: Tensor, mask: Tensor | None = None) -> float:
    """Return by how much states differ, as a share of the largest expected number or of 1; of some tokens with a mask.

    It is infinity where shapes differ, and NaN where numbers are not finite.
    """
    if computed.shape != expected.shape:
        return math.inf
    if mask is not None:
        computed, expected = computed[mask], expected[mask]
    return ((computed - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


CPU_BATCH_TOKENS = 1024  # that go through a model at once, padding included, where nothing is said


def token_batches(lengths: Sequence[int], *, budget: int, same_length: bool = False) -> Iterator[list[int]]:
    """Yield batches of row numbers whose padded size stays within `budget` tokens, longest texts first.

    A single longer text is a batch of its own. With `same_length` nothing is padded: a batch has texts of one length.

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
    Lengths and overhead are in tokens; the budget is that of `token_batches`, of a group.

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


def pool(states: Tensor, attention_mask: Tensor, how: Pooling) -> Tensor:
    """Return one embedding a text, in float32 whatever the states' dtype.

    Args:
        states: (text, token, feature).
        attention_mask: (text, token), 1 for tokens and 0 for padding on either side; of an image 1 for patches and 2
            for the tokens before them.
        how: mean over the tokens, cls (the first token), max over the tokens, or the last token. Of an image, mean and
            max are over its patches.

    Returns:
        (text, feature) float32.
    """
    states = states.float()
    inside = attention_mask.bool() if how in ("cls", "last") else attention_mask == TOKEN
    # filled, not multiplied by 0: a state at padding may be infinite or NaN
    if how == "mean":
        return states.masked_fill(~inside.unsqueeze(-1), 0).sum(dim=1) / inside.sum(dim=1, keepdim=True)
    if how == "max":
        return states.masked_fill(~inside.unsqueeze(-1), -torch.inf).amax(dim=1)
    width = attention_mask.shape[1]
    positions = torch.arange(width, device=states.device).expand_as(attention_mask)
    if how == "cls":
        index = positions.masked_fill(~inside, width).amin(dim=1)
    else:
        index = positions.masked_fill(~inside, -1).amax(dim=1)
    # not len(states), which is the number of one batch for ever where a graph is made of this
    return states[torch.arange(states.shape[0], device=states.device), index]
