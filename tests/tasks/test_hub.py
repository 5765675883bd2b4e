import datasets
import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.sources import is_on_hub
from tests.tasks.test_load_task import sizes


def split(n: int, word: str = "a", **others):
    scores = [0.0, 0.25, 0.5, 1.0]
    columns = {"sentence1": [f"{word} {i}" for i in range(n)], "sentence2": [f"{word} {i}, too" for i in range(n)]}
    return datasets.Dataset.from_dict({**columns, "score": [scores[i % 4] for i in range(n)], **others})


@pytest.fixture
def hub(monkeypatch):
    """A hub of one data set, with what was asked of it."""
    hub = {"splits": {}, "asked": []}

    def load_dataset(*arguments):
        hub["asked"].append(arguments)
        return datasets.DatasetDict(hub["splits"])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return hub


@pytest.mark.parametrize(
    ("name", "asked", "dev"),
    [("stsb", ("sentence-transformers/stsb", None), "validation"), ("org/multi:en", ("org/multi", "en"), "dev")],
)
def test_names_and_their_splits(hub, name, asked, dev):
    hub["splits"] = {"train": split(8, "t"), dev: split(5, "v"), "test": split(4)}
    task = load_task(name)
    assert hub["asked"] == [asked]
    assert (task.name, sizes(task), task.score_range) == (name, (8, 5, 4), (0, 1))
    assert task.test.targets == (0, 0.25, 0.5, 1)
    hub["splits"] = {"test": split(60)}
    assert sizes(load_task(name)) == (48, 6, 6), "a single split is split"


def test_a_given_file_goes_before_the_hub(hub, tmp_path):
    hub["splits"] = {"train": split(8, "t"), "validation": split(5, "v"), "test": split(4)}
    split(6, "m").to_csv(tmp_path / "mine.csv", index=False)
    assert sizes(load_task("stsb", test=tmp_path / "mine.csv")) == (8, 5, 6)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("validation", "extra"), "'org/a' has the splits validation, extra: expected train, validation and test"),
        (("train", "dev_a", "dev_b"), "several validation splits, dev_a, dev_b: download its files"),
    ],
)
def test_splits_that_are_missing_or_twice(hub, names, message):
    hub["splits"] = {name: split(8, name) for name in names}
    with pytest.raises(TaskError, match=message):
        load_task("org/a")


@pytest.mark.parametrize("error", [RuntimeError("first\nsecond"), KeyError(), ConnectionError("no network")])
def test_any_failure_is_one_line(monkeypatch, error):
    def load_dataset(*_):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(TaskError, match=r"cannot load 'org/name', which is not a file, from the Hub: .+: ") as caught:
        load_task("org/name")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.b/c_d:e.f-g", "glue:stsb", "한국어"])
def test_hub_names(name):
    assert is_on_hub(name)


@pytest.mark.parametrize("name", ["", "a/b/c", "./a", "~/a", "/a", "a b", "C:\\a", "a:"])
def test_no_hub_names(name):
    assert not is_on_hub(name)


def test_without_network_the_line_says_so(monkeypatch):
    def load_dataset(*_):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TaskError, match="cannot load 'org/name', which is not a file, from the Hub: HF_HUB_OFFLINE is"):
        load_task("org/name")


def test_images_of_the_hub_are_to_be_downloaded(hub):
    hub["splits"] = {"train": split(8).add_column("image", [None] * 8).cast_column("image", datasets.Image())}
    with pytest.raises(TaskError, match="some/pictures train has images in 'image': download its Parquet files"):
        load_task("some/pictures")
