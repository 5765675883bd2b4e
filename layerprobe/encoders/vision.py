"""Images -> pixels, by the model's own processor, a batch at a time. Knows processors and grids; runs no model."""

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.encoders.batching import EXTRA, TOKEN, Batch, as_digests, on_device
from layerprobe.encoders.failures import model_errors
from layerprobe.errors import DataError, ModelError
from layerprobe.files.images import ImageItem, pillow

PIXEL_MEMORY = 2**29
"""Bytes of pixels that a reader keeps for the next epoch."""
N_PROBES = 4


@dataclass(slots=True, kw_only=True, eq=False)
class ImageReader:
    """What makes the pixels of a model from images, and how many tokens the model makes of them.

    Pixels are kept for the next epoch of training as far as `PIXEL_MEMORY` goes.
    """

    processor: Any
    """The model's own image processor, on Pillow and numpy whatever else is installed."""
    name: str
    """Of the model, for its errors."""
    n_tokens: int
    """Tokens of an image; 0 where that is not known yet."""
    n_extra: int
    """Those that are no patch of the image, at the beginning: [CLS], the token of a distilled model, registers."""
    _kept: dict[str, Tensor] = field(default_factory=dict)
    _n_bytes: int = 0

    def mask(self, n_images: int) -> Tensor:
        """Return which tokens of images are patches, (image, token)."""
        mask = torch.full((n_images, self.n_tokens), TOKEN)
        mask[:, : self.n_extra] = EXTRA
        return mask

    def pixels(self, item: ImageItem) -> Tensor:
        """Return the pixels of an image, (channel, row, column) float32."""
        cached = self._kept.get(item.sha256)
        if cached is not None:
            return cached
        image = item.read()
        with model_errors(self.name, f"preprocessing {item.place}", advice="leave this image out"):
            pixels: Tensor = self.processor(images=[image], return_tensors="pt")["pixel_values"][0].float()
        size = pixels.numel() * pixels.element_size()
        if self._n_bytes + size <= PIXEL_MEMORY:
            self._kept[item.sha256] = pixels
            self._n_bytes += size
        return pixels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedImages:
    """Images from which batches of pixels are made as they are needed: memory holds no more than a batch of them."""

    images: tuple[ImageItem, ...]
    reader: ImageReader
    n_truncated: ClassVar[int] = 0
    padding_side: ClassVar[str] = "right"
    """Images are neither cut nor padded."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def lengths(self) -> list[int]:
        """Tokens of every image: of all the same number."""
        return [self.reader.n_tokens] * len(self.images)

    def length(self, row: int) -> int:
        """Return the tokens of one image."""
        return self.reader.n_tokens

    @property
    def digests(self) -> NDArray[np.bytes_]:
        """(image,): 16 bytes of a hash of its file, whatever its caption."""
        return as_digests(bytes.fromhex(image.sha256)[:16] for image in self.images)

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


def prepare_images(reader: ImageReader, items: Sequence[str]) -> PreparedImages:
    """Return images to make batches of."""
    if texts := [item for item in items if not isinstance(item, ImageItem)]:
        raise DataError(f"{reader.name} reads images, got the text {texts[0][:60]!r}: give images, or a text model")
    return PreparedImages(images=tuple(item for item in items if isinstance(item, ImageItem)), reader=reader)


@functools.cache
def probe_images() -> tuple[ImageItem, ...]:
    """Return four images of noise, of unequal sizes, on which a freshly loaded model is looked at."""
    rng, items = np.random.default_rng(0), []
    for number in range(N_PROBES):
        file = io.BytesIO()
        noise = rng.integers(0, 256, (24 + 8 * number, 40, 3), dtype=np.uint8)
        pillow().fromarray(noise).save(file, "PNG")
        items.append(ImageItem.of_bytes(file.getvalue(), place=f"probe {number + 1}"))
    return tuple(items)


def is_image_processor(value: object) -> bool:
    """Return whether this is an image processor of transformers."""
    return hasattr(value, "image_processor_type") or "ImageProcessor" in type(value).__name__
