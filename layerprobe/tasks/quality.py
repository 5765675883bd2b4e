"""What is odd about texts before anything is spent on them. Knows no tokenizer and no model.

What a tokenizer makes of them is computed in `layerprobe.extraction.readability`; the values of it are here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from layerprobe.errors import unreliable
from layerprobe.files.images import readable_as
from layerprobe.files.serialisation import RARE
from layerprobe.results.table import Table, named_values
from layerprobe.tasks.cells import plain
from layerprobe.tasks.values import Task

UNREADABLE = 0.25
"""Share of characters in unknown tokens above which a model is said not to read texts. Measured: below 0.001 for MiniLM
on English, German, Spanish, French and Russian, 0.02 where every tenth text is Chinese, 0.66 on Chinese alone;
0.97 or more for the embedded pair, which knows the words of its own language, on any of these."""
FEW_UNKNOWN = 0.01
MANY_TOKENS = 0.8
"""Tokens per letter of words above which a vocabulary with longer pieces is not used. Measured: 0.17 for MiniLM on
English, 0.32 on German, 0.97 on Russian, of whose words it knows the letters alone."""
MANY_COPIES = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuality:
    """What is to be known of texts before anything is spent."""

    n_texts: int
    """Distinct texts."""
    n: int
    """Texts without labels, or examples of a task."""
    copies: int
    """Of these, how many were in an earlier one of the same split, swapped or not."""
    in_train: int = 0
    """Distinct texts of the other splits that are in the train split, too."""
    what: Literal["text", "image"] = field(default="text", metadata=RARE)
    """What there is in the data."""
    model: str = field(default="", metadata=RARE)
    """Whose tokenizer the following is of; empty where none was asked."""
    unknown_characters: float = field(default=0.0, metadata=RARE)
    """Share of characters, white space aside, that only an unknown token stands for, such as [UNK]."""
    tokens_per_letter: float = field(default=0.0, metadata=RARE)
    """Of words of four letters or more; 0 for vocabularies of letters or bytes, and of scripts such as Chinese."""
    missing: str = field(default="", metadata=RARE)
    """What is to be said of tokens that were taken out of the vocabulary and that the texts need."""
    example: tuple[str, ...] = field(default=(), metadata=RARE)
    """A word, and the tokens that it is read as."""
    limit: int = field(default=0, metadata=RARE)
    """Tokens at which texts are cut."""
    truncated: float = field(default=0.0, metadata=RARE)
    """Share of the texts that are longer."""

    @property
    def readable(self) -> bool:
        """Whether the model can be said to read the texts."""
        return self.unknown_characters <= UNREADABLE

    @property
    def cautions(self) -> tuple[str, ...]:
        """What speaks against all that the model says of these texts."""
        lost = f"{_percent(self.unknown_characters)} of their characters are unknown to its tokenizer"
        warnings = []
        if not self.readable:
            warnings.append(unreliable(f"{self.model} cannot read these texts: {lost}; take a model of their language"))
        elif self.unknown_characters > FEW_UNKNOWN:
            warnings.append(f"{self.model} reads these texts in part: {lost}")
        if self.missing:
            warnings.append(self.missing)
        elif self.tokens_per_letter > MANY_TOKENS:
            word, *tokens = self.example
            warnings.append(
                f"{self.model} spells these texts: {self.tokens_per_letter:.2f} tokens per letter, such as {word!r} as "
                f"{' '.join(tokens)}; its tokenizer is of another kind than its vocabulary, or has few words of their "
                "language"
            )
        return tuple(warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth saying before work begins; texts that are cut are counted by whoever cuts them."""
        copied = f"{self.copies:,} of {self.n:,} are copies of earlier ones"
        return (*self.cautions, copied) if self.copies > MANY_COPIES * self.n else self.cautions

    @property
    def table(self) -> Table:
        """What was counted, a row each."""
        counts = {f"distinct {self.what}s": f"{self.n_texts:,}", "copies of earlier ones": f"{self.copies:,}"}
        counts[f"{self.what}s of other splits in train, too"] = f"{self.in_train:,}"
        if self.model:
            counts["characters lost to unknown tokens"] = _percent(self.unknown_characters)
            counts["tokens per letter of words"] = f"{self.tokens_per_letter:.2f}" if self.tokens_per_letter else ""
            counts[f"texts cut at {self.limit} tokens"] = _percent(self.truncated)
        return named_values(counts, "Data")


def task_quality(task: Task) -> DataQuality:
    """Return what is in the splits of a task."""
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
    """Return what is in texts without labels."""
    n_texts = len(set(texts))
    what: Literal["text", "image"] = "image" if readable_as(texts) == "image" else "text"
    return DataQuality(n_texts=n_texts, n=len(texts), copies=len(texts) - n_texts, what=what)


def _percent(share: float) -> str:
    return f"{100 * share:.{1 if 0 < share < 0.1 else 0}f} %"
