"""Tasks, their items and texts."""

import abc
import dataclasses
import functools
import math
import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from layerprobe.checks import check_choice, convert_fields
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.images import Readable, prompted, readable_as
from layerprobe.files.inputs import from_home, is_path, similar_file
from layerprobe.files.serialisation import RARE, Keys, Reader, digest, from_dict, path_from, text
from layerprobe.metrics.names import Split
from layerprobe.tasks.cells import plain
from layerprobe.tasks.formats import Format
from layerprobe.tasks.kind import KINDS, Kind

RATIOS = (0.8, 0.1, 0.1)
"""Shares of train, validation and test, if splits are drawn."""
TextSplit = Literal["all", "train", "validation", "test"]
"""A split, or all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items(abc.ABC):
    """The items of one split of a task: inputs and targets. Each counts once in a score.

    A kind of task whose items are not texts or pairs with a number each has its own class, see `Kind.items`.
    """

    by_item: ClassVar[tuple[str, ...]]
    """Names of the fields with one entry per item; others are common to all, and None means no entries."""

    @classmethod
    def class_of(cls, values: dict[str, Any]) -> tuple[type["Items"], dict[str, Any]]:
        """Return the class of items that has these fields, and the fields; DataError if no kind of task has one."""
        for kind in KINDS.usable().values():
            items: type[Items] = kind.items or Examples
            names = {field.name: field.metadata == RARE for field in dataclasses.fields(items)}
            needed = {name for name, rare in names.items() if not rare}
            if issubclass(items, cls) and needed <= values.keys() <= names.keys():
                return items, values
        raise DataError(f"expected the items of a kind of task, got fields {', '.join(sorted(values))}")

    def __post_init__(self) -> None:
        optional = {field.name for field in dataclasses.fields(self) if field.default == ()}
        parts = {name: getattr(self, name) for name in self.by_item}
        lengths = {
            name: len(part) for name, part in parts.items() if part or (part is not None and name not in optional)
        }
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{n} {name}" for name, n in lengths.items())
            raise DataError(f"expected one entry per item in every field of {type(self).__name__}, got {listed}")

    def __len__(self) -> int:
        """Return the number of items."""
        return len(getattr(self, self.by_item[0]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,}>"

    @property
    @abc.abstractmethod
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The texts of the items; each side has one text per item."""

    @property
    @abc.abstractmethod
    def gold(self) -> Any:
        """Gold values to score outputs against, see `Kind.score`."""

    def take(self, rows: Sequence[int]) -> Self:
        """Return the items with these numbers, in this order."""
        parts = {name: getattr(self, name) for name in self.by_item}
        return replace(self, **{name: part and tuple(part[i] for i in rows) for name, part in parts.items()})

    def join(self, other: Self) -> Self:
        """Return these items followed by the others."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.by_item}
        return replace(self, **{name: None if None in pair else pair[0] + pair[1] for name, pair in pairs.items()})

    @abc.abstractmethod
    def prompted(self, prompt: str) -> Self:
        """Return the items with the prompt before every text."""

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless the items are valid in this split of a task of this kind, with these class names.

        By default every side of an item must be a non-empty text.
        """
        for number, item in enumerate(zip(*self.sides, strict=True)):
            for content in item:
                if not isinstance(content, str) or not content.strip():
                    raise DataError(f"expected texts in {split}[{number}], got {content!r}: leave it out")

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct texts in order of first appearance, item by item."""
        return tuple(dict.fromkeys(text for item in zip(*self.sides, strict=True) for text in item))

    @property
    def windowed(self) -> tuple[str, ...]:
        """Texts that are never truncated: long ones are read in overlapping windows."""
        return ()

    @property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Key of each item, equal for copies whatever their targets: its texts in any order, see `plain`."""
        return tuple(tuple(sorted(set(map(plain, item)))) for item in zip(*self.sides, strict=True))

    @property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """Name and values of parts that items can share: the texts of pairs; empty for single texts."""
        return "text", self.texts if len(self.sides) > 1 else ()

    @property
    def prompts(self) -> tuple[str | None, str | None] | None:
        """Prompts before queries and before documents, None for none; None if items are of another type."""
        return None

    def with_prompts(self, query: str | None, document: str | None) -> Self:
        """Return queries and documents with these prompts if they have none; other items unchanged."""
        return self

    @property
    def facts(self) -> dict[str, int]:
        """Further counts by name, such as documents to rank."""
        return {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the items: by default their numbers."""
        return tuple(map(str, range(len(self))))

    @property
    def one_target(self) -> bool:
        """Whether all items have the same target, so that correlation and precision are undefined."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples(Items):
    """Texts, or pairs of texts, with a number to predict for each."""

    by_item = ("targets", "first", "second")
    first: tuple[str, ...]
    """The text, or first text, of every example."""
    second: tuple[str, ...] | None
    """The second text of every pair; None for single texts."""
    targets: tuple[float, ...]
    """Gold similarity scaled to 0 .. 1, or the number of the class, from 0."""

    def __post_init__(self) -> None:
        super(Examples, self).__post_init__()
        if not all(map(math.isfinite, self.targets)):
            bad = sum(not math.isfinite(target) for target in self.targets)
            raise DataError(f"expected finite targets, got NaN or infinity for {bad} of {len(self.targets)} examples")

    def __repr__(self) -> str:
        return f"<Examples: {len(self):,} {'texts' if self.second is None else 'pairs'}>"

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """First texts and, for pairs, second texts."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def gold(self) -> Any:
        """(n,) targets."""
        import numpy as np  # `--help` does not need it

        return np.array(self.targets)

    def prompted(self, prompt: str) -> "Examples":
        """Return the examples with the prompt before every text."""
        first, *second = (tuple(prompted(prompt, side)) for side in self.sides)
        return replace(self, first=first, second=second[0] if second else None)

    @property
    def one_target(self) -> bool:
        """Whether all targets are equal."""
        return len(set(self.targets)) == 1

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless they are non-empty texts or pairs, by the kind, with known classes."""
        super(Examples, self).check(kind, labels=labels, split=split)
        if (self.second is not None) != kind.pairs:
            expected = "pairs" if kind.pairs else "single texts"
            raise DataError(f"expected {expected} in the {split} split of a task of kind {kind.name}")
        if labels and not set(self.targets) <= set(range(len(labels))):
            raise DataError(f"expected class numbers from 0 to {len(labels) - 1} in the {split} split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task: training, validation and test items with their targets."""

    name: str
    """Name as given by the user."""
    kind: str
    """Kind of task, one of `KINDS`: it decides loss, head and metrics."""
    train: Items
    """Fine-tuning sees these."""
    validation: Items
    """Epochs, layers and thresholds are selected on these."""
    test: Items
    """Scores are reported on these."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of their numbers; empty if targets are scores."""
    score_range: tuple[float, float] | None = None
    """Scores in the source that became 0 and 1; None if several sources had different ones."""
    one_piece: bool = False
    """Whether the data has no predefined split: if nothing is fitted, all of it is scored."""
    keep_overlaps: bool = False
    """Whether items in two splits stay in both; results then claim nothing from their scores."""
    notes: tuple[str, ...] = ()
    """Notes on how the data was read."""
    warnings: tuple[str, ...] = ()
    """Changes in the data and items left out, with counts."""

    def __post_init__(self) -> None:
        kind = KINDS[self.kind]
        if kind.labelled != bool(self.labels):
            expected = "the names of the classes" if kind.labelled else "no labels"
            raise DataError(f"expected {expected} for a task of kind {self.kind}, got {len(self.labels)} labels")
        if kind.classes and len(self.labels) != len(kind.classes):
            raise DataError(f"expected the {len(kind.classes)} labels of {self.kind}, got {len(self.labels)}")
        expected_items = kind.items or Examples
        for split in typing.get_args(Split):
            items = self.split(split)
            if not isinstance(items, expected_items):
                raise DataError(
                    f"expected {expected_items.__name__} in the {split} split of a task of kind {self.kind}, "
                    f"got {type(items).__name__}"
                )
            items.check(kind, labels=self.labels, split=split)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(self.split(name)):,} {name}" for name in typing.get_args(Split))
        return f"<Task {self.name}: {self.kind}; {sizes}>"

    def split(self, name: TextSplit) -> Items:
        """Return the items of a split, or of all; raise DataError for an unknown name."""
        check_choice(name, TextSplit, name="split")
        return self.train.join(self.validation).join(self.test) if name == "all" else getattr(self, name)

    def examples(self, name: TextSplit) -> Examples:
        """Return the items of a split, or all, as texts or pairs with a number each; DataError for other kinds."""
        items = self.split(name)
        if not isinstance(items, Examples):
            raise DataError(
                f"expected a task of texts or pairs with a number each, got {self.name} of kind {self.kind}"
            )
        return items

    def texts(self, split: TextSplit = "all") -> tuple[str, ...]:
        """Return the distinct texts of one split, or of all, in order of first appearance."""
        return self.split(split).texts

    @property
    def readable(self) -> Readable:
        """The type of its items."""
        return readable_as(self.train.sides[0] if self.train.sides else ())

    @property
    def scored(self) -> TextSplit:
        """Default split to score without fine-tuning: test, or all if no split is needed."""
        return "all" if self.one_piece and not KINDS[self.kind].fits else "test"

    @property
    def primary(self) -> str:
        """The metric that chooses epochs and layers: the first of the kind, or another if a class is rare."""
        return next(iter(self.unusual_primary), KINDS[self.kind].metrics[0])

    @property
    def unusual_primary(self) -> tuple[str, ...]:
        """The primary metric if it is not the first of the kind, for names of stored results; empty otherwise."""
        from layerprobe.stats.floors import has_rare_class  # imports numpy, which `--help` does not need

        metric = KINDS[self.kind].primary_if_rare
        return (metric,) if metric is not None and has_rare_class(self.class_sizes.values()) else ()

    @property
    def class_sizes(self) -> Counter[float]:
        """Number of items of all splits by class; empty if items do not have one class each."""
        splits = (self.train, self.validation, self.test) if self.labels else ()
        return Counter(chain.from_iterable(split.targets for split in splits if isinstance(split, Examples)))

    @property
    def digest(self) -> str:
        """Return a sha256 of the kind, the labels, and all texts and targets."""
        return digest([self.kind, self.labels, self.train, self.validation, self.test])

    def items_digest(self, split: TextSplit) -> str:
        """Return a sha256 of the kind, the labels, and the texts and targets of a split."""
        return digest([self.kind, self.labels, self.split(split)])


def check_task(task: object) -> None:
    """Raise DataError unless it is a task; for a name, say how to load it."""
    if isinstance(task, (str, Path)):
        name = repr(str(task))
        if is_path(str(task)) and not from_home(task).exists():
            raise DataError(f"{task} does not exist: expected a Task from layerprobe.load_task{similar_file(task)}")
        raise DataError(f"expected a Task, got the text {name}: load it first, task = layerprobe.load_task({name})")
    if not isinstance(task, Task):
        swapped = ": the model comes first, then the task" if isinstance(task, Model) else ""
        raise DataError(f"expected a Task from layerprobe.load_task, got a {type(task).__name__}{swapped}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """Texts without scores, to embed."""

    name: str
    """Name as given by the user."""
    texts: Sequence[str]
    """Texts in the order of the file, with repetitions. A tuple, or `SpooledTexts` for many texts, which take a few
    bytes of memory each."""
    groups: tuple[str, ...] | None = None
    """The group of each text, if the file has one."""
    notes: tuple[str, ...] = ()
    """Notes on how the file was read."""
    warnings: tuple[str, ...] = ()
    """Changes in the data and texts left out, with counts."""
    embedded: bool = False
    """Whether they are sentences of the embedded language, which has its own tokenizer and no end."""

    def __repr__(self) -> str:
        return f"<TextFile {self.name}: {len(self.texts):,} texts>"

    @property
    def group_of(self) -> dict[str, str] | None:
        """The group of each text at its first occurrence; None without groups."""
        if self.groups is None:
            return None
        return dict(zip(self.texts[::-1], self.groups[::-1], strict=True))

    def __post_init__(self) -> None:
        if self.groups is not None and len(self.groups) != len(self.texts):
            raise DataError(f"expected a group for each of {len(self.texts)} texts, got {len(self.groups)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Source of a task and settings for reading it, the arguments of `load_task` or `load_word_similarity`."""

    source: str
    """Data with scores or labels: a file, a folder, stsb, or the hub id of a data set. Sentence pairs, texts with
    labels or values, words with tags, queries with documents, or triplets, as a CSV, TSV, JSONL, Parquet or CoNLL file,
    or a folder with train, dev and test files or in the layout of BEIR. Images: a folder for each class, in train, val
    and test or not, or a Parquet file of them."""
    kind: str | None = None
    """Kind of task, one of `KINDS`; detected by default."""
    columns: tuple[str, ...] | None = None
    """Columns by name or number, such as s1,s2,score. Others: text,label for single texts, word,tag for words,
    query,positive,negative for retrieval, or anchor,positive,negative. By default usual names."""
    merge: bool = False
    """Use all files of the folder as scored word pairs, each on its own scale, and split them 70:15:15. Copies of
    pairs are left out."""
    score_range: tuple[float, float] | None = None
    """Lowest and highest possible score, such as 0,5. Detected by default."""
    validation: str | None = None
    """File with the validation split."""
    test: str | None = None
    """File with the test split."""
    split_seed: int = 0
    """Seed of the split of data that has no predefined split."""
    delimiter: str | None = None
    """Delimiter of a text file, by name or itself; by default that of its ending."""
    encoding: str | None = None
    """Encoding of a text file; detected by default."""
    decimal: Literal[".", ","] | None = None
    """Decimal mark; detected by default."""
    quotes: bool | None = None
    """Whether fields can be in quotes; detected by default."""
    header: bool | None = None
    """Whether the first row names the columns; by default if it has a usual or a requested name."""
    skip_empty: bool = False
    """Skip rows with an empty cell or a missing value. Otherwise they are an error."""
    skip_broken: bool = False
    """Skip images that do not open. Otherwise they are an error."""
    keep_overlaps: bool = field(default=False, metadata=RARE)
    """Keep examples that are in two splits. By default they are left out of the train or validation split; if kept,
    scores are unreliable, and results claim nothing from them."""
    query_prompt: str | None = field(default=None, metadata=RARE)
    """Prompt before every query of a retrieval task, such as "query: ". By default the prompt of the options or the
    model."""
    document_prompt: str | None = field(default=None, metadata=RARE)
    """Prompt before every document of a retrieval task, such as "passage: ". By default likewise."""

    @property
    def format(self) -> Format:
        """Format of files."""
        return Format(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Format)})

    @property
    def skipped(self) -> tuple[str, ...]:
        """The active switches that leave unusable rows out."""
        return tuple(name for name in ("skip_empty", "skip_broken") if getattr(self, name))

    def __post_init__(self) -> None:
        convert_fields(self)
        if not self.source:
            raise DataError("expected a task: a file, a folder, stsb or the hub id of a data set, got an empty text")
        if self.kind is not None:
            KINDS.check(self.kind)
        _ = self.format  # checks its fields
        others = (self.columns, self.score_range, self.validation, self.test)
        merged = [name for name, kind in KINDS.usable().items() if kind.merged] if self.merge else []
        if self.merge and (self.kind not in (None, *merged) or any(other is not None for other in others)):
            raise DataError(
                f"expected no columns, score_range, validation or test, and no kind but {', '.join(merged)}, with merge"
            )


def taken_task(keys: Keys, key: str = "source", *, named: str = "") -> TaskSettings:
    """Return the task of a table: its source under `key`, its other settings under further keys.

    Args:
        keys: The table.
        key: The key of the source.
        named: A further valid source that is neither a file nor a data set.
    """
    also = f'"{named}", ' if named else ""
    expected = f"{also}a file, a folder, stsb or the hub id of a data set"
    source = keys.take(key, text(lambda name: name if name == named else source_from(keys.folder, name), expected))
    readers = {"columns": COLUMNS, "validation": text(keys.path), "test": text(keys.path)}
    return keys.fields(TaskSettings, {"source": source}, readers=readers)


def model_reader(keys: Keys) -> Reader:
    """Return the reader of a model: a folder, relative to the file's folder, or a hub id."""
    return text(functools.partial(source_from, keys.folder), "a hub id or a folder")


def source_from(folder: Path | None, name: str) -> str:
    """Return a file or folder with its path, and anything else, such as a hub id, unchanged."""
    if folder is None or not name:
        return name
    return path_from(folder, name) if is_path(name) or (folder / name).exists() else name


def _columns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    parts = [str(part) if type(part) is int else part for part in from_dict(tuple[Any, ...], value)]
    return from_dict(tuple[str, ...], parts)


COLUMNS = Reader(_columns, "a text such as s1,s2,score or a list of names or numbers")
