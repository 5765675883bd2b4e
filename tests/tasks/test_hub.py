import os
import subprocess
import sys

import datasets
import pytest

from layerprobe.errors import TaskError
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.sources import is_on_hub


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


def sizes(task):
    return len(task.train), len(task.validation), len(task.test)


def test_stsb_is_the_sts_benchmark_of_the_hub(hub):
    hub["splits"] = {"train": split(8, "t"), "validation": split(5, "v"), "test": split(4)}
    task = load_task("stsb")
    assert hub["asked"] == [("sentence-transformers/stsb", None)]
    assert (task.name, sizes(task), task.score_range) == ("stsb", (8, 5, 4), (0, 1))
    assert task.test.first == ("a 0", "a 1", "a 2", "a 3")
    assert task.test.targets == (0, 0.25, 0.5, 1)


def test_names_with_a_config(hub):
    hub["splits"] = {"train": split(8, "t"), "dev": split(5, "v"), "test": split(4)}
    assert sizes(load_task("org/sts-multi:en")) == (8, 5, 4)
    assert hub["asked"] == [("org/sts-multi", "en")]


def test_a_lone_split_is_split(hub):
    hub["splits"] = {"test": split(60)}
    assert sizes(load_task("org/biosses")) == (48, 6, 6)


def test_a_given_file_goes_before_the_hub(hub, tmp_path):
    hub["splits"] = {"train": split(8, "t"), "validation": split(5, "v"), "test": split(4)}
    split(6, "m").to_csv(tmp_path / "mine.csv", index=False)
    assert sizes(load_task("stsb", test=tmp_path / "mine.csv")) == (8, 5, 6)


def test_a_split_without_labels_is_an_error(hub):
    hub["splits"] = {"train": split(8), "validation": split(5), "test": split(4, score=[-1.0] * 4)}
    with pytest.raises(TaskError, match=r"all 4 scores of the test split are -1 \(from stsb test, row 1\)"):
        load_task("stsb")


def test_a_data_set_without_train_split_is_an_error(hub):
    hub["splits"] = {"validation": split(5), "extra": split(4)}
    with pytest.raises(TaskError, match="'stsb' has the splits validation, extra: expected train, validation and test"):
        load_task("stsb")


def test_several_splits_of_one_role_are_an_error(hub):
    hub["splits"] = {name: split(8, name) for name in ("train", "validation_matched", "validation_mismatched")}
    said = "several validation splits, validation_matched, validation_mismatched: download its files"
    with pytest.raises(TaskError, match=said):
        load_task("org/mnli")


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


def test_without_network_the_message_is_one_line(tmp_path):
    code = "import layerprobe.tasks.loading as t; from layerprobe.errors import TaskError\n"
    code += "try: t.load_task('no-such/data')\n"
    code += "except TaskError as error: print(error)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("\n") == 1
    assert run.stdout.startswith("cannot load 'no-such/data', which is not a file, from the Hub: ")
    assert "HF_HUB_OFFLINE is set" in run.stdout


def test_images_of_the_hub_are_to_be_downloaded(hub):
    hub["splits"] = {"train": split(8).add_column("image", [None] * 8).cast_column("image", datasets.Image())}
    with pytest.raises(TaskError, match="some/pictures train has images in 'image': download its Parquet files"):
        load_task("some/pictures")
