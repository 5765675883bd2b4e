"""Image classification: the kind, and images from folders by class, Parquet files and tables of paths as rows.

Knows files and Pillow, not models. Every image is opened once here, so that broken ones are found before work
begins; its bytes are read again when needed.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from layerprobe.errors import DataError, TaskError
from layerprobe.files.images import SUFFIXES, ImageItem, decoded, is_image_file, pillow
from layerprobe.files.inputs import from_home, open_regular
from layerprobe.metrics.scores import class_influences, class_scores
from layerprobe.names import counted
from layerprobe.stats.floors import class_floors
from layerprobe.tasks.cells import UnusableRowError, label_cell, written_names
from layerprobe.tasks.explored import class_view
from layerprobe.tasks.formats import Format, Grid, read_grid
from layerprobe.tasks.kind import LABEL_COLUMNS, Kind, learning_of
from layerprobe.tasks.rows import ColumnLayout, Columns, Row, TaskSource, find_columns, items_of, plain_name
from layerprobe.tasks.sources import split_roles
from layerprobe.tasks.splitting import SPLITS, Example, task_of
from layerprobe.tasks.values import Task, TextFile

IMAGE_NAMES = ("image", "images", "img", "filename", "file", "filepath", "imagepath", "imagefile", "path")
"""Usual names of a column of images, or of their paths: lower case, without spaces, underscores and hyphens."""
CAPTION_NAMES = ("caption", "captions", "text", "sentence", "description", "title", "alttext")
Beside = Literal["label", "caption"]
"""Text of an image: its class, which is required, or its caption."""
TABLES = (".csv", ".tsv", ".jsonl")
METADATA = ("metadata.csv", "metadata.jsonl")
"""Names of the metadata files of a folder of images with captions."""
INSPECTED = 5000
"""Largest number of files inspected to recognise a folder of images."""


def recognises(path: Path) -> bool:
    """Return whether a file or folder holds images: image files, Parquet with a column of images, or paths."""
    if path.is_dir():
        if tables := _parquet_in(path):
            return _has_images(tables[0])
        if any(file.suffix.lower() in TABLES and file.name not in METADATA for file in path.iterdir()):
            return False
        files = (file for file in itertools.islice(path.rglob("*"), INSPECTED) if is_image_file(file))
        return any(not any(map(_is_hidden, file.relative_to(path).parent.parts)) for file in files)
    if path.suffix.lower() == ".parquet" and path.is_file():
        return _has_images(path)
    return path.suffix.lower() in TABLES and path.is_file() and _lists_images(path)


def load_image_task(source: TaskSource) -> Task:
    """Load images with a class each, in three splits, drawn like those of texts if missing.

    Args:
        source: A folder with a folder for each class; one with such folders in train, val and test; a Parquet file, or
            a folder of them, with a column of images and one of labels, as on the Hub; or a CSV, TSV or JSONL file of
            labels and paths, relative to its own folder.

    Raises:
        TaskError: If images do not open and may not be skipped, or the classes are invalid.
    """
    pillow()
    settings, train = source.settings, source.data["train"]
    if not isinstance(train, str | Path):
        raise TaskError(f"expected a folder or a file of images, got a {type(train).__name__}")
    sources = _split_sources(from_home(train))
    listed = ", ".join(f"{'+'.join(file.name for file in files)} as {role}" for role, files in sources.items())
    notes = [f"found in {from_home(train)}: {listed}"] if len(sources) > 1 else []
    given = {role: [from_home(str(data))] for role, data in source.data.items() if role != "train"}
    grids = [
        (role, _grid(path, settings.columns, settings.format, "label"))
        for role, paths in (sources | given).items()
        for path in paths
    ]
    placed = ((grid, range(grid.width)) for _, grid in grids)
    read, more, warnings = items_of(placed, _labelled, item="image", skip=settings.skipped)
    splits: dict[str, list[Example]] = {}
    for (role, _), rows in zip(grids, read, strict=True):
        splits.setdefault(role, []).extend(rows)
    if not splits["train"]:
        raise TaskError(f"{source.name} has no images: expected a folder for each class, with files of images in it")
    classes = {row.label for row in splits["train"]}
    if len(classes) == 1:
        raise TaskError(f"{source.name} has images of only one class, {min(classes)!r}: expected two or more classes")
    return task_of(
        source.name,
        IMAGE_CLASSIFICATION.name,
        splits,
        ratios=source.ratios,
        seed=settings.split_seed,
        score_range=None,
        notes=[*notes, *more],
        warnings=warnings,
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
    """Load images without labels, or images with captions, as items to embed.

    An item is an image, or an image with its caption: image models read the image and text models the caption, so that
    both embed the same items. Several captions of an image are items of one group, since they are not
    independent.

    Args:
        source: A folder of images, possibly in subfolders, with a `metadata.csv` or `metadata.jsonl` of
            `file_name` and caption if there are captions; a Parquet file; or a CSV, TSV or JSONL file of paths, and
            captions.
        columns: Columns of a table: images, or images and captions; by default usual names are recognised.
        format: Format of a table.
        skip_broken: Leave out images that do not open; otherwise they are an error.
        skip_empty: Leave out images with an empty caption; otherwise they are an error.
        name: Name in messages; by default the source.

    Raises:
        TaskError: If images do not open and may not be skipped, or there are none.
    """
    pillow()
    path, switches = from_home(source), {"skip_broken": skip_broken, "skip_empty": skip_empty}
    grids = [_grid(file, columns, format, "caption") for file in _tables_in(path)]
    skip = [name for name, on in switches.items() if on]
    placed = ((grid, range(grid.width)) for grid in grids)
    read, notes, warnings = items_of(placed, _captioned, item="image", skip=skip)
    items = [item for of_table in read for item in of_table]
    if not items:
        raise TaskError(f"{path} has no images: expected files ending in {', '.join(SUFFIXES)}")
    images, groups = Counter(item.sha256 for item in dict.fromkeys(items)), None
    if several := sum(n > 1 for n in images.values()):
        groups = tuple(item.sha256 for item in items)
        notes.append(f"{counted(several, 'image')} with several captions: captions of one image count as one group")
    return TextFile(
        name=name or str(source),
        texts=tuple(items),
        groups=groups,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


# ---- rows -> images --------------------------------------------------------------------------------------


def _labelled(row: Row) -> Example:
    label = label_cell(row.values[1])
    if not label:
        raise UnusableRowError("without a label")
    return Example(first=_image(row), second=None, cell=label, label=label, place=row.place)


def _captioned(row: Row) -> ImageItem:
    caption = row.log.clean(row.values[1]).strip() if len(row.values) > 1 else None
    if caption == "":
        raise UnusableRowError("without a caption")
    return _image(row, caption)


def _image(row: Row, caption: str | None = None) -> ImageItem:
    """Return an image that opens; otherwise raise UnusableRowError."""
    image = row.values[0]
    file = Path(image) if isinstance(image, str) else None
    place = row.place if file is None else str(file)
    try:
        content = image if file is None else file.read_bytes()
        decoded(content, place)
    except OSError as error:
        reason = f"{place} cannot be read: {error.strerror or error}"
        raise UnusableRowError("that do not open", name=reason, skip="skip_broken") from error
    except DataError as error:
        raise UnusableRowError("that do not open", name=str(error), skip="skip_broken") from error
    item = ImageItem.of_bytes(content, place=place, caption=caption)
    item.file, item.data = file, image if file is None else None
    return item


# ---- locations of images ---------------------------------------------------------------------------------


def _split_sources(path: Path) -> dict[str, list[Path]]:
    """Return the folders or files of each split; all as train without splits."""
    tables = _tables_in(path)
    if path.is_file():
        return {"train": tables}
    candidates = sorted(child for child in path.iterdir() if child.is_dir()) if tables == [path] else tables
    roles: dict[str, list[Path]] = {role: [] for role in SPLITS}
    for folder, role in zip(candidates, split_roles([candidate.stem for candidate in candidates]), strict=True):
        # only folders with exactly that name, and with subfolders: a class may be "test tube", or "train"
        is_split = folder.is_file() or (
            folder.name.isalpha() and any(child.is_dir() and not _is_hidden(child.name) for child in folder.iterdir())
        )
        if is_split and role is not None:
            roles[role].append(folder)
    if not roles["train"]:
        return {"train": tables}
    return {role: files for role, files in roles.items() if files}


def _tables_in(path: Path) -> list[Path]:
    """Return the metadata of a folder, or its Parquet files; the path itself if it has neither."""
    if not path.exists():
        raise TaskError(f"{path} does not exist: expected a folder or a file of images")
    if path.is_dir():
        if metadata := [path / name for name in METADATA if (path / name).is_file()]:
            return metadata[:1]
        return _parquet_in(path) or [path]
    return [path]


def _parquet_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def _is_hidden(folder: str) -> bool:
    """Return whether a folder is hidden by its name, or added to archives by macOS."""
    return folder.startswith(".") or folder == "__MACOSX"


# ---- folders and files -> rows ---------------------------------------------------------------------------


def _grid(path: Path, columns: Columns | None, format: Format | None, beside: Beside) -> Grid:
    """Return one row per image: its path or bytes, and its label or caption, if any."""
    if path.is_dir():
        if beside == "label" and columns is not None:
            raise TaskError(f"{path} has one folder per class: expected no columns, which are for tables")
        return _folder(path, beside)
    grid, places = find_columns(read_grid(path, format).with_header(), columns, _LAYOUTS[beside])
    image, *others = (place for place in places if place is not None)
    grid.check_cells(others)
    header = tuple(map(grid.column, (image, *others)))
    labels = _class_names(path, header[-1]) if path.suffix.lower() == ".parquet" and beside == "label" else {}
    rows = tuple(
        (_image_cell(row[image], path.parent), *(labels.get(row[i], row[i]) for i in others)) for row in grid.rows
    )
    return dataclasses.replace(grid, header=header, rows=rows, nested={})


_WITH_CAPTION = ColumnLayout(columns={"image": IMAGE_NAMES, "caption": CAPTION_NAMES}, lists=True)
_LAYOUTS: dict[Beside, list[ColumnLayout]] = {
    "label": [ColumnLayout(columns={"image": IMAGE_NAMES, "label": LABEL_COLUMNS}, lists=True)],
    "caption": [_WITH_CAPTION, ColumnLayout(columns={"image": IMAGE_NAMES}, lists=True)],
}


def _folder(path: Path, beside: Beside) -> Grid:
    """Return the images of a folder; in folders by class, each with its class."""
    folders = [path]
    if beside == "label" and not (folders := sorted(child for child in path.iterdir() if child.is_dir())):
        raise TaskError(f"{path} has no folders: expected one folder per class, with its images")
    rows, passed = list[tuple[str, ...]](), 0
    for folder in folders:
        try:
            files = sorted(file for file in folder.rglob("*") if file.is_file())
        except OSError as error:
            raise TaskError(f"{folder} cannot be read: {error.strerror or error}") from error
        for file in files:
            if is_image_file(file) and not any(map(_is_hidden, file.relative_to(path).parent.parts)):
                rows.append((str(file), folder.name) if beside == "label" else (str(file),))
            else:
                passed += not file.name.startswith(".")
    warning = f"ignored {counted(passed, 'file')} in hidden folders or without the ending of an image"
    return Grid(
        name=str(path),
        header=("image", "label") if beside == "label" else ("image",),
        rows=tuple(rows),
        numbers=tuple(range(1, len(rows) + 1)),
        unit="image",
        warnings=(warning,) if passed else (),
    )


def _image_cell(cell: Any, folder: Path) -> str | bytes:
    """Return the bytes of an image or, if a cell has none, its path, relative to a folder."""
    if isinstance(cell, Mapping):
        data = cell.get("bytes")
        cell = data if data is not None else str(cell.get("path") or "")
    return str(folder / cell.strip()) if isinstance(cell, str) else bytes(cell)


def _class_names(path: Path, column: str) -> dict[str, str]:
    """Return the names of classes that `datasets` wrote into a Parquet file, by number."""
    from pyarrow import parquet

    with open_regular(path) as file:
        names = written_names(parquet.read_schema(file).metadata, column)
    return {str(number): name for number, name in enumerate(names)}


def _has_images(path: Path) -> bool:
    """Return whether a Parquet file has a column of images; False if it cannot be read."""
    from pyarrow import parquet, types

    try:
        with open_regular(path) as file:
            schema = parquet.read_schema(file)
    except Exception:  # any error of pyarrow; reading the table reports it
        return False
    return any(
        (types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0)
        or (
            (types.is_binary(column.type) or types.is_large_binary(column.type))
            and plain_name(column.name) in IMAGE_NAMES
        )
        for column in schema
    )


def _lists_images(path: Path) -> bool:
    """Return whether a text file is a table of image paths, by its first lines."""
    try:
        with open_regular(path) as file:
            head = [file.readline(2**16).decode("utf-8", "replace").lower() for _ in range(2)]
    except OSError:
        return False
    cells = "".join(" " if character in ",;\t|\"'{}: " else character for character in head[-1]).split()
    keys = "".join(" " if character in ",;\t|\"'{}: \r\n\ufeff" else character for character in head[0]).split()
    return any(plain_name(key) in IMAGE_NAMES for key in keys) and any(map(is_image_file, cells))


IMAGE_CLASSIFICATION = Kind(
    name="image classification",
    view=class_view,
    pairs=False,
    labelled=True,
    item="image",
    metrics=("accuracy", "macro f1"),
    score=class_scores,
    influences=class_influences,
    learning=learning_of("image classification"),
    zero_shot="probe",
    one_target=True,
    averages="probabilities",
    loader=load_image_task,
    recognises=recognises,
    unlabelled=load_images,
    floors=lambda items: class_floors(items.gold),
    primary_if_rare="macro f1",
)
