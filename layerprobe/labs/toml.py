"""A TOML file -> a lab study. Knows the file's keys and what they may hold; runs nothing."""

from collections.abc import Callable
from pathlib import Path

from layerprobe.finetuning.values import Protocol
from layerprobe.labs.values import LANGUAGE, LabStudy
from layerprobe.pretraining.values import SIZES, EncoderSize, PretrainingProtocol
from layerprobe.tasks.values import TaskSettings
from layerprobe.toml import SEEDS, Keys, Reader, read_toml, reader, text, texts


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
        [task]                                # fields of TaskSettings
        source = "language"                   # sentence pairs of the embedded language, or a file or data set
        examples = [1500, 500, 1000]          # training, validation and test, at most
        [budget.gentle]                       # fields of Protocol; any number of budgets
        epochs = 3

    Raises:
        DataError: If the file cannot be read, is no TOML, or a key is missing, unknown or not what it should be.
    """
    keys = read_toml(path, "the study", absolute=True)

    def source(name: str) -> str:
        return name if name == LANGUAGE else keys.source(name)

    task, examples = _task(keys.table("task", default={"source": LANGUAGE}), source)
    sizes, budgets = keys.table("sizes"), keys.table("budget")
    values = {
        "name": keys.take("name", reader(str), default=Path(path).stem),
        "sizes": {name: _size(sizes, name) for name in sizes.data},
        "budgets": {name: budgets.table(name).whole(Protocol) for name in budgets.data},
        "pretraining": keys.table("pretraining", default={}).whole(PretrainingProtocol, _OF_EACH_MODEL),
        "task": task,
        "examples": examples,
    }
    corpus = texts(source, f'"{LANGUAGE}", a file or a list of files')
    return keys.whole(LabStudy, values, readers={"corpus": corpus, "seeds": SEEDS, "finetuning_seeds": SEEDS})


_OF_EACH_MODEL = {name: getattr(PretrainingProtocol(), name) for name in ("objective", "size", "generator_size")}
"""What differs from model to model is no key of the pretraining."""


def _size(sizes: Keys, name: str) -> EncoderSize:
    if isinstance(sizes.data[name], dict):
        return sizes.table(name).whole(EncoderSize)
    size: EncoderSize = sizes.take(name, Reader(SIZES.__getitem__, f"one of {', '.join(SIZES)} or a table"))
    return size


def _task(keys: Keys, source: Callable[[str], str]) -> tuple[TaskSettings, tuple[int, int, int] | None]:
    where = text(source, f'"{LANGUAGE}", a file, a folder, stsb or the hub id of a data set')
    task = keys.task(keys.take("source", where))
    examples = keys.take("examples", reader(tuple[int, int, int]), default=None)
    keys.done()
    return task, examples
