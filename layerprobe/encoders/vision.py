"""From images to pixels, by the model's own processor, batch by batch. Knows processors and grids; runs no model."""

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.encoders.batching import EXTRA, TOKEN, Batch, digest_array, on_device
from layerprobe.encoders.failures import model_errors
from layerprobe.errors import DataError, ModelError
from layerprobe.files.images import ImageItem, pillow

PIXEL_MEMORY = 2**29
"""Bytes of pixels that a reader caches for the next epoch."""
N_PROBES = 4


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
