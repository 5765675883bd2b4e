"""A TOML file -> a lab study. Knows the file's keys and what they may hold; runs nothing."""

from pathlib import Path
from types import GenericAlias
from typing import Any

from layerprobe.files.serialisation import Reader, from_dict
from layerprobe.files.toml import SEEDS, Keys, read_toml, texts
from layerprobe.finetuning.values import Protocol, Weighting, with_rate
from layerprobe.lab.pretraining.values import LANGUAGE, SIZES, EncoderSize, PretrainingProtocol
from layerprobe.lab.studies.values import LabStudy, LabTask
from layerprobe.tasks.toml import source_from, taken_task


def load_lab(path: str | Path) -> LabStudy:
    """Read a lab study from a TOML file.

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
        epochs = 3                            # with lora, learning_rate is 2e-4 by default

    Paths in it are relative to the file.
    """
    keys = read_toml(path, "the study", absolute=True)
    if isinstance(budgets := keys.data.get("budget"), dict):
        rated = {name: with_rate(budget) if isinstance(budget, dict) else budget for name, budget in budgets.items()}
        keys.data = {**keys.data, "budget": rated}
    tasks = keys.table("task", default={"source": LANGUAGE})
    named = not tasks.data.keys() & {"source", "examples"} and all(isinstance(it, dict) for it in tasks.data.values())
    sizes = keys.table("sizes")
    values = {
        "tasks": tuple(taken_lab_task(tasks.table(name), name) for name in tasks.data)
        if named
        else (taken_lab_task(tasks),),
        "sizes": {
            name: sizes.take(name, EncoderSize if type(size) is dict else _SIZE) for name, size in sizes.data.items()
        },
        "budgets": keys.take("budget", dict[str, Protocol]),
        "scans": keys.take("scans", GenericAlias(dict, (Weighting, SEEDS)), default={}),
        "name": keys.take("name", str, default=Path(path).stem),
        "pretraining": keys.table("pretraining", default={}).whole(PretrainingProtocol, _OF_EACH_MODEL),
    }
    corpus = texts(
        lambda name: name if name == LANGUAGE else source_from(keys.folder, name),
        f'"{LANGUAGE}", a file or a list of files',
    )
    return keys.whole(LabStudy, values, readers={"corpus": corpus, "seeds": SEEDS, "finetuning_seeds": SEEDS})


_SIZE = Reader(SIZES.__getitem__, f"one of {', '.join(SIZES)} or a table")
_OF_EACH_MODEL = {name: getattr(PretrainingProtocol(), name) for name in ("objective", "size", "generator_size")}
"""What differs from model to model is no key of the pretraining."""


def taken_lab_task(keys: Keys, name: str | None = None) -> LabTask:
    """Return the task of a study that a table describes."""
    settings = taken_task(keys, named=LANGUAGE)
    examples = keys.take("examples", _EXAMPLES, default=None)
    keys.done()
    return keys.made(LabTask, settings=settings, name=name, examples=examples)


def _examples(value: Any) -> tuple[int, int, int | None]:
    *others, test = from_dict(tuple[int, int, int] if value[-1:] != [REST] else tuple[int, int, Any], value)
    first, second = others
    return first, second, None if test == REST else test


REST = "rest"
"""Of the test examples: all that are not used to train or choose."""
_EXAMPLES = Reader(_examples, f'three whole numbers in a list, of which the last can be "{REST}"')
