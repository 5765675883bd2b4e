"""The embedded pair: two small encoders of one architecture with different pretraining objectives.

`mlm` was pretrained by masked language modelling, `rtd` as an ELECTRA discriminator by replaced token
detection, both on the synthetic language, with the same sentences, order and number of steps. Their weights
ship with the package.
The recipe is with the other pretraining in the lab.
"""

import csv
import io
import shutil
from numbers import Integral
from pathlib import Path
from typing import Literal

from layerprobe.checks import check_choice
from layerprobe.embedded.language import Language
from layerprobe.errors import DataError
from layerprobe.files.atomic import write_file
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.values import Examples, Task

LANGUAGE_SEED = 0
# training, validation and test pairs
TASK_SIZES = (1500, 500, 1000)
TASK_SEED = 10
N_TEXTS, TEXTS_SEED = 2000, 20
# The demo has more test pairs and a short training: with six epochs the last layers recover half of the drop.
DEMO_SIZES = {"train": 1500, "validation": 1000, "test": 2000}
DEMO_PROTOCOL = Protocol(learning_rate=3e-4, epochs=1, batch_size=16)


Objective = Literal["mlm", "rtd"]


def embedded_model(objective: str) -> Path:
    """Return the folder of the shipped encoder pretrained by `objective`: mlm or rtd; DataError for others."""
    check_choice(objective, Objective, name="objective")
    return Path(__file__).parent / "weights" / objective


def embedded_task(*, train: int = TASK_SIZES[0], validation: int = TASK_SIZES[1], test: int = TASK_SIZES[2]) -> Task:
    """Return sentence pairs of the synthetic language with the similarity of their scenes as gold scores.

    Raises:
        DataError: If a split would be empty.
    """
    if not all(isinstance(size, Integral) and size >= 1 for size in (train, validation, test)):
        raise DataError(f"expected at least one pair per split, got {train}, {validation} and {test}")
    language = Language(seed=LANGUAGE_SEED)

    def split(n: int, seed: int) -> Examples:
        first, second, scores = zip(*language.pairs(n, seed=seed), strict=True)
        return Examples(first=first, second=second, targets=tuple(score / 5 for score in scores))

    return Task(
        name="embedded",
        kind="sts",
        train=split(train, TASK_SEED),
        validation=split(validation, TASK_SEED + 1),
        test=split(test, TASK_SEED + 2),
        score_range=(0.0, 5.0),
        notes=("sentence pairs of the synthetic language; gold similarity is that of their scenes",),
    )


def write_embedded(folder: Path, *, pairs: int = sum(TASK_SIZES), texts: int = N_TEXTS) -> None:
    """Write the embedded pair and its language as ordinary files: `rtd`, `mlm`, `pairs.csv` and `texts.txt`.

    Args:
        folder: Folder to write, created if missing; existing files with these names are replaced.
        pairs: Rows of `pairs.csv`: two sentences and their gold similarity from 0 to 5.
        texts: Number of lines of `texts.txt`: sentences that are in none of the pairs' splits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for objective in ("rtd", "mlm"):
        shutil.copytree(embedded_model(objective), folder / objective, dirs_exist_ok=True)
    language = Language(seed=LANGUAGE_SEED)
    rows = [("sentence1", "sentence2", "score"), *language.pairs(pairs, seed=TASK_SEED)]
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows(rows)
    write_file(folder / "pairs.csv", lines.getvalue().encode())
    write_file(folder / "texts.txt", "".join(f"{x}\n" for x in language.sentences(texts, seed=TEXTS_SEED)).encode())
