"""Texts -> token ids, images -> pixels, both -> padded batches; states -> one embedding per text or image.

Knows tokenizers and image processors, runs no model.
"""

import functools
import hashlib
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, ModelError
from layerprobe.files.images import ImageItem, pillow

Batch = dict[str, Tensor]

TOKEN, EXTRA = 1, 2
"""Values of an attention mask, where 0 is padding: a token, and an image's token that is not a patch, such as [CLS]."""
POOLED = "pooled"
"""Key of the mask of pooled tokens, in a batch whose prompts are not pooled."""

# Number of texts tokenised at once: a tokenizer's own records of a text are far larger than its ids.
CHUNK = 4096
PIXEL_MEMORY = 2**29
"""Bytes of pixels that a reader caches for the next epoch."""
N_PROBES = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedTexts:
    """Texts as concatenated token ids: millions of texts fit into memory."""

    ids: NDArray[np.int32]
    """(token,): ids of all texts."""
    types: NDArray[np.uint8] | None
    """(token,): token type ids, if the model reads them."""
    ends: NDArray[np.int64]
    """(text + 1,): text i is `ids[ends[i]:ends[i + 1]]`."""
    pad_id: int
    pad_type: int
    padding_side: str
    """left or right."""
    n_truncated: int
    """Number of texts longer than the maximum length."""
    n_unpooled: NDArray[np.int64] | None = None
    """(text,): number of leading tokens of a prompt that is not pooled; None: all tokens are pooled."""

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of every text."""
        return np.diff(self.ends).tolist()

    def length(self, row: int) -> int:
        """Return the number of tokens of one text."""
        return int(self.ends[row + 1] - self.ends[row])

    @property
    def digests(self) -> NDArray[np.bytes_]:
        """(text,): 16 bytes of a hash, equal for two texts only if the model reads the same tokens."""
        read = (self.ids,) if self.types is None else (self.ids, self.types)
        spans = (slice(start, end) for start, end in itertools.pairwise(self.ends.tolist()))
        texts = (b"".join(numbers[span].tobytes() for numbers in read) for span in spans)
        return digest_array(hashlib.blake2b(text, digest_size=16).digest() for text in texts)


@dataclass(slots=True, kw_only=True, eq=False)
class ImageReader:
    """Converts images to a model's pixels, and knows how many tokens the model makes of them.

    Pixels are cached for the next epoch of training, up to `PIXEL_MEMORY`.
    """

    processor: Any
    """The model's own image processor, always on Pillow and numpy."""
    name: str
    """Name of the model, for error messages."""
    n_tokens: int
    """Number of tokens per image; 0 until known."""
    n_extra: int
    """Number of leading tokens that are not patches: [CLS], the token of a distilled model, registers."""
    _kept: dict[str, Tensor] = field(default_factory=dict)
    _n_bytes: int = 0

    def mask(self, n_images: int) -> Tensor:
        """Return the mask of images, (image, token): which tokens are patches."""
        mask = torch.full((n_images, self.n_tokens), TOKEN)
        mask[:, : self.n_extra] = EXTRA
        return mask

    def pixels(self, item: ImageItem) -> Tensor:
        """Return the pixels of an image, (channel, row, column) float32."""
        cached = self._kept.get(item.sha256)
        if cached is not None:
            return cached
        image = item.read()
        with model_errors(self.name, f"preprocessing {item.place}", advice="remove this image"):
            pixels: Tensor = self.processor(images=[image], return_tensors="pt")["pixel_values"][0].float()
        size = pixels.numel() * pixels.element_size()
        if self._n_bytes + size <= PIXEL_MEMORY:
            self._kept[item.sha256] = pixels
            self._n_bytes += size
        return pixels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedImages:
    """Images that become pixels batch by batch: memory holds at most one batch."""

    images: tuple[ImageItem, ...]
    reader: ImageReader
    n_truncated: ClassVar[int] = 0
    padding_side: ClassVar[str] = "right"
    """Images are neither cut nor padded."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of every image, the same for all."""
        return [self.reader.n_tokens] * len(self.images)

    def length(self, row: int) -> int:
        """Return the number of tokens of one image."""
        return self.reader.n_tokens

    @property
    def digests(self) -> NDArray[np.bytes_]:
        """(image,): 16 bytes of a hash of its file, independent of its caption."""
        return digest_array(bytes.fromhex(image.sha256)[:16] for image in self.images)

    def collate(self, rows: Sequence[int], device: torch.device | str = "cpu") -> Batch:
        """Return the pixels of images, (image, channel, row, column), and the mask of their tokens."""
        pixels = [self.reader.pixels(self.images[row]) for row in rows]
        if len({image.shape for image in pixels}) > 1:
            sizes = " and ".join(sorted({"x".join(map(str, image.shape)) for image in pixels})[:2])
            raise ModelError(
                f"the image processor of {self.reader.name} makes {sizes} pixels of images of unequal sizes: expected "
                "one that crops or resizes all to one size"
            )
        batch = {"pixel_values": torch.stack(pixels), "attention_mask": self.reader.mask(len(pixels))}
        return {name: on_device(values, device) for name, values in batch.items()}


ModelInputs = TokenizedTexts | PreparedImages
"""Input of batches."""


def _encoded(tokenizer: Any, texts: Sequence[str], **options: Any) -> Any:
    """Return a tokenizer's output for truncated texts; ModelError if it fails, as its patterns may explode."""
    try:
        return tokenizer(texts, truncation=True, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's panic is not an Exception
            raise
        raise ModelError(f"the tokenizer of the model cannot read the texts: {str(error)[:120]}") from None


def tokenize(tokenizer: Any, texts: Sequence[str], *, max_length: int, token_types: bool) -> TokenizedTexts:
    """Return `texts` as token ids, truncated at `max_length` tokens, special ones included.

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
            return_attention_mask=False,  # all ones without padding
        )
        lengths += map(len, encoded["input_ids"])
        ids.append(np.fromiter(itertools.chain.from_iterable(encoded["input_ids"]), np.int32))
        token_types = token_types and "token_type_ids" in encoded
        if token_types:
            types.append(np.fromiter(itertools.chain.from_iterable(encoded["token_type_ids"]), np.uint8))
        full = []
        for text, tokens in zip(part, encoded["input_ids"], strict=True):
            if not tokens:
                raise DataError(f"the tokenizer finds no token in the text {text[:60]!r}: remove it")
            if len(tokens) >= max_length:
                full.append(text)
        # request one token more to recognise texts of exactly max_length tokens
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
    """Return (text,): number of leading tokens of each text that belong to its longest matching prompt.

    As in sentence-transformers, these are the tokens of the prompt alone, without a special one at its end.
    """
    lengths = dict[str, int]()
    for prompt in prompts:
        ids = _encoded(tokenizer, [prompt], max_length=max_length)["input_ids"][0]
        lengths[prompt] = len(ids) - (ids[-1:] != [] and ids[-1] in tokenizer.all_special_ids)
    longest = (max(filter(text.startswith, prompts), key=len, default="") for text in texts)
    return np.array([lengths.get(prompt, 0) for prompt in longest], dtype=np.int64)


def digest_array(digests: Iterable[bytes]) -> NDArray[np.bytes_]:
    """Return digests of 16 bytes as an array."""
    return np.frombuffer(b"".join(digests), dtype="S16")


def copies(texts: ModelInputs) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return texts whose tokens equal an earlier text's, and that text's row, (n,) both.

    Computed in different batches, equal texts would differ by rounding.
    """
    _, first, number = np.unique(texts.digests, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[number] != np.arange(len(number)))
    return again, first[number[again]]


def collate(texts: ModelInputs, rows: Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Return the texts `rows`, padded to the longest of them, as (text, token) tensors; or the pixels of images.

    Returns:
        input_ids, attention_mask (1 for tokens, 0 for padding) and, if the model reads them, token_type_ids; POOLED,
        the mask without prompts, if these are not pooled; for images see `PreparedImages.collate`.
    """
    if not isinstance(texts, TokenizedTexts):
        return texts.collate(rows, device)
    starts, ends = texts.ends[:-1][rows], texts.ends[1:][rows]
    width = int((ends - starts).max())
    # index of each batch position in the ids of all texts
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
    """Return a tensor on a device; only copies to CUDA are asynchronous.

    An asynchronous copy to MPS may read memory that has been reused by then (pytorch#83015).
    """
    return values.to(device, non_blocking=torch.device(device).type == "cuda")


def read_by_model(batch: Batch) -> Batch:
    """Return the model's inputs from a batch; the mask of images, which have no padding, is only for pooling."""
    if "pixel_values" in batch:
        return {"pixel_values": batch["pixel_values"]}
    return {name: values for name, values in batch.items() if name != POOLED}


def difference(computed: Tensor, expected: Tensor, mask: Tensor | None = None) -> float:
    """Return the difference of states, as a share of the largest expected number or of 1; `mask` selects tokens.

    It is infinity if shapes differ, and NaN if numbers are not finite.
    """
    if computed.shape != expected.shape:
        return math.inf
    if mask is not None:
        computed, expected = computed[mask], expected[mask]
    return ((computed - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


CPU_BATCH_TOKENS = 1024  # default size of a batch, padding included


def token_batches(lengths: Sequence[int], *, budget: int, same_length: bool = False) -> Iterator[list[int]]:
    """Yield batches of row numbers whose padded size stays within `budget` tokens, longest texts first.

    A longer text is a batch of its own. With `same_length` nothing is padded: all texts of a batch have one length.

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
    """Split rows into groups of similar lengths with the least cost of padding and of groups, longest first.

        cost = sum over groups of (rows x longest length + overhead)

    Exact: in the order of lengths, the cheapest split of every prefix is known when the next one is computed. The time
    is quadratic in the rows, except where no split can pay: it suits the examples of a step, not a data set.
    Lengths and overhead are in tokens; the budget is that of `token_batches`, per group.

    Examples:
        >>> padded_groups([9, 2, 3, 8], overhead=2)
        [[0, 3], [2, 1]]
        >>> padded_groups([9, 2, 3, 8], overhead=20)
        [[0, 3, 2, 1]]
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    fits = bool(order) and (budget is None or len(order) * lengths[order[0]] <= budget)
    if fits and sum(lengths[order[0]] - length for length in lengths) < overhead:
        return [order]  # all padding costs less than a second group
    cost, begin = [0], [0]
    for end in range(1, len(order) + 1):
        cheapest, chosen = math.inf, end - 1
        for start in range(end - 1, -1, -1):
            tokens = (end - start) * lengths[order[start]]
            if budget is not None and tokens > budget and end - start > 1:
                break  # the number of tokens only grows from here
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
    """Return one embedding per text, in float32 for any dtype of the states.

    Args:
        states: (text, token, feature).
        attention_mask: (text, token), 1 for tokens and 0 for padding on either side; for images 1 for patches and 2
            for the tokens before them.
        how: mean over the tokens, cls (the first token), max over the tokens, or the last token. For images, mean and
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
    # not len(states), which a traced graph would fix
    return states[torch.arange(states.shape[0], device=states.device), index]


def prepare_images(reader: ImageReader, items: Sequence[str]) -> PreparedImages:
    """Return images, ready for batches."""
    if texts := [item for item in items if not isinstance(item, ImageItem)]:
        raise DataError(f"{reader.name} reads images, got the text {texts[0][:60]!r}: pass images, or use a text model")
    return PreparedImages(images=tuple(item for item in items if isinstance(item, ImageItem)), reader=reader)


@functools.cache
def probe_images() -> tuple[ImageItem, ...]:
    """Return four images of noise, of different sizes, for inspecting a loaded model."""
    rng, items = np.random.default_rng(0), []
    for number in range(N_PROBES):
        file = io.BytesIO()
        noise = rng.integers(0, 256, (24 + 8 * number, 40, 3), dtype=np.uint8)
        pillow().fromarray(noise).save(file, "PNG")
        items.append(ImageItem.of_bytes(file.getvalue(), place=f"probe {number + 1}"))
    return tuple(items)


def is_image_processor(value: object) -> bool:
    """Return whether a value is an image processor of transformers."""
    return hasattr(value, "image_processor_type") or "ImageProcessor" in type(value).__name__
