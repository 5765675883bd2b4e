"""Images as texts of patch codes, so that what is asked of tokens can be asked of patches.

Images are cut into patches, and each patch is the nearest of some centres found by k-means: its code, written as one
letter. An encoder that is pretrained on such texts by `mlm` fills in masked patches, as BEiT does of discrete codes;
one by `rtd` tells which patches were replaced by samples of a generator. Reading codes and not pixels, it cannot tell
them by a blur or a seam that sampled pixels would have.

The images are made of the handwritten digits that scikit-learn ships, 8 x 8 pixels each: a digit somewhere on a larger
canvas, among fragments of others, as in Mnih et al. 2014 (arXiv 1406.6247), section 4.

    python benchmarks/image_patches.py DIRECTORY

writes `patches.txt`, texts to pretrain on, and `digits/`, a task with the digit of each image as its label. No digit is
in two splits, also not as a fragment, and the texts are made of those of the training split.
"""

import argparse
import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from layerprobe.errors import DataError
from layerprobe.files.atomic import replace_file

PATCH, CANVAS = 2, 10
"""Pixels on a side."""
N_CODES = 128
FRAGMENTS = 2
"""Pieces of other digits on a canvas, of half a digit's width and height."""
CORPUS_SIZE = 40_000
TASK_SIZES = {"train": 2000, "validation": 1000, "test": 2000}
SPLIT = (0.6, 0.15)
"""Shares of the digits that are trained on and chosen by; the rest are tested."""
FIRST_LETTER = 0x4E00
"""Of the codes, one letter each. Letters of this range are words of their own in every tokenizer of BERT's kind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PatchCodes:
    """Codes of patches, and what they look like."""

    centres: NDArray[np.float64]
    """(code, side x side): pixels of a patch."""

    @property
    def side(self) -> int:
        """Pixels on a side of a patch."""
        return math.isqrt(self.centres.shape[1])

    def texts(self, images: NDArray[Any]) -> list[str]:
        """Return the codes of (image, row, column) pixels as letters, patches row by row."""
        patches = patches_of(images, self.side)
        flat = patches.reshape(-1, patches.shape[2])
        # |x - c|^2 without |x|^2, which is the same for all centres
        codes = ((self.centres**2).sum(axis=1) - 2 * flat @ self.centres.T).argmin(axis=1)
        return ["".join(chr(FIRST_LETTER + code) for code in row) for row in codes.reshape(len(images), -1)]

    def images(self, texts: list[str], *, width: int) -> NDArray[np.float64]:
        """Return what texts show, (image, row, column) pixels of images that are `width` patches wide."""
        codes = np.array([[ord(letter) - FIRST_LETTER for letter in text] for text in texts])
        pixels: NDArray[np.float64] = self.centres[codes]
        grid = pixels.reshape(len(texts), -1, width, self.side, self.side)
        return grid.swapaxes(2, 3).reshape(len(texts), -1, width * self.side)


def patches_of(images: NDArray[Any], side: int) -> NDArray[np.float64]:
    """Return (image, patch, pixel) of (image, row, column) pixels, patches row by row."""
    n, height, width = images.shape
    if height % side or width % side:
        raise DataError(f"expected images that patches of {side} x {side} pixels tile, got {height} x {width}")
    grid = images.reshape(n, height // side, side, width // side, side).swapaxes(2, 3)
    return grid.reshape(n, -1, side * side).astype(np.float64)


def fitted_codes(images: NDArray[Any], *, n_codes: int, side: int, seed: int) -> PatchCodes:
    """Return codes of the patches of (image, row, column) pixels; of equal ones one counts, as most are blank."""
    distinct = np.unique(patches_of(images, side).reshape(-1, side * side), axis=0)
    fitted = KMeans(n_codes, n_init=1, random_state=seed).fit(distinct)
    return PatchCodes(centres=fitted.cluster_centers_)


def cluttered(digits: NDArray[Any], chosen: NDArray[Any], *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a canvas for each of the `chosen` rows of (digit, row, column): it somewhere, and fragments of others.

    Where things lie on each other the brighter pixel is seen.
    """
    size = digits.shape[1]
    canvas = np.zeros((len(chosen), CANVAS, CANVAS))
    for image, row in zip(canvas, chosen, strict=True):
        _draw(image, digits[row], rng)
        for other in rng.integers(len(digits), size=FRAGMENTS):
            top, left = rng.integers(size // 2 + 1, size=2)
            _draw(image, digits[other][top : top + size // 2, left : left + size // 2], rng)
    return canvas


def _draw(image: NDArray[Any], piece: NDArray[Any], rng: np.random.Generator) -> None:
    top, left = rng.integers(len(image) - len(piece) + 1, size=2)
    place = image[top : top + len(piece), left : left + len(piece)]
    np.maximum(place, piece, out=place)


def write_patches(
    folder: Path, *, corpus_size: int = CORPUS_SIZE, task_sizes: dict[str, int] = TASK_SIZES, seed: int = 0
) -> PatchCodes:
    """Write texts to pretrain on and a task; return the codes."""
    digits, labels = load_digits(return_X_y=True)
    digits = digits.reshape(-1, 8, 8)
    rng = np.random.default_rng(seed)
    ends = [round(share * len(digits)) for share in np.cumsum(SPLIT)]
    rows = dict(zip(TASK_SIZES, np.split(rng.permutation(len(digits)), ends), strict=True))
    corpus = cluttered(train := digits[rows["train"]], rng.integers(len(train), size=corpus_size), rng=rng)
    codes = fitted_codes(corpus[:2000], n_codes=N_CODES, side=PATCH, seed=seed)
    (folder / "digits").mkdir(parents=True, exist_ok=True)
    replace_file(folder / "patches.txt", "".join(f"{text}\n" for text in codes.texts(corpus)).encode())
    for split, of_split in rows.items():
        chosen = rng.integers(len(of_split), size=task_sizes[split])
        texts = codes.texts(cluttered(digits[of_split], chosen, rng=rng))
        lines = io.StringIO(newline="")
        csv.writer(lines, lineterminator="\n").writerows(
            [("text", "label"), *zip(texts, labels[of_split][chosen], strict=True)]
        )
        replace_file(folder / "digits" / f"{split}.csv", lines.getvalue().encode())
    return codes


def main() -> None:
    """Write the texts and the task."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path, help="where patches.txt and digits/ are written")
    write_patches(parser.parse_args().directory)


if __name__ == "__main__":
    main()
