"""Why folders of images are read here and not by the imagefolder of `datasets`: which tasks that would change."""

from collections.abc import Sequence
from pathlib import Path

import datasets
from PIL import Image

from layerprobe.files.images import ImageItem
from layerprobe.tasks.loading import load_task

Listed = dict[str, set[tuple[str, str | None]]]


def folder_of(root: Path, files: Sequence[str]) -> Path:
    """Write small images, each of a colour of its own."""
    for number, file in enumerate(files):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(root / file)
    return root


def by_imagefolder(root: Path, cache: Path) -> Listed:
    """Return the images of each split with their classes, as `datasets` reads them."""
    listed: Listed = {}
    for split, rows in datasets.load_dataset("imagefolder", data_dir=str(root), cache_dir=str(cache)).items():
        names = rows.features["label"].names if "label" in rows.features else None
        undecoded = rows.cast_column("image", datasets.Image(decode=False))
        listed[split] = {
            (Path(row["image"]["path"]).relative_to(root).as_posix(), names[row["label"]] if names else None)
            for row in undecoded
        }
    return listed


def by_us(root: Path) -> Listed:
    task = load_task(str(root))
    listed: Listed = {}
    for split in ("train", "validation", "test"):
        items = getattr(task, split)
        for item, label in zip(items.sides[0], items.gold, strict=True):
            assert isinstance(item, ImageItem)
            name = Path(item.place).relative_to(root).as_posix()
            listed.setdefault(split, set()).add((name, task.labels[int(label)]))
    return listed


def images_of(*folders: str) -> list[str]:
    return [f"{folder}/{number}.png" for folder in folders for number in range(20)]


SPLITS = ("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")


def test_folders_by_split_and_class_are_read_alike(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images", images_of(*SPLITS, "train/.hidden"))
    assert by_us(root) == by_imagefolder(root, tmp_path / "cache")
