"""Image classification: the kind, and images from folders by class, Parquet files and tables of paths.

Knows files and Pillow, not models. Every image is opened once here, so that what does not open is known before work
begins; its bytes are read again when they are needed.
"""

import contextlib
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from layerprobe.errors import DataError, TaskError, option
from layerprobe.files.atomic import from_home
from layerprobe.files.images import SUFFIXES, ImageItem, decoded, is_image_file, pillow
from layerprobe.metrics.influence import class_influences
from layerprobe.metrics.scores import class_scores
from layerprobe.names import counted, some
from layerprobe.stats.floors import class_floors
from layerprobe.tasks.columns import Columns, named_column
from layerprobe.tasks.discovery import split_roles
from layerprobe.tasks.examples import Row, task_of
from layerprobe.tasks.formats import Format
from layerprobe.tasks.kind import LABEL_COLUMNS, Kind
from layerprobe.tasks.loading import TaskSource
from layerprobe.tasks.splitting import SPLITS
from layerprobe.tasks.tables import read_table
from layerprobe.tasks.targets import label_cell, written_names
from layerprobe.tasks.texts import Cleaner
from layerprobe.tasks.values import Task, TextFile

IMAGE_NAMES = ("image", "images", "img", "filename", "file", "filepath", "imagepath", "imagefile", "path")
"""Usual names of a column of images, or of their paths: lower case, without spaces, underscores and hyphens."""
CAPTION_NAMES = ("caption", "captions", "text", "sentence", "description", "title", "alttext")
TABLES = (".csv", ".tsv", ".jsonl")
METADATA = ("metadata.csv", "metadata.jsonl")
"""What a folder of images with captions has beside them."""
LOOKED_AT = 5000
"""Files of a folder at most that are looked at to tell whether it is one of images."""
_ROWS = 64


def recognises(path: Path) -> bool:
    """Return whether a file or folder holds images: files of them, Parquet with such a column, or a table of paths."""
    if path.is_dir():
        if tables := _parquet_in(path):
            return _parquet_column(tables[0]) is not None
        others = [file for file in path.iterdir() if file.suffix.lower() in TABLES and file.name not in METADATA]
        return not others and _has_images(path)
    if path.suffix.lower() == ".parquet" and path.is_file():
        return _parquet_column(path) is not None
    return path.suffix.lower() in TABLES and path.is_file() and _lists_images(path)


IMAGE_CLASSIFICATION = Kind(
    name="image classification",
    pairs=False,
    labelled=True,
    item="image",
    metrics=("accuracy", "macro f1"),
    score=class_scores,
    influences=class_influences,
    loss="layerprobe.finetuning.losses:TextClasses",
    zero_shot="probe",
    probe="layerprobe.scoring.probes:LOGISTIC",
    one_target=True,
    averages="probabilities",
    loader="layerprobe.kinds.images.kind:load_image_task",
    recognises=recognises,
    unlabelled="layerprobe.kinds.images.kind:load_images",
    floors=lambda items: class_floors(items.gold),
    primary_if_rare="macro f1",
)


def load_image_task(source: TaskSource) -> Task:
    """Load images with a class each, in three splits, which are drawn as those of texts where there are none.

    Args:
        source: A folder with a folder for each class; one with such folders in train, val and test; a Parquet file, or
            a folder of them, with a column of images and one of labels, as on the Hub; or a CSV, TSV or JSONL file of
            paths, from its own folder on, and labels.

    Raises:
        TaskError: If images do not open and are not to be left out, or the classes are not what they should be.
    """
    pillow()
    if not isinstance(source.source, str | Path):
        raise TaskError(f"expected a folder or a file of images, got a {type(source.source).__name__}")
    sources: dict[str, Path] = {"train": from_home(source.source)}
    sources |= {role: from_home(str(data)) for role, data in source.other_splits.items()}
    notes, opener = list[str](), _Opener(skip_broken=source.skip_broken, skip_empty=source.skip_empty)
    splits: dict[str, list[Row]] = {}
    with opener:
        for role, path in sources.items():
            parts = _split_sources(path) if role == "train" else {role: [path]}
            if len(parts) > 1:
                listed = ", ".join(
                    f"{'+'.join(file.name for file in files)} as {part}" for part, files in parts.items()
                )
                notes.append(f"found in {path}: {listed}")
            for part, files in parts.items():
                if part == role or part not in sources:
                    rows = [row for file in files for row in _labelled(opener, file, source.columns, source.format)]
                    splits[part] = splits.get(part, []) + rows
    if not splits["train"]:
        raise TaskError(f"{source.name} has no images: expected a folder for each class, with files of images in it")
    classes = {row.label for row in splits["train"]}
    if len(classes) == 1:
        raise TaskError(f"{source.name} has images of one class alone, {min(classes)!r}: expected two or more classes")
    return task_of(
        source.name,
        IMAGE_CLASSIFICATION.name,
        splits,
        ratios=source.split_ratios,
        seed=source.seed,
        score_range=None,
        notes=[*notes, *opener.notes()],
        warnings=opener.warnings(),
    )


def load_images(
    source: str | Path,
    *,
    columns: Columns | None = None,
    format: Format | None = None,
    skip_broken: bool = False,
    skip_empty: bool = False,
    name: str | None = None,
) -> TextFile:
    """Load images without labels, or images with their captions, as the items that are embedded.

    An item is an image, or an image with its caption: image models read the one and text models the other, so that both
    embed the same items. Where an image has several captions they are items of one document, since they are not
    independent.

    Args:
        source: A folder of images, in folders of their own or not, and with a `metadata.csv` or `metadata.jsonl` of
            `file_name` and caption where there are captions; a Parquet file; or a CSV, TSV or JSONL file of paths, and
            captions.
        columns: Of a table: that of the images, or of images and captions; by default usual names are known.
        format: How a table is written.
        skip_broken: Leave images out that do not open; otherwise they are an error.
        skip_empty: Leave images out whose caption is empty; otherwise they are an error.
        name: What messages call it; by default the source.

    Raises:
        TaskError: If images do not open and are not to be left out, or there is none.
    """
    pillow()
    path, opener = from_home(source), _Opener(skip_broken=skip_broken, skip_empty=skip_empty)
    with opener:
        items = [item for file in _tables_in(path) for item in _captioned(opener, file, columns, format)]
    if not items:
        raise TaskError(f"{path} has no images: expected files ending in {', '.join(SUFFIXES)}")
    images = Counter(item.sha256 for item in dict.fromkeys(items))
    several, documents = sum(n > 1 for n in images.values()), None
    notes = list(opener.notes())
    if several:
        documents = tuple(item.sha256 for item in items)
        notes.append(f"{counted(several, 'image')} with several captions: those of one image count as one document")
    return TextFile(
        name=name or str(source),
        texts=tuple(items),
        documents=documents,
        notes=tuple(notes),
        warnings=opener.warnings(),
    )


@dataclass(slots=True, kw_only=True)
class _Opener(contextlib.AbstractContextManager["_Opener"]):
    """Opens images one after another, and remembers what did not open; bytes of Parquet go to a temporary file."""

    skip_broken: bool
    skip_empty: bool
    broken: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Places of empty labels or captions."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    other_files: int = 0
    _spool: IO[bytes] | None = None
    _spooled: list[tuple[ImageItem, int, int]] = field(default_factory=list)

    def of_file(self, file: Path, caption: str | None = None) -> ImageItem | None:
        """Return the item of a file; None if it does not open."""
        return self._opened(str(file), file, None, caption)

    def of_bytes(self, data: bytes, place: str, caption: str | None = None) -> ImageItem | None:
        """Return the item of bytes, which are kept in a temporary file; None if they do not open."""
        item = self._opened(place, None, data, caption)
        if item is not None:
            self._spool = self._spool or tempfile.TemporaryFile(prefix="layerprobe-")  # noqa: SIM115 (until the end)
            self._spooled.append((item, self._spool.tell(), len(data)))
            self._spool.write(data)
            item.data = b""
        return item

    def _opened(self, place: str, file: Path | None, data: bytes | None, caption: str | None) -> ImageItem | None:
        try:
            content = file.read_bytes() if data is None and file is not None else data or b""
            self.sizes[decoded(content, place).size] += 1
        except OSError as error:
            self.broken.append(f"{place} cannot be read: {error.strerror or error}")
        except DataError as error:
            self.broken.append(str(error))
        else:
            item = ImageItem.of_bytes(content, place=place, caption=caption)
            item.file, item.data = file, None if data is None else data
            return item
        return None

    def __exit__(self, *error: object) -> None:
        """Read the temporary file from here on; raise TaskError if images did not open and are not to be skipped."""
        if error[0] is not None:
            return
        if self.broken and not self.skip_broken:
            listed = some(self.broken, between="; ")
            raise TaskError(
                f"{len(self.broken):,} of {counted(self._n_all, 'image')} do not open: {listed}; mend them, or go on "
                f"without them with {option('skip_broken', True)}"
            )
        if self.empty and not self.skip_empty:
            raise TaskError(
                f"{counted(len(self.empty), 'image')} without label or caption (first: {self.empty[0]}): fill them in, "
                f"or go on without them with {option('skip_empty', True)}"
            )
        if self._spool is not None:
            self._spool.flush()
            mapped = memoryview(mmap.mmap(self._spool.fileno(), 0, access=mmap.ACCESS_READ))
            for item, start, size in self._spooled:
                item.data = mapped[start : start + size]
            self._spool.close()

    @property
    def _n_all(self) -> int:
        return self.sizes.total() + len(self.broken)

    def notes(self) -> tuple[str, ...]:
        """Return a note of how large the images are."""
        if not self.sizes:
            return ()
        (width, height), *others = sorted(self.sizes)
        largest = max(others, default=(width, height), key=lambda size: size[0] * size[1])
        spread = f" to {largest[0]} x {largest[1]}" if others else ""
        return (f"{counted(self.sizes.total(), 'image')} of {width} x {height}{spread} pixels",)

    def warnings(self) -> tuple[str, ...]:
        """Return warnings of what was left out."""
        warnings = []
        if self.broken:
            listed = some(self.broken, between="; ")
            warnings.append(
                f"left out {len(self.broken):,} of {counted(self._n_all, 'image')} that do not open: {listed}"
            )
        if self.empty:
            warnings.append(f"left out {counted(len(self.empty), 'image')} without label or caption")
        if self.other_files:
            warnings.append(
                f"passed over {counted(self.other_files, 'file')} in hidden folders, or no images by their names"
            )
        return tuple(warnings)


# ---- where images are ------------------------------------------------------------------------------------


def _split_sources(path: Path) -> dict[str, list[Path]]:
    """Return the folders or files of each split; all as train where there are no splits."""
    if not path.exists():
        raise TaskError(f"{path} does not exist: expected a folder or a file of images")
    if path.is_file():
        return {"train": [path]}
    tables = _tables_in(path)
    candidates = sorted(child for child in path.iterdir() if child.is_dir()) if tables == [path] else tables
    roles: dict[str, list[Path]] = {role: [] for role in SPLITS}
    for folder, role in zip(candidates, split_roles([candidate.stem for candidate in candidates]), strict=True):
        # a folder by its whole name alone, and with folders in it: a class may be "test tube", or "train"
        is_split = folder.is_file() or (folder.name.isalpha() and any(map(_is_class, folder.iterdir())))
        if is_split and role is not None:
            roles[role].append(folder)
    if not roles["train"]:
        return {"train": tables}
    return {role: files for role, files in roles.items() if files}


def _tables_in(path: Path) -> list[Path]:
    """Return the metadata of a folder, or its Parquet files; the path itself where it has neither."""
    if not path.exists():
        raise TaskError(f"{path} does not exist: expected a folder or a file of images")
    if path.is_dir():
        if metadata := [path / name for name in METADATA if (path / name).is_file()]:
            return metadata[:1]
        return _parquet_in(path) or [path]
    return [path]


def _parquet_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def _has_images(folder: Path) -> bool:
    seen = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [folder for folder in folders if not _is_hidden(folder)]
        if any(map(is_image_file, files)):
            return True
        seen += len(files)
        if seen > LOOKED_AT:
            return False
    return False


def _is_hidden(folder: str) -> bool:
    """Return whether a folder is hidden by its name, or is what macOS adds to archives."""
    return folder.startswith(".") or folder == "__MACOSX"


def _is_class(path: Path) -> bool:
    return path.is_dir() and not _is_hidden(path.name)


def _image_files(folder: Path, opener: _Opener, root: Path) -> Iterator[Path]:
    """Yield the images in a folder below the root, but for those in hidden folders; others are counted."""
    try:
        files = sorted(file for file in folder.rglob("*") if file.is_file())
    except OSError as error:
        raise TaskError(f"{folder} cannot be read: {error.strerror or error}") from error
    for file in files:
        if is_image_file(file) and not any(map(_is_hidden, file.relative_to(root).parent.parts)):
            yield file
        else:
            opener.other_files += not file.name.startswith(".")


def _labelled(opener: _Opener, path: Path, columns: Columns | None, format: Format) -> Iterator[Row]:
    """Yield the images of a split, with their classes."""
    if path.is_dir():
        if columns is not None:
            raise TaskError(f"{path} is a folder for each class: expected no columns, as tables have them")
        if not (classes := sorted(child for child in path.iterdir() if child.is_dir())):
            raise TaskError(f"{path} has no folders: expected one for each class, with its images in it")
        for folder in classes:
            for file in _image_files(folder, opener, path):
                if (item := opener.of_file(file)) is not None:
                    yield _row(item, folder.name, str(file))
        return
    for image, label, place in _cells(path, columns, LABEL_COLUMNS, "label", format):
        if not (label or "").strip():
            opener.empty.append(place)
        elif (item := _item(opener, path, image, place)) is not None:
            yield _row(item, label_cell(label or ""), place)


def _row(item: ImageItem, label: str, place: str) -> Row:
    return Row(first=item, second=None, cell=label, label=label, place=place)


def _captioned(opener: _Opener, path: Path, columns: Columns | None, format: Format | None) -> Iterator[ImageItem]:
    """Yield the images of a folder or table, with captions where it has some."""
    if path.is_dir():
        for file in _image_files(path, opener, path):
            if (item := opener.of_file(file)) is not None:
                yield item
        return
    for image, caption, place in _cells(path, columns, CAPTION_NAMES, None, format):
        cleaned = None if caption is None else Cleaner().clean(caption).strip()
        if cleaned == "":
            opener.empty.append(place)
        elif (item := _item(opener, path, image, place, cleaned)) is not None:
            yield item


def _item(opener: _Opener, table: Path, image: str | bytes, place: str, caption: str | None = None) -> ImageItem | None:
    if isinstance(image, bytes):
        return opener.of_bytes(image, place, caption)
    return opener.of_file(table.parent / image.strip(), caption)


# ---- tables ----------------------------------------------------------------------------------------------


def _cells(
    path: Path, columns: Columns | None, names: Sequence[str], needed: str | None, format: Format | None
) -> Iterator[tuple[str | bytes, str | None, str]]:
    """Yield, by row, the image or its path, what stands beside it (None without such a column), and the place."""
    entries = () if columns is None else columns.split(",") if isinstance(columns, str) else columns
    chosen = [str(name).strip() for name in entries]
    if len(chosen) > 2 or (needed and len(chosen) == 1):
        raise TaskError(f"expected the columns image,{needed or 'caption'}, got {','.join(chosen)!r}")
    if path.suffix.lower() == ".parquet":
        yield from _parquet_cells(path, chosen, names, needed)
        return
    table = read_table(path, format).with_header()
    header = table.header or ()
    image = [*chosen[:1], *_usual(header, IMAGE_NAMES)][:1]
    used = [named_column(table, name) for name in _with_beside(path, header, image, chosen, names, needed)]
    for number, row in enumerate(table.rows):
        yield row[used[0]], row[used[1]] if len(used) > 1 else None, table.place(number)


def _with_beside(
    path: Path,
    header: Sequence[str],
    image: Sequence[str],
    chosen: Sequence[str],
    names: Sequence[str],
    needed: str | None,
) -> list[str]:
    """Return the column of images and, where there is one, that of what stands beside them."""
    if not image:
        raise TaskError(
            f"{path} has no column of images: name it with {option('columns')}; it has {', '.join(header)[:200]}"
        )
    beside = chosen[1:] or ([] if chosen else [name for name in _usual(header, names) if name != image[0]][:1])
    if needed and not beside:
        raise TaskError(f"{path} has no column of {needed}s: name it with {option('columns', f'image,{needed}')}")
    return [image[0], *beside]


def _parquet_cells(
    path: Path, chosen: Sequence[str], names: Sequence[str], needed: str | None
) -> Iterator[tuple[str | bytes, str | None, str]]:
    from pyarrow import parquet

    image = [*chosen[:1], *filter(None, [_parquet_column(path)])][:1]
    try:
        file = parquet.ParquetFile(path)
        header = file.schema_arrow.names
        used = _with_beside(path, header, image, chosen, names, needed)
        if unknown := [column for column in used if column not in header]:
            raise TaskError(f"{path} has no column {unknown[0]!r}: it has {', '.join(header)[:200]}")
        classes = written_names(file.schema_arrow.metadata, used[-1]) if needed else ()
        number = 0
        for batch in file.iter_batches(batch_size=_ROWS, columns=used):
            others = batch.column(used[1]).to_pylist() if len(used) > 1 else [None] * batch.num_rows
            for value, other in zip(batch.column(used[0]).to_pylist(), others, strict=True):
                number += 1
                cell = (None if len(used) < 2 else "") if other is None else str(other)
                if classes and isinstance(other, int) and other < len(classes):
                    cell = classes[other] if other >= 0 else ""  # -1 says that there is none
                yield _image_cell(value), cell, f"{path}, row {number}"
    except TaskError:
        raise
    except Exception as error:  # whatever the bytes lead pyarrow to
        raise TaskError(f"{path} cannot be read as Parquet: {str(error).partition(chr(10))[0]}") from error


def _image_cell(value: Any) -> str | bytes:
    """Return the bytes of an image, or its path where a cell has no bytes."""
    if isinstance(value, Mapping):
        data = value.get("bytes")
        return bytes(data) if data is not None else str(value.get("path") or "")
    return b"" if value is None else value if isinstance(value, str | bytes) else bytes(value)


def _parquet_column(path: Path) -> str | None:
    """Return the first column of a Parquet file that holds images; None where there is none, or it cannot be read."""
    from pyarrow import parquet, types

    try:
        schema = parquet.read_schema(path)
    except Exception:  # whatever the bytes lead pyarrow to; who reads the table says so
        return None
    for column in schema:
        if types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            return str(column.name)
    binary = [field.name for field in schema if types.is_binary(field.type) or types.is_large_binary(field.type)]
    return next(iter(_usual(binary, IMAGE_NAMES)), None)


def _lists_images(path: Path) -> bool:
    """Return whether a text file is a table of paths of images, by its first lines."""
    try:
        with path.open("rb") as file:
            head = [file.readline(2**16).decode("utf-8", "replace").lower() for _ in range(2)]
    except OSError:
        return False
    cells = "".join(" " if character in ",;\t|\"'{}: " else character for character in head[-1]).split()
    keys = "".join(" " if character in ",;\t|\"'{}: \r\n\ufeff" else character for character in head[0]).split()
    return bool(_usual(keys, IMAGE_NAMES)) and any(map(is_image_file, cells))


def _usual(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns with usual names, in the order of the names."""
    plain = {"".join(character for character in column.lower() if character not in " _-"): column for column in columns}
    return [plain[name] for name in names if name in plain]
