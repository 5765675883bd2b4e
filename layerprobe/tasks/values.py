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

from layerprobe.checks import as_declared, check_choice
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.files.atomic import from_home
from layerprobe.files.images import Readable, prompted, readable_as
from layerprobe.files.inputs import is_path, similar_file
from layerprobe.files.serialisation import RARE, Keys, Reader, digest, from_dict, path_from, text
from layerprobe.metrics.names import Split
from layerprobe.tasks.cells import plain
from layerprobe.tasks.formats import Format
from layerprobe.tasks.kind import KINDS, Kind

TextSplit = Literal["all", "train", "validation", "test"]
"""Whose texts: of one split, or of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items(abc.ABC):
    """The items of one split of a task: inputs and targets. Each counts once in a score.

    A kind of task whose items are not texts or pairs with a number each has a class of its own, see `Kind.items`.
    """

    by_item: ClassVar[tuple[str, ...]]
    """The fields with an entry per item; others are the same for all, and None stands for a field without entries."""

    @classmethod
    def class_of(cls, values: dict[str, Any]) -> tuple[type["Items"], dict[str, Any]]:
        """Return the class of items that has these fields, and the fields; DataError if no kind of task has one."""
        for kind in KINDS.usable().values():
            items: type[Items] = kind.load("items")
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
            raise DataError(f"expected an entry an item in every field of {type(self).__name__}, got {listed}")

    def __len__(self) -> int:
        """Return the number of items."""
        return len(getattr(self, self.by_item[0]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,}>"

    @property
    @abc.abstractmethod
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The texts of the items: each side has one of every item, so that items with a text in common are known."""

    @property
    @abc.abstractmethod
    def gold(self) -> Any:
        """What the outputs for the items are scored against, see `Kind.score`."""

    def take(self, rows: Sequence[int]) -> Self:
        """Return the items of these numbers, in this order."""
        parts = {name: getattr(self, name) for name in self.by_item}
        return replace(self, **{name: part and tuple(part[i] for i in rows) for name, part in parts.items()})

    def join(self, other: Self) -> Self:
        """Return these items and then the others."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.by_item}
        return replace(self, **{name: None if None in pair else pair[0] + pair[1] for name, pair in pairs.items()})

    @abc.abstractmethod
    def prompted(self, prompt: str) -> Self:
        """Return the items with the prompt before every text."""

    def check(self, kind: Kind, *, labels: Sequence[str], split: str) -> None:
        """Raise DataError unless a task of this kind, with these names of classes, can have the items in this split.

        By default every side of an item must be a text, and not empty.
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
        """Texts that are never cut: what is too long is read in windows that overlap."""
        return ()

    @property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """By item, what makes it the same as another, whatever their targets: its texts in any order, see `plain`."""
        return tuple(tuple(sorted(set(map(plain, item)))) for item in zip(*self.sides, strict=True))

    @property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """What other items can have a part of, and what it is called: texts of pairs; nothing of single texts."""
        return "text", self.texts if len(self.sides) > 1 else ()

    @property
    def prompts(self) -> tuple[str | None, str | None] | None:
        """Their own before queries and before documents, None for none; None where items are no such."""
        return None

    def with_prompts(self, query: str | None, document: str | None) -> Self:
        """Return queries and documents with these prompts where they have none; other items as they are."""
        return self

    @property
    def facts(self) -> dict[str, int]:
        """What else there is of them, by what it is called, such as documents to be ranked."""
        return {}

    @property
    def names(self) -> tuple[str, ...]:
        """What each is called: by default its number."""
        return tuple(map(str, range(len(self))))

    @property
    def one_target(self) -> bool:
        """Whether all items have the same target, so that no correlation and no precision is defined."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples(Items):
    """Texts, or pairs of texts, with the number that is to be predicted of each."""

    by_item = ("targets", "first", "second")
    first: tuple[str, ...]
    """The text of every example, or the first of its two."""
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
        """First texts and, of pairs, second ones."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def gold(self) -> Any:
        """(n,) targets."""
        import numpy as np  # which `--help` does without

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
        """Raise DataError unless they are texts or pairs, as the kind has it, none empty, with known classes."""
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
    """As the user gave it."""
    kind: str
    """One of `KINDS`: decides loss, head and metrics."""
    train: Items
    """Fine-tuning sees these."""
    validation: Items
    """Epochs, layers and thresholds are selected on these."""
    test: Items
    """Scores are reported on these."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of their numbers; empty where targets are scores."""
    score_range: tuple[float, float] | None = None
    """What scores of 0 and 1 were in the source; None where several sources had their own."""
    one_piece: bool = False
    """Whether the data has no predefined split: where nothing is fitted, all of it is scored."""
    keep_overlaps: bool = False
    """Whether items that stand in two splits stay in both; no claim is made by scores that they spoil."""
    notes: tuple[str, ...] = ()
    """How the data was understood, in plain words."""
    warnings: tuple[str, ...] = ()
    """What was changed in the data or left out, with counts."""

    def __post_init__(self) -> None:
        kind = KINDS[self.kind]
        if kind.labelled != bool(self.labels):
            expected = "the names of the classes" if kind.labelled else "no labels"
            raise DataError(f"expected {expected} for a task of kind {self.kind}, got {len(self.labels)} labels")
        if kind.classes and len(self.labels) != len(kind.classes):
            raise DataError(f"expected the {len(kind.classes)} labels of {self.kind}, got {len(self.labels)}")
        expected_items = kind.load("items")
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
        """Return the items of a split, or of all; raise DataError for another."""
        check_choice(name, TextSplit, name="split")
        items: Items = self.train.join(self.validation).join(self.test) if name == "all" else getattr(self, name)
        return items

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
        """What its items are."""
        return readable_as(self.train.sides[0] if self.train.sides else ())

    @property
    def scored(self) -> TextSplit:
        """What is scored without fine-tuning where nobody says: the test split, or all where no split is needed."""
        return "all" if self.one_piece and not KINDS[self.kind].fits else "test"

    @property
    def primary(self) -> str:
        """The metric by which epochs and layers are chosen: the first of the kind, or another where a class is rare."""
        return next(iter(self.unusual_primary), KINDS[self.kind].metrics[0])

    @property
    def unusual_primary(self) -> tuple[str, ...]:
        """The primary metric where it is not the first of the kind, for the names of what is kept; empty otherwise."""
        from layerprobe.stats.floors import has_rare_class  # imports numpy, which `--help` does without

        metric = KINDS[self.kind].primary_if_rare
        return (metric,) if metric is not None and has_rare_class(self.class_sizes.values()) else ()

    @property
    def class_sizes(self) -> Counter[float]:
        """Items of all splits by number of their class; empty where items do not have one each."""
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
    """Raise DataError unless it is a task, and say how to get one where it is the name of one."""
    if isinstance(task, (str, Path)):
        name = repr(str(task))
        if is_path(str(task)) and not from_home(task).exists():
            raise DataError(f"{task} does not exist: expected a Task, of layerprobe.load_task{similar_file(task)}")
        raise DataError(f"expected a Task, got the text {name}: load it first, task = layerprobe.load_task({name})")
    if not isinstance(task, Task):
        swapped = ": the model comes first, then the task" if isinstance(task, Model) else ""
        raise DataError(f"expected a Task, as layerprobe.load_task returns, got a {type(task).__name__}{swapped}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """Texts without scores, to extract embeddings of."""

    name: str
    """As the user gave it."""
    texts: Sequence[str]
    """In the order of the file; the same text can occur more than once. A tuple, or `SpooledTexts` where they are many:
    their memory is then a few bytes each."""
    groups: tuple[str, ...] | None = None
    """Where each text comes from, if the file says so."""
    notes: tuple[str, ...] = ()
    """How the file was understood, in plain words."""
    warnings: tuple[str, ...] = ()
    """What was changed in the data or left out, with counts."""
    embedded: bool = False
    """Whether they are sentences of the embedded language, which has a tokenizer of its own and no end."""

    def __repr__(self) -> str:
        return f"<TextFile {self.name}: {len(self.texts):,} texts>"

    @property
    def group_of(self) -> dict[str, str] | None:
        """Where each text comes from, the first time that it does; None where the file does not say."""
        if self.groups is None:
            return None
        return dict(zip(self.texts[::-1], self.groups[::-1], strict=True))

    def __post_init__(self) -> None:
        if self.groups is not None and len(self.groups) != len(self.texts):
            raise DataError(f"expected a group for each of {len(self.texts)} texts, got {len(self.groups)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Where a task comes from and how it is read: what `load_task` or `load_word_similarity` is given."""

    source: str
    """Data with scores or labels: a file, a folder, stsb, or the hub id of a data set. Sentence pairs, texts with
    labels or values, words with tags, queries with documents, or triplets, as a CSV, TSV, JSONL, Parquet or CoNLL file,
    or a folder with train, dev and test files or in the layout of BEIR. Images: a folder for each class, in train, val
    and test or not, or a Parquet file of them."""
    kind: str | None = None
    """What is learnt, one of `KINDS`; detected by default."""
    columns: tuple[str, ...] | None = None
    """Columns by name or number, such as s1,s2,score. The others are text,label of single texts, word,tag of words,
    query,positive,negative of retrieval, or anchor,positive,negative. By default detected."""
    merge: bool = False
    """Take all files of the folder as scored word pairs, each on its own scale, and split them 70:15:15. Copies of
    pairs are left out."""
    score_range: tuple[float, float] | None = None
    """Lowest and highest possible score, such as 0,5. By default detected."""
    validation: str | None = None
    """File with the validation split."""
    test: str | None = None
    """File with the test split."""
    split_seed: int = 0
    """Seed of the split of data that has no predefined split."""
    delimiter: str | None = None
    """Between the fields of a text file, by name or itself; detected by default."""
    encoding: str | None = None
    """Of a text file; detected by default."""
    decimal: Literal[".", ","] | None = None
    """What stands before decimals; detected by default."""
    quotes: bool | None = None
    """Whether fields can be in quotes; detected by default."""
    header: bool | None = None
    """Whether the first row names the columns; detected by default."""
    skip_empty: bool = False
    """Skip rows that have an empty cell, or what stands for one. They are an error otherwise."""
    skip_broken: bool = False
    """Skip images that do not open. They are an error otherwise."""
    keep_overlaps: bool = field(default=False, metadata=RARE)
    """Keep examples that stand in two splits. By default they are left out of the train or validation split; kept ones
    spoil the scores, and nothing is claimed from these."""
    query_prompt: str | None = field(default=None, metadata=RARE)
    """Text put before every query of a retrieval task, such as "query: ". By default what the options or the model
    say."""
    document_prompt: str | None = field(default=None, metadata=RARE)
    """Text put before every document of one, such as "passage: ". By default likewise."""

    @property
    def format(self) -> Format:
        """How files are written."""
        return Format(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Format)})

    @property
    def skipped(self) -> tuple[str, ...]:
        """The switches that are on of those by which rows without an item are left out."""
        return tuple(name for name in ("skip_empty", "skip_broken") if getattr(self, name))

    def __post_init__(self) -> None:
        as_declared(self)
        if not self.source:
            raise DataError("expected a task: a file, a folder, stsb or the hub id of a data set, got an empty text")
        if self.kind is not None:
            KINDS.check(self.kind)
        _ = self.format  # which checks its fields
        others = (self.columns, self.score_range, self.validation, self.test)
        merged = [name for name, kind in KINDS.usable().items() if kind.merged] if self.merge else []
        if self.merge and (self.kind not in (None, *merged) or any(other is not None for other in others)):
            raise DataError(
                f"expected no columns, score_range, validation or test, and no kind but {', '.join(merged)}, with merge"
            )


# ---- in TOML files ------------------------------------------------------------------------------------


def taken_task(keys: Keys, key: str = "source", *, named: str = "") -> TaskSettings:
    """Return the task whose source a key of a table names, and whose other settings are keys beside it.

    Args:
        keys: The table.
        key: That of the source.
        named: A source that is the name of something else than a file or data set.
    """
    also = f'"{named}", ' if named else ""
    expected = f"{also}a file, a folder, stsb or the hub id of a data set"
    source = keys.take(key, text(lambda name: name if name == named else source_from(keys.folder, name), expected))
    readers = {"columns": COLUMNS, "validation": text(keys.path), "test": text(keys.path)}
    return keys.fields(TaskSettings, {"source": source}, readers=readers)


def model_reader(keys: Keys) -> Reader:
    """Return the reader of a model: a folder, from the file's own on, or a hub id."""
    return text(functools.partial(source_from, keys.folder), "a hub id or a folder")


def source_from(folder: Path | None, name: str) -> str:
    """Return a file or folder with its path, and anything else, such as a hub id, as it is."""
    if folder is None or not name:
        return name
    return path_from(folder, name) if is_path(name) or (folder / name).exists() else name


def _columns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    parts = [str(part) if type(part) is int else part for part in from_dict(tuple[Any, ...], value)]
    columns: tuple[str, ...] = from_dict(tuple[str, ...], parts)
    return columns


COLUMNS = Reader(_columns, "a text such as s1,s2,score or a list of names or numbers")
