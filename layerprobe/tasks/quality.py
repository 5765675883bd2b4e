"""Texts before any computation: checks of what is passed, distinct texts, and their quality. Knows no tokenizer.

`layerprobe.extraction.check` computes how a tokenizer reads them; its values are here.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, unreliable
from layerprobe.files.images import readable_as
from layerprobe.files.inputs import SpooledTexts, is_path, similar_file
from layerprobe.files.serialisation import RARE
from layerprobe.names import counted, some
from layerprobe.results.table import Table, named_values
from layerprobe.store.manifest import first_rows, sample_ids
from layerprobe.tasks.cells import plain, without_surrogates
from layerprobe.tasks.values import Items, Task, TextFile

logger = logging.getLogger(__name__)

UNREADABLE = 0.25
"""Share of characters in unknown tokens above which a model cannot read texts. Measured: below 0.001 for MiniLM
on English, German, Spanish, French and Russian, 0.02 if every tenth text is Chinese, 0.66 on Chinese alone;
0.97 or more for the embedded pair, which knows the words of its own language, on any of these."""
FEW_UNKNOWN = 0.01
MANY_TOKENS = 0.8
"""Tokens per letter of words above which a vocabulary with longer pieces is not used. Measured: 0.17 for MiniLM on
English, 0.32 on German, 0.97 on Russian, of whose words it knows the letters alone."""
MANY_COPIES = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuality:
    """Quality of texts before any computation."""

    n_texts: int
    """Number of distinct texts."""
    n: int
    """Number of texts without labels, or of examples of a task."""
    copies: int
    """Number of these that repeat an earlier one of the same split, swapped or not."""
    in_train: int = 0
    """Number of distinct texts of the other splits that are also in the train split."""
    what: Literal["text", "image"] = field(default="text", metadata=RARE)
    """Type of the data."""
    model: str = field(default="", metadata=RARE)
    """Model whose tokenizer the following fields describe; empty without one."""
    unknown_characters: float = field(default=0.0, metadata=RARE)
    """Share of characters, without white space, that become unknown tokens such as [UNK]."""
    tokens_per_letter: float = field(default=0.0, metadata=RARE)
    """Tokens per letter in words of four or more letters; 0 for vocabularies of letters or bytes, and scripts such as
    Chinese."""
    missing: str = field(default="", metadata=RARE)
    """Warning about needed tokens that were removed from the vocabulary."""
    example: tuple[str, ...] = field(default=(), metadata=RARE)
    """A word and its tokens."""
    limit: int = field(default=0, metadata=RARE)
    """Number of tokens at which texts are cut."""
    truncated: float = field(default=0.0, metadata=RARE)
    """Share of texts that are longer."""

    @property
    def readable(self) -> bool:
        """Whether the model can read the texts."""
        return self.unknown_characters <= UNREADABLE

    @property
    def cautions(self) -> tuple[str, ...]:
        """Reasons to doubt all results of the model on these texts."""
        lost = f"{_percent(self.unknown_characters)} of their characters are unknown to its tokenizer"
        warnings = []
        if not self.readable:
            warnings.append(unreliable(f"{self.model} cannot read these texts: {lost}; use a model of their language"))
        elif self.unknown_characters > FEW_UNKNOWN:
            warnings.append(f"{self.model} reads these texts only partly: {lost}")
        if self.missing:
            warnings.append(self.missing)
        elif self.tokens_per_letter > MANY_TOKENS:
            word, *tokens = self.example
            warnings.append(
                f"{self.model} spells these texts: {self.tokens_per_letter:.2f} tokens per letter, such as {word!r} as "
                f"{' '.join(tokens)}; its tokenizer does not fit its vocabulary, or it has few words of their language"
            )
        return tuple(warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings before work begins; truncated texts are counted where they are truncated."""
        copied = f"{self.copies:,} of {self.n:,} are copies of earlier ones"
        return (*self.cautions, copied) if self.copies > MANY_COPIES * self.n else self.cautions

    @property
    def table(self) -> Table:
        """One row per count."""
        counts = {f"distinct {self.what}s": f"{self.n_texts:,}", "copies of earlier ones": f"{self.copies:,}"}
        counts[f"{self.what}s of other splits also in train"] = f"{self.in_train:,}"
        if self.model:
            counts["characters lost to unknown tokens"] = _percent(self.unknown_characters)
            counts["tokens per letter of words"] = f"{self.tokens_per_letter:.2f}" if self.tokens_per_letter else ""
            counts[f"texts cut at {self.limit} tokens"] = _percent(self.truncated)
        return named_values(counts, "Data")


def task_quality(task: Task) -> DataQuality:
    """Return the quality of the splits of a task."""
    splits = task.train, task.validation, task.test
    train, *others = ({text for side in items.sides for text in side} for items in splits)
    return DataQuality(
        n_texts=len(task.texts()),
        n=sum(map(len, splits)),
        copies=sum(
            len(items) - len({frozenset(map(plain, item)) for item in zip(*items.sides, strict=True)})
            for items in splits
        ),
        in_train=len(train & set().union(*others)),
        what="image" if task.readable == "image" else "text",
    )


def text_quality(texts: Sequence[str]) -> DataQuality:
    """Return the quality of texts without labels."""
    n_texts = len(set(texts))
    what: Literal["text", "image"] = "image" if readable_as(texts) == "image" else "text"
    return DataQuality(n_texts=n_texts, n=len(texts), copies=len(texts) - n_texts, what=what)


def _percent(share: float) -> str:
    return f"{100 * share:.{1 if 0 < share < 0.1 else 0}f} %"


def distinct_texts(texts: Sequence[str] | TextFile | Items | Task) -> Sequence[str]:
    """Return every distinct text, in order, from any input of `checked_texts`."""
    texts = checked_texts(texts)
    rows = first_rows(texts, sample_ids(texts))
    return texts if len(rows) == len(texts) else take_texts(texts, rows)


def checked_texts(texts: Sequence[str] | TextFile | Items | Task) -> Sequence[str]:
    """Return the texts of a list, a file, a task, or a table with one column.

    Lone surrogates, which no tokenizer reads, become spaces, as in the texts of files; a warning lists them.

    Raises:
        DataError: If there are no texts, one is empty or not a string, or a single text or a table of several columns
            was passed instead of a list.
    """
    listed = unwrap_texts(texts)
    texts = listed if isinstance(listed, SpooledTexts) else tuple(listed)
    if not texts:
        raise DataError("expected texts to embed, got none")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"expected texts, got {text!r} as number {number}: remove it, or convert it to a text")
        if not text:
            raise DataError(f"expected texts with words in them, got an empty one as number {number}: remove it")
    if (whole := without_surrogates(texts)) is not texts:
        numbers = [number for number, (text, mended) in enumerate(zip(texts, whole, strict=True)) if text != mended]
        logger.warning(
            "replaced lone surrogates (halves of characters) by a space in %s: number %s",
            counted(len(numbers), "text"),
            some(numbers),
        )
        texts = whole
    return texts


def unwrap_texts(data: Any) -> Any:
    """Return the texts of a file, a task, items, or the only column of a table; anything else unchanged.

    Raises:
        DataError: If the input is a single text, a table of several columns, or not iterable.
    """
    if isinstance(data, Task):
        data = data.split("all")
    if isinstance(data, Items | TextFile):
        return data.texts
    if isinstance(data, str) and is_path(data) and " " not in data:
        advice = f"layerprobe.load_texts reads a file{similar_file(data)}"
        raise DataError(f"expected texts, got the path {data!r}: {advice}")
    if isinstance(data, str):
        raise DataError(f"expected a list of texts, got the single text {data[:60]!r}: put it into a list")
    # an Arrow table's `columns` are its cells
    columns = data if isinstance(data, Mapping) else getattr(data, "column_names", getattr(data, "columns", None))
    if columns is not None:
        names = list(columns)
        if len(names) != 1:
            column = f": pass one, such as frame[{names[0]!r}], or load_task(frame)" if names else ""
            raise DataError(
                f"expected texts, got a table with columns {', '.join(map(str, names)) or 'of none'}{column}"
            )
        return unwrap_texts(data[names[0]])
    if not isinstance(data, Iterable):
        raise DataError(f"expected a list of texts, got {data!r}")
    if isinstance(data, Iterator):
        return tuple(data)
    return data.to_pylist() if hasattr(data, "to_pylist") else data


def take_texts(texts: Sequence[str], rows: NDArray[np.intp]) -> Sequence[str]:
    """Return some of the texts, in the order of their rows."""
    return texts.take(rows) if isinstance(texts, SpooledTexts) else tuple(texts[row] for row in rows.tolist())
