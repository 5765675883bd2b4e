"""An image as an item of data, identified by its bytes and read on demand. Knows files and Pillow, no model.

An item can replace a text in tasks, splits, links and the store: it is a string of its content's digest.
"""

import functools
import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from layerprobe.checks import check_extra
from layerprobe.errors import DataError
from layerprobe.files.inputs import read_document
from layerprobe.process import without_warnings

if TYPE_CHECKING:
    from PIL.Image import Image

Modality = Literal["text", "image"]
"""Kind of input of a model."""
Readable = Literal["text", "image", "captioned"]
"""Kind of items: texts, images, or images with captions, which models of both kinds can read."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""Suffixes of image files."""
SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")
"""Pillow's modes of greyscale images with 16 bits; I has 16 bits only in PNG and PPM."""


class ImageItem(str):
    """An image, with or without a caption: a string of its digest, which identifies its content and not its location.

    Two items are equal if their images and captions are equal, so duplicates are detected as for texts. An image
    model reads the image; a text model reads the caption, if any.

    Examples:
        >>> ImageItem.of_bytes(b"pixels", place="a.png") == ImageItem.of_bytes(b"pixels", place="b.png")
        True
    """

    __slots__ = ("caption", "data", "file", "place", "sha256")

    sha256: str
    """sha256 of the file's bytes."""
    place: str
    """Name of the image in messages."""
    file: Path | None
    """File with the bytes; None if they are in memory."""
    data: bytes | memoryview | None
    """The bytes, if they are not in a file of their own."""
    caption: str | None
    """Caption; None without one."""

    def __new__(
        cls,
        sha256: str,
        *,
        place: str,
        file: Path | None = None,
        data: bytes | memoryview | None = None,
        caption: str | None = None,
    ) -> Self:
        """Make the item of a digest, with its bytes in a file or in memory."""
        item = super().__new__(cls, f"image {sha256}" + ("" if caption is None else f" {caption}"))
        item.sha256, item.place, item.file, item.data, item.caption = sha256, place, file, data, caption
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        data = None if self.data is None else bytes(self.data)  # other processes cannot share a view of a file
        made = functools.partial(type(self), place=self.place, file=self.file, data=data, caption=self.caption)
        return made, (self.sha256,)

    def __repr__(self) -> str:
        return f"<ImageItem {self.place}>"

    @classmethod
    def of_bytes(cls, data: bytes | memoryview, *, place: str, caption: str | None = None) -> Self:
        """Return the item for the bytes of an image file."""
        return cls(hashlib.sha256(data).hexdigest(), place=place, data=data, caption=caption)

    def read(self) -> "Image":
        """Return the image in RGB, rotated by its EXIF data.

        Raises:
            DataError: If it cannot be opened, or has changed since it was listed.
        """
        data = self.data if self.file is None else _bytes_of(self.file)
        assert data is not None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise DataError(f"{self.place} has changed since it was listed: run the command again")
        return decoded(data, self.place)


def _bytes_of(file: Path) -> bytes:
    try:
        return read_document(file, limit=None)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def pillow() -> Any:
    """Return Pillow's module `Image`.

    Raises:
        MissingPackageError: If Pillow is not installed.
    """
    check_extra("images", needed_by="opening images")
    from PIL import Image, ImageOps  # noqa: F401

    return Image


def decoded(data: bytes | memoryview, place: str) -> "Image":
    """Return the image in a file's bytes, in RGB and rotated, as the processors of transformers expect it.

    It is rotated by its EXIF data; palettes and greys become RGB, transparency is dropped. 16-bit greys are divided by
    257: Pillow, and therefore transformers, would turn everything above 255 white.

    Raises:
        DataError: If it cannot be opened, is truncated, or has more pixels than Pillow considers safe.
    """
    pil = pillow()
    import numpy as np  # late: `--help` imports this module
    from PIL import ImageOps

    try:
        with without_warnings():
            image = pil.open(io.BytesIO(data))
        if pil.MAX_IMAGE_PIXELS is not None and image.width * image.height > pil.MAX_IMAGE_PIXELS:
            raise pil.DecompressionBombError
        image.load()
        if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
            pixels = "floating-point" if image.mode == "F" else "32-bit or signed"
            raise DataError(f"{place} has {pixels} pixels of unknown range: save it with 8 bits per channel")
        image = ImageOps.exif_transpose(image)
        if image.mode in SIXTEEN_BITS:
            image = pil.fromarray((np.asarray(image).astype(np.int64) // 257).clip(0, 255).astype(np.uint8))
        return image.convert("RGB")
    except DataError:
        raise
    except pil.DecompressionBombError:
        raise DataError(
            f"{place} has more than the {pil.MAX_IMAGE_PIXELS:,} pixels that Pillow considers safe: make it smaller"
        ) from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error
        reason = " ".join(str(error).split())
        reason = "Pillow does not recognise its format" if "cannot identify" in reason else reason
        raise DataError(f"{place} cannot be opened as an image: {reason[:120]}") from error


def readable_as(items: Sequence[str]) -> Readable:
    """Return the kind of items.

    Raises:
        DataError: If some are images and others are texts.
    """
    listed = items if isinstance(items, tuple | list) else items[:1]  # `SpooledTexts` hold only texts
    kinds: set[Readable] = {
        "text" if not isinstance(item, ImageItem) else "image" if item.caption is None else "captioned"
        for item in listed
    }
    if len(kinds) > 1:
        raise DataError(
            f"expected texts, images, or images with captions, got {' and '.join(sorted(kinds))} in one list"
        )
    return next(iter(kinds), "text")


def prompted(prompt: str, items: Sequence[str]) -> Sequence[str]:
    """Return items with a prompt before their texts, or captions.

    Raises:
        DataError: If a prompt is given for images.
    """
    return [_prompted(prompt, item) for item in items] if prompt else items


def _prompted(prompt: str, item: str) -> str:
    if not isinstance(item, ImageItem):
        return prompt + item
    if item.caption is None:
        raise DataError(f"expected no prompt for images, got {prompt!r}")
    return ImageItem(item.sha256, place=item.place, file=item.file, data=item.data, caption=prompt + item.caption)


def caption_texts(items: Sequence[str]) -> Sequence[str]:
    """Return the texts, or captions, of items.

    Raises:
        DataError: If an image has no caption.
    """
    kind = readable_as(items)
    if kind == "image":
        raise DataError("expected texts, got images without captions")
    return items if kind == "text" else [item.caption or "" for item in items if isinstance(item, ImageItem)]


def is_image_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file name has the suffix of an image.

    Examples:
        >>> is_image_file("photo.JPG"), is_image_file("notes.txt")
        (True, False)
    """
    return Path(path).suffix.lower() in SUFFIXES
