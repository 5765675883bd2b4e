"""Images from folders, Parquet and tables: what is read, and what is refused."""

import io
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from layerprobe.errors import DataError, TaskError
from layerprobe.files.images import ImageItem, decoded, prompted, readable_as
from layerprobe.tasks.loading import load_task, load_texts
from tests.images import digit_folder, digits, item_of


def png(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, str(options.pop("format", "PNG")), **options)
    return file.getvalue()


def hub_parquet(path: Path, n: int, *, first: int = 0, names: bool = True) -> Path:
    """Write digits as the Hub has images: a struct of bytes and path, and class numbers with their names."""
    images, targets = digits(first + n)
    cells = [{"bytes": png(Image.fromarray(image)), "path": f"{i}.png"} for i, image in enumerate(images[first:])]
    table = pa.table({"image": cells, "label": pa.array(targets[first:], pa.int64())})
    features = {"info": {"features": {"label": {"names": [f"digit {i}" for i in range(10)], "_type": "ClassLabel"}}}}
    if names:
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    parquet.write_table(table, path)
    return path


def test_a_folder_for_each_class_is_a_task(tmp_path: Path) -> None:
    folder = digit_folder(tmp_path / "digits", 60, classes=(3, 8))
    (folder / "3" / "notes.txt").write_text("no image")
    task = load_task(str(folder))
    assert (task.kind, task.labels) == ("image classification", ("3", "8"))
    assert (len(task.train), len(task.validation), len(task.test)) == (48, 6, 6)
    assert task.readable == "image"
    assert task.warnings == ("ignored 1 file in hidden folders or without the ending of an image",)
    item = task.train.sides[0][0]
    assert isinstance(item, ImageItem)
    assert item.file is not None
    assert task.labels[int(task.train.gold[0])] == item.file.parent.name


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    folder = digit_folder(tmp_path / ".data" / "digits", 60, classes=(3, 8))
    task = load_task(str(folder))
    image = next((folder / "3").iterdir())
    for hidden in (".ipynb_checkpoints", "__MACOSX/digits", "3/.thumbnails"):
        (folder / hidden).mkdir(parents=True)
        shutil.copy(image, folder / hidden / "copy.png")
    with_hidden = load_task(str(folder))
    assert (with_hidden.digest, with_hidden.labels) == (task.digest, task.labels)
    assert with_hidden.warnings == ("ignored 3 files in hidden folders or without the ending of an image",)
    assert len(load_texts(folder).texts) == 60


def test_ids_are_of_the_bytes_and_not_of_the_paths(tmp_path: Path) -> None:
    folder = digit_folder(tmp_path / "a", 40, classes=(0, 1))
    shutil.copytree(folder, tmp_path / "b")
    first, second = load_task(str(folder)), load_task(str(tmp_path / "b"))
    assert first.digest == second.digest
    shutil.copy(next((folder / "0").iterdir()), folder / "0" / "copy.png")
    again = load_task(str(folder))
    assert len(again.texts()) == 40  # a copy is no new image
    image = next(folder.rglob("*.png"))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(image)
    assert load_task(str(folder)).digest != again.digest


def test_train_val_and_test_folders_are_the_splits(tmp_path: Path) -> None:
    for split, n, first in (("train", 40, 0), ("val", 12, 400), ("test", 20, 800)):
        digit_folder(tmp_path / split, n, classes=(0, 1), first=first)
    task = load_task(str(tmp_path))
    assert (len(task.train), len(task.validation), len(task.test)) == (40, 12, 20)
    assert f"found in {tmp_path}: train as train, val as validation, test as test" in task.notes
    copy = shutil.copy(next((tmp_path / "test" / "0").iterdir()), tmp_path / "train" / "1" / "another.png")
    seen = load_task(str(tmp_path))
    assert len(seen.train) == 40, f"{copy} is an image of the test split, whatever its name and class"
    assert seen.warnings[0].startswith("left out 1 of 41 images of the train split that is also in the test split")
    digit_folder(tmp_path / "classes" / "a", 40, classes=(0,))
    (tmp_path / "classes" / "a" / "0").rename(tmp_path / "classes" / "train")  # the vehicle
    digit_folder(tmp_path / "classes", 40, classes=(1,))
    (tmp_path / "classes" / "a").rmdir()
    assert load_task(str(tmp_path / "classes")).labels == ("1", "train")


@pytest.mark.parametrize("names", [True, False])
def test_parquet_of_the_hub_equals_the_same_images_in_folders(tmp_path: Path, names: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    hub_parquet(folder / "train-00000-of-00002.parquet", 30, names=names)
    hub_parquet(folder / "train-00001-of-00002.parquet", 30, first=30, names=names)
    hub_parquet(folder / "test-00000-of-00001.parquet", 30, first=60, names=names)
    task = load_task(str(tmp_path))
    assert len(task.train) + len(task.validation) == 60
    assert len(task.test) == 30
    assert task.labels == tuple(f"digit {i}" if names else str(i) for i in range(10))
    item = task.test.sides[0][0]
    assert isinstance(item, ImageItem)
    np.testing.assert_array_equal(np.asarray(item.read())[..., 0], digits(61)[0][60])
    copy = pickle.loads(pickle.dumps(item))  # noqa: S301
    assert copy == item
    np.testing.assert_array_equal(np.asarray(copy.read()), np.asarray(item.read()))


def test_minus_one_in_parquet_of_the_hub_is_no_class(tmp_path: Path) -> None:
    path = hub_parquet(tmp_path / "a.parquet", 60)
    table = parquet.read_table(path)
    labels = pa.array([-1, *table["label"].to_pylist()[1:]], pa.int64())
    parquet.write_table(table.set_column(1, "label", labels), path)
    assert "-1" not in load_task(str(path), skip_empty=True).labels


def test_images_with_captions_are_items_for_both_kinds_of_models(tmp_path: Path) -> None:
    folder = digit_folder(tmp_path, 3)
    files = sorted(folder.rglob("*.png"))
    lines = [{"file_name": str(file.relative_to(folder)), "text": f"digit {i}"} for i, file in enumerate(files)]
    lines.append({**lines[0], "text": "another caption"})
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for source in (folder, folder / "metadata.jsonl"):
        data = load_texts(source)
        assert readable_as(data.texts) == "captioned"
        assert [item.caption for item in data.texts if isinstance(item, ImageItem)] == [
            "digit 0",
            "digit 1",
            "digit 2",
            "another caption",
        ]
        assert len(set(data.texts)) == 4
        assert data.groups is not None
        assert len(set(data.groups)) == 3
        assert "1 image with several captions: captions of one image count as one group" in data.notes
    before = prompted("a photo of ", data.texts)
    assert next(item.caption for item in before if isinstance(item, ImageItem)) == "a photo of digit 0"
    (folder / "metadata.jsonl").write_text(json.dumps({**lines[0], "text": " "}) + "\n" + json.dumps(lines[1]))
    with pytest.raises(TaskError, match=r"1 image cannot be used: .*: 1 without a caption .*--skip-empty$"):
        load_texts(folder)
    assert len(load_texts(folder, skip_empty=True).texts) == 1


def test_images_that_do_not_open_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    folder = digit_folder(tmp_path, 40, classes=(0, 1))
    whole = load_task(str(folder))
    first = next((folder / "0").iterdir())
    (folder / "0" / "cut.png").write_bytes(first.read_bytes()[:-30])
    (folder / "1" / "words.jpg").write_text("no image")
    expected = r"2 images cannot be used: .*: 2 that do not open \(.*0.cut\.png.*1.words\.jpg.*--skip-broken$"
    with pytest.raises(TaskError, match=expected):
        load_task(str(folder))
    with pytest.raises(TaskError, match="2 that do not open"):
        load_texts(folder)
    task = load_task(str(folder), skip_broken=True)
    assert task.digest == whole.digest
    assert task.warnings[0].startswith(f"{folder}: left out images that cannot be used, 2 that do not open (")


def test_a_gigantic_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = png(Image.new("L", (40, 40)))
    for limit in (1000, 100):  # what Pillow warns of, and what it refuses
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DataError, match=f"big.png has more than the {limit:,} pixels that Pillow considers safe"):
            decoded(data, "big.png")


def test_modes_become_rgb_the_right_way_up() -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    expected = np.stack([grey] * 3, axis=-1)
    plain = Image.fromarray(grey)
    palette = Image.fromarray(expected).convert("P", palette=Image.Palette.ADAPTIVE)
    wide = Image.fromarray(grey.astype(np.uint16) * 257)
    for image in (plain, palette, wide, plain.convert("RGBA"), plain.convert("LA")):
        np.testing.assert_array_equal(np.asarray(decoded(png(image), "a")), expected)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    turned = decoded(png(plain, exif=exif), "a")
    np.testing.assert_array_equal(np.asarray(turned), np.rot90(expected, -1))
    with pytest.raises(DataError, match="floating-point pixels of unknown range"):
        decoded(png(Image.fromarray(grey.astype(np.float32)), format="TIFF"), "a")


def test_whole_numbers_have_the_range_of_their_format() -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    pgm = decoded(png(Image.fromarray(grey.astype(np.uint16) * 257), format="PPM"), "a")
    np.testing.assert_array_equal(np.asarray(pgm)[..., 0], grey)
    with pytest.raises(DataError, match="32-bit or signed pixels of unknown range: save it with 8 bits per channel"):
        decoded(png(Image.fromarray(grey.astype(np.int32)), format="TIFF"), "a")


def test_an_image_that_changed_is_refused(tmp_path: Path) -> None:
    item = item_of(next(digit_folder(tmp_path, 1).rglob("*.png")))
    assert item.file is not None
    item.file.write_bytes(png(Image.new("L", (4, 4))))
    with pytest.raises(DataError, match="has changed since it was listed"):
        item.read()
