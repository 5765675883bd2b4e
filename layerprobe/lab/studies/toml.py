"""A TOML file -> a lab study. Knows the file's keys and what they may hold; runs nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.lab.pretraining.values import SIZES, EncoderSize, PretrainingProtocol
from layerprobe.lab.studies.values import LANGUAGE, LabStudy, LabTask
from layerprobe.files.toml import SEEDS, Keys, Reader, read_toml, reader, text, texts


def load_lab(path: str | Path) -> LabStudy:
    """Read a lab study from a TOML file; paths in it are relative to the file.

        corpus = "language"                   # or a file or a list of files; column = "text" in a table
        objectives = ["mlm", "rtd"]           # mlm is among them
        seeds = 2                             # of the pretraining; or a list of them
        generator_sizes = [0.25]
        finetuning_seeds = 3
        [sizes]
        tiny = "tiny"                         # a preset, or
        short = { n_blocks = 6, hidden_size = 64, heads = 4, intermediate_size = 256 }
        [pretraining]                         # fields of PretrainingProtocol
        steps = 2500
        [task]                                # fields of TaskSettings; or several, as [task.NAME]
        source = "language"                   # sentence pairs of the embedded language, or a file or data set
        examples = [1500, 500, 1000]          # training, validation and test, at most; "rest": all others are test
        [scans]                               # runs with a loss at every layer, by weighting
        falling = 2                           # a number of seeds, or a list of them
        [budget.gentle]                       # fields of Protocol; any number of budgets
        epochs = 3

    Raises:
        DataError: If the file cannot be read, is no TOML, or a key is missing, unknown or not what it should be.
    """
    keys = read_toml(path, "the study", absolute=True)

    def source(name: str) -> str:
        return name if name == LANGUAGE else keys.source(name)

    tasks = keys.table("task", default={"source": LANGUAGE})
    named = not tasks.data.keys() & {"source", "examples"} and all(isinstance(it, dict) for it in tasks.data.values())
    sizes, budgets = keys.table("sizes"), keys.table("budget")
    scans = keys.table("scans", default={})
    values = {
        "name": keys.take("name", reader(str), default=Path(path).stem),
        "sizes": {name: _size(sizes, name) for name in sizes.data},
        "budgets": {name: budgets.table(name).whole(Protocol) for name in budgets.data},
        "pretraining": keys.table("pretraining", default={}).whole(PretrainingProtocol, _OF_EACH_MODEL),
        "tasks": tuple(_task(tasks.table(name), source, name) for name in tasks.data)
        if named
        else (_task(tasks, source),),
        "scans": {name: scans.take(name, SEEDS) for name in get_args(Weighting) if name in scans.data},
    }
    scans.known += get_args(Weighting)
    scans.done()
    corpus = texts(source, f'"{LANGUAGE}", a file or a list of files')
    return keys.whole(LabStudy, values, readers={"corpus": corpus, "seeds": SEEDS, "finetuning_seeds": SEEDS})


_OF_EACH_MODEL = {name: getattr(PretrainingProtocol(), name) for name in ("objective", "size", "generator_size")}
"""What differs from model to model is no key of the pretraining."""


def _size(sizes: Keys, name: str) -> EncoderSize:
    if isinstance(sizes.data[name], dict):
        return sizes.table(name).whole(EncoderSize)
    size: EncoderSize = sizes.take(name, Reader(SIZES.__getitem__, f"one of {', '.join(SIZES)} or a table"))
    return size


def _task(keys: Keys, source: Callable[[str], str], name: str | None = None) -> LabTask:
    where = text(source, f'"{LANGUAGE}", a file, a folder, stsb or the hub id of a data set')
    settings = keys.task(keys.take("source", where))
    examples = keys.take("examples", _EXAMPLES, default=None)
    keys.done()
    task: LabTask = keys.made(LabTask, settings=settings, name=name, examples=examples)
    return task


def _examples(value: Any) -> tuple[int, int, int | None]:
    if isinstance(value, list) and value[2:] == [REST]:
        return (*reader(tuple[int, int]).read(value[:2]), None)
    sizes: tuple[int, int, int] = reader(tuple[int, int, int]).read(value)
    return sizes


REST = "rest"
"""Of the test examples: all that are not used to train or choose."""
_EXAMPLES = Reader(_examples, f'three whole numbers in a list, of which the last can be "{REST}"')
