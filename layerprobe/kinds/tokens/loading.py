"""Sources of sentences with tags -> a task of checked splits. Knows the way; how files look is elsewhere."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerprobe.errors import TaskError
from layerprobe.files.atomic import from_home
from layerprobe.kinds.tokens.conll import SUFFIXES, Sentence, first_cells, read_sentences, sentences_of
from layerprobe.kinds.tokens.items import TaggedSentences
from layerprobe.names import counted
from layerprobe.tasks.discovery import data_files, split_files, split_role
from layerprobe.tasks.examples import MIN_EXAMPLES
from layerprobe.tasks.hub import hub_splits, is_on_hub
from layerprobe.tasks.kind import Kind
from layerprobe.tasks.labels import class_names
from layerprobe.tasks.loading import TaskSource
from layerprobe.tasks.memory import columns_of, is_data_set, splits_of
from layerprobe.tasks.splitting import SPLITS, with_all_splits
from layerprobe.tasks.tables import check_format
from layerprobe.tasks.texts import Cleaner
from layerprobe.tasks.values import Task

OUTSIDE = "O"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A sentence with its tags as they are read."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def load_tagged(source: TaskSource, kind: Kind) -> Task:
    """Load sentences with a tag for every word, in three splits.

    Files are columns as of CoNLL or JSONL, found and split as tables are; the tag is in the last column where nobody
    says otherwise.
    """
    read, notes = _sources(source, kind)
    warnings: list[str] = []
    splits = {role: _tagged(source, role, sentences, kind, warnings) for role, sentences in read.items()}
    splits, drawn = with_all_splits(
        splits,
        [(" ".join(sentence.words), "") for sentence in splits["train"]],
        source.split_ratios,
        seed=source.seed,
        unit="sentence",
        together="duplicates",
    )
    for role in SPLITS:
        if len(splits[role]) < MIN_EXAMPLES:
            raise TaskError(
                f"the {role} split has {counted(len(splits[role]), kind.unit)}, expected at least {MIN_EXAMPLES}: give "
                f"more, or another file{'' if role == 'train' else f' with --{role}'}"
            )
        if len(tags := {tag for sentence in splits[role] for tag in sentence.tags}) == 1:
            raise TaskError(f"all words of the {role} split are {tags.pop()[:40]}: expected at least two tags")
    labels, remarks = _labels(kind, splits, warnings)
    number = {label: i for i, label in enumerate(labels)}
    train, validation, test = (
        TaggedSentences(
            words=tuple(sentence.words for sentence in splits[role]),
            tags=tuple(tuple(number[tag] for tag in sentence.tags) for sentence in splits[role]),
            labels=labels,
        )
        for role in SPLITS
    )
    return Task(
        name=source.name,
        kind=kind.name,
        train=train,
        validation=validation,
        test=test,
        labels=labels,
        notes=(*notes, *drawn, remarks),
        warnings=tuple(warnings),
    )


def cells_of(path: Path, target_columns: Sequence[str]) -> tuple[list[str], bool]:
    """Return the tags of the first sentences of a file, or of a folder's first one; none where there are none.

    Also whether the file could be a table as well, of which such a reading may be a wrong one.
    """
    if path.is_dir():
        try:
            files = data_files(path, SUFFIXES)
        except TaskError:
            return [], False
        path = next(iter(files), path)
    return first_cells(path, target_columns), path.suffix.lower() in (".txt", ".tsv")


# ---- sources ---------------------------------------------------------------------------------------------


def _sources(source: TaskSource, kind: Kind) -> tuple[dict[str, list[Sentence]], list[str]]:
    """Return sentences by split, and where they come from; what was given goes before files that were found."""
    others = {role: _read(data, f"{source.name} {role}", source, kind) for role, data in source.other_splits.items()}
    if not isinstance(source.source, (str, Path)):
        columns = isinstance(source.source, Mapping) and not any(map(split_role, map(str, source.source)))
        parts = {"train": (source.name, source.source)} if columns else splits_of(source.source, source.name)
        return {role: _read(part, name, source, kind) for role, (name, part) in parts.items()} | others, []
    if is_on_hub(source.source):
        hub = hub_splits(str(source.source))
        return {role: _read(split, f"{source.name} {role}", source, kind) for role, split in hub.items()} | others, []
    files, notes = split_files(from_home(source.source), others, suffixes=SUFFIXES)
    return {role: _read(file, "", source, kind) for role, file in files.items()} | others, notes


def _read(data: Any, name: str, source: TaskSource, kind: Kind) -> list[Sentence]:
    if isinstance(data, (str, Path)):
        return read_sentences(from_home(data), source.columns, source.format, kind.target_columns)
    check_format(name, source.format, ())
    columns = _columns_of_data_set(data) if is_data_set(data) else columns_of(data, name)
    if not columns:
        raise TaskError(f"{name}: expected columns of words and of tags")
    sentences = sentences_of(name, columns, source.columns, kind.target_columns)
    if not sentences:
        raise TaskError(f"{name} is empty: expected sentences")
    return sentences


def _columns_of_data_set(split: Any) -> dict[str, Sequence[Any]]:
    """Return the columns of a data set, numbers of classes by their names."""
    columns: dict[str, Sequence[Any]] = split.to_dict()
    for column, feature in split.features.items():
        if names := getattr(getattr(feature, "feature", None), "names", None):
            # -1 and less, as -100, say that there is none
            columns[column] = [
                None if cells is None else [None if cell is None or cell < 0 else names[cell] for cell in cells]
                for cells in columns[column]
            ]
    return columns


# ---- splits ----------------------------------------------------------------------------------------------


def _tagged(
    source: TaskSource, role: str, sentences: Sequence[Sentence], kind: Kind, warnings: list[str]
) -> list[Tagged]:
    """Return sentences with their tags read, and add to the warnings what was changed or left out."""
    cleaner, tagged, several, empty = Cleaner(), list[Tagged](), list[str](), list[str]()
    for sentence in sentences:
        tags = [kind.read_label(cell, place) for cell, place in zip(sentence.cells, sentence.places, strict=True)]
        several += [
            f"{cell[:40]} at {place}"
            for cell, tag, place in zip(sentence.cells, tags, sentence.places, strict=True)
            if "," in cell and tag != cell.strip()
        ]
        words = [" ".join(cleaner.clean(word).split()) for word in sentence.words]
        missing = [p for word, tag, p in zip(words, tags, sentence.places, strict=True) if not word or not tag]
        if missing or not words:
            empty.append(missing[0] if missing else f"{source.name}, a sentence without words")
            continue
        tagged.append(Tagged(words=tuple(words), tags=tuple(tags)))
    if empty and not source.skip_empty:
        raise TaskError(
            f"{counted(len(empty), 'sentence')} of the {role} split with an empty word or tag (first: {empty[0]}): "
            "mend or drop them, or go on without them with --skip-empty (skip_empty=True)"
        )
    if empty:
        warnings.append(f"left out {counted(len(empty), 'sentence')} of the {role} split with an empty word or tag")
    if several:
        warnings.append(
            f"{counted(len(several), 'word')} of the {role} split have several tags (first: {several[0]}): the first "
            "of them counts"
        )
    if alone := sum(map(_without_begin, tagged)):
        warnings.append(
            f"{counted(alone, 'run')} of I- tags in the {role} split begin without B-: entities, as in seqeval"
        )
    warnings += cleaner.warnings(f"the {role} split", "word")
    return tagged


def _without_begin(sentence: Tagged) -> int:
    """Return how many runs of I- of one type have neither B- nor I- of it before them."""
    before = (OUTSIDE, *sentence.tags)
    return sum(tag.startswith("I-") and last[1:] != tag[1:] for last, tag in zip(before, sentence.tags, strict=False))


def _labels(kind: Kind, splits: Mapping[str, list[Tagged]], warnings: list[str]) -> tuple[tuple[str, ...], str]:
    """Return all tags, O or the most frequent one first, and a note of how often each is in the train split."""
    counts = Counter(tag for sentence in splits["train"] for tag in sentence.tags)
    words = sum(counts.values())
    if len(counts) > max(2, words // 2):
        raise TaskError(
            f"the train split has {len(counts)} different tags for {words} words (such as "
            f"{', '.join(repr(tag[:40]) for tag in sorted(counts)[:5])}): name the column of the tag with --columns"
        )
    unseen = Counter(tag for role in SPLITS[1:] for s in splits[role] for tag in s.tags if tag not in counts)
    if unseen:
        warnings.append(
            f"{counted(sum(unseen.values()), 'word')} of the other splits have tags that the train split lacks: "
            f"{', '.join(sorted(unseen)[:5])}"
        )
    first = OUTSIDE if OUTSIDE in counts else max(sorted(counts), key=counts.__getitem__)
    labels = (first, *class_names({*counts, *unseen} - {first}))
    listed = ", ".join(f"{counts[label]:,} {label[:40]}" for label in labels[:20])
    more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
    return labels, f"read as {kind.name}; tags of the train split: {listed}{more}"
