"""What is odd about texts and labels before anything is spent on them. Knows no tokenizer and no model.

What a tokenizer makes of them is computed in `layerprobe.extraction.readability`; the values of it are here.
"""

import math
import statistics
import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from layerprobe.errors import unreliable
from layerprobe.files.images import readable_as
from layerprobe.files.serialisation import RARE
from layerprobe.metrics.names import Split
from layerprobe.names import counted
from layerprobe.results.table import Table, named_values
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.texts import plain
from layerprobe.tasks.values import Examples, Items, Task, TextSplit

UNREADABLE = 0.25
"""Share of characters in unknown tokens above which a model is said not to read texts. Measured: below 0.001 for MiniLM
on English, German, Spanish, French and Russian, 0.02 where every tenth text is Chinese, 0.66 on Chinese alone;
0.97 or more for the embedded pair, which knows the words of its own language, on any of these."""
FEW_UNKNOWN = 0.01
MANY_BYTES = 0.1
"""Share of tokens that are single bytes, above which that is worth a warning."""
MANY_CUT = 0.01
MANY_COPIES = 0.05
FEW_POINTS = 2.5
"""Differences above this, x 100, should be visible on a test split."""
USUAL_SCORE, NEIGHBOURS = 0.8, 0.95
"""A usual score, and how the influences of items on the scores of two neighbouring layers correlate; measured on the
frozen layers of MiniLM on 500 pairs of STS-B: 0.92 to 0.97, and 0.47 between the last two."""
_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenQuality:
    """What a tokenizer makes of texts."""

    model: str
    """Whose tokenizer."""
    n_texts: int
    """How many were looked at."""
    unknown_tokens: float
    """Share of tokens that stand for anything unknown, such as [UNK]."""
    unknown_characters: float
    """Share of characters, white space aside, that no other token stands for."""
    byte_tokens: float
    """Share of tokens that stand for a byte of a character without a token of its own."""
    tokens_per_character: float
    """White space aside; near 1 where the vocabulary has few words of the language."""
    median_length: float
    """Tokens of a text, special ones included."""
    long_length: float
    """Tokens that 95 % of the texts do not exceed."""
    longest: int
    """Tokens of the longest text."""
    limit: int
    """Tokens at which texts are cut."""
    truncated: float
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
        if self.byte_tokens > MANY_BYTES:
            warnings.append(
                f"{self.model} spells these texts: {_percent(self.byte_tokens)} of their tokens are single bytes; its "
                "vocabulary has few words of their language"
            )
        return tuple(warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth saying before work begins."""
        cut = f"{_percent(self.truncated)} of the texts are cut at {self.limit} tokens"
        return (*self.cautions, *((cut,) if self.truncated > MANY_CUT else ()))

    @property
    def counts(self) -> dict[str, str]:
        """What was counted."""
        lengths = f"{self.median_length:g}, {self.long_length:g}, {self.longest:,}"
        return {
            "texts looked at": f"{self.n_texts:,}",
            "unknown tokens": _percent(self.unknown_tokens),
            "characters lost to unknown tokens": _percent(self.unknown_characters),
            "tokens of single bytes": _percent(self.byte_tokens),
            "tokens a character": f"{self.tokens_per_character:.2f}",
            "tokens a text: median, 95 %, longest": lengths,
            f"texts cut at {self.limit} tokens": _percent(self.truncated),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQuality:
    """What is in a split of a task."""

    split: TextSplit
    n: int
    """Examples."""
    copies: int
    """Examples whose texts, swapped or not, were in an earlier one."""
    in_train: int
    """Distinct texts that are in the train split too; 0 for that itself."""
    targets: tuple[tuple[str, int], ...]
    """Examples by label, or by score in tenths of the range, the upper end named."""
    visible: float
    """About the smallest difference between two layers that the split could show, see `visible_difference`."""

    def counts(self, what: str) -> dict[str, str]:
        """Return what was counted; `what` an example is of: text or image."""
        counts = {"examples": f"{self.n:,}", "copies of earlier ones": f"{self.copies:,}"}
        if self.split != "train":
            counts[f"{what}s in train too"] = f"{self.in_train:,}"
        if self.targets:
            counts["targets"] = ", ".join(f"{name}: {n:,}" for name, n in self.targets)
        if self.split == "test":
            counts["smallest visible difference"] = f"{self.visible:.1f} points"
        return {f"{self.split}: {name}": count for name, count in counts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuality:
    """What is to be known of texts, and of the labels they come with, before anything is spent."""

    n_texts: int
    """Distinct texts."""
    copies: int
    """Texts that had come before, where they are no task's."""
    splits: tuple[SplitQuality, ...] = ()
    """Of a task; none for texts without labels."""
    tokens: TokenQuality | None = None
    """None where no model was asked, or the model reads images."""
    what: Literal["text", "image"] = field(default="text", metadata=RARE)
    """What there is in the data."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth saying before work begins."""
        warnings = list(self.tokens.warnings) if self.tokens else []
        for split in self.splits:
            if split.copies > MANY_COPIES * split.n:
                warnings.append(
                    f"{split.copies:,} of {counted(split.n, 'example')} of {_named(split.split)} are copies"
                )
        if self.splits and self.splits[-1].visible > FEW_POINTS:
            test = self.splits[-1]
            what = f"a difference between two layers of less than about {test.visible:.1f} points will not show"
            warnings.append(f"{_named(test.split)} has {counted(test.n, 'example')}: {what}")
        return tuple(warnings)

    @property
    def table(self) -> Table:
        """What was counted, a row each."""
        copies = {"copies": f"{self.copies:,}"} if self.copies else {}
        counts = {f"distinct {self.what}s": f"{self.n_texts:,}", **copies}
        counts |= self.tokens.counts if self.tokens else {}
        for split in self.splits:
            counts |= split.counts(self.what)
        return named_values(counts, "Data")


def task_quality(task: Task, *, scored: TextSplit = "test") -> DataQuality:
    """Return what is in the splits of a task, or in all of it where that is what is scored."""
    splits: tuple[TextSplit, ...] = ("all",) if scored == "all" else typing.get_args(Split)
    return DataQuality(
        n_texts=len(task.texts()),
        copies=0,
        what="image" if task.readable == "image" else "text",
        splits=tuple(_split_quality(task, split) for split in splits),
    )


def text_quality(texts: Sequence[str]) -> DataQuality:
    """Return what is in texts without labels."""
    n_texts = len(set(texts))
    what: Literal["text", "image"] = "image" if readable_as(texts) == "image" else "text"
    return DataQuality(n_texts=n_texts, copies=len(texts) - n_texts, what=what)


def visible_difference(n: int, *, labelled: bool) -> float:
    """Return about the smallest difference of two neighbouring layers that n items show, x 100.

    2.8 standard errors of the difference: it is seen at the level 0.95 in 80 % of all studies. The score of either
    layer is taken to be 0.8, with the standard error of a share, sqrt(p (1 - p) / n), where targets are labels, and
    otherwise that of Spearman's correlation, (1 - r^2) sqrt((1 + r^2 / 2) / (n - 3)) (Bonett and Wright 2000,
    Psychometrika 65). The errors of both layers correlate, since the items are the same; seeds are left out. Once
    something is fine-tuned, `Interval.visible` has what was measured.

    Examples:
        >>> round(visible_difference(1379, labelled=False), 1), round(visible_difference(100, labelled=False), 1)
        (1.0, 3.7)
    """
    r = USUAL_SCORE
    share = math.sqrt(r * (1 - r) / n) if n else math.inf
    correlation = (1 - r**2) * math.sqrt((1 + r**2 / 2) / (n - 3)) if n > 3 else math.inf
    normal = statistics.NormalDist()
    errors = normal.inv_cdf(0.975) + normal.inv_cdf(0.8)
    return 100 * errors * (share if labelled else correlation) * math.sqrt(2 * (1 - NEIGHBOURS))


def _named(split: TextSplit) -> str:
    return "the data" if split == "all" else f"the {split} split"


def _split_quality(task: Task, split: TextSplit) -> SplitQuality:
    examples = task.split(split)
    in_train = 0 if split in ("train", "all") else len(_side_texts(examples) & _side_texts(task.train))
    # of a mean over items the error is nearer to that of a share
    labelled = KINDS[task.kind].labelled or not isinstance(examples, Examples)
    return SplitQuality(
        split=split,
        n=len(examples),
        copies=len(examples) - len({frozenset(map(plain, item)) for item in zip(*examples.sides, strict=True)}),
        in_train=in_train,
        targets=_targets(task, examples),
        visible=visible_difference(len(examples), labelled=labelled),
    )


def _side_texts(items: Items) -> set[str]:
    return {text for side in items.sides for text in side}


def _targets(task: Task, items: Items) -> tuple[tuple[str, int], ...]:
    if not isinstance(items, Examples):
        return ()
    if task.labels:
        classes = Counter(items.targets)
        return tuple((label, classes[number]) for number, label in enumerate(task.labels))
    counts = Counter(min(int(target * _BINS), _BINS - 1) for target in items.targets)
    return tuple((f"{(i + 1) / _BINS:g}", counts[i]) for i in range(_BINS))


def _percent(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"
