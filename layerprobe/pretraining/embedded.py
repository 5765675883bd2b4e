"""The embedded pair: two small encoders of one architecture that differ in what they were pretrained for.

`mlm` was pretrained by masked language modelling, `rtd` as an ELECTRA discriminator by replaced token
detection, both on the synthetic language, with the same sentences, order and number of steps. Their weights
ship with the package.

The shipped weights were made by the loop of commit d3c5f83, before `layerprobe pretrain` was there, with the recipe
below. It differed in details: `mlm` had the class of BERT, token type embeddings and the norm of the embeddings were
not tied, the masks of the two models were not the same ones, and copies of sentences were kept. So this makes a pair by
the recipe, not these weights (about half an hour of processor time):

    python -m layerprobe.pretraining.embedded DIRECTORY
"""

import argparse
import csv
import dataclasses
import io
import logging
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from layerprobe.files import replace_file
from layerprobe.finetuning.values import Protocol
from layerprobe.pretraining.language import Language
from layerprobe.pretraining.tokenizers import word_tokenizer
from layerprobe.pretraining.training import prepare
from layerprobe.pretraining.values import SIZES, PretrainingProtocol
from layerprobe.tasks.values import Examples, Task
from layerprobe.training.loop import train

LANGUAGE_SEED = 0
CORPUS_SIZE = 150_000
CORPUS_SEED = 1
# training, validation and test pairs of the demo's task
TASK_SIZES = (1500, 500, 1000)
TASK_SEED = 10
N_TEXTS, TEXTS_SEED = 2000, 20
# The paper's protocol but for a higher learning rate and fewer epochs: models this small need it to converge.
DEMO_PROTOCOL = Protocol(learning_rate=3e-4, epochs=6)
RECIPE = PretrainingProtocol(size=SIZES["tiny"], generator_size=0.5, steps=8000, batch_size=64, max_length=64)
N_BLOCKS = RECIPE.size.n_blocks


def embedded_model(objective: str) -> Path:
    """Return the folder of the shipped encoder that was pretrained by `objective`: mlm or rtd."""
    return Path(__file__).parent / "weights" / objective


def embedded_task(*, train: int = TASK_SIZES[0], validation: int = TASK_SIZES[1], test: int = TASK_SIZES[2]) -> Task:
    """Return sentence pairs of the synthetic language whose gold similarity is that of the scenes told."""
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
        notes=("sentence pairs of the synthetic language; gold similarity is that of the scenes they tell",),
    )


def write_embedded(folder: Path, *, pairs: int = sum(TASK_SIZES), texts: int = N_TEXTS) -> None:
    """Write the embedded pair and its language as ordinary files: `rtd`, `mlm`, `pairs.csv` and `texts.txt`.

    Args:
        folder: Made where it does not exist; what stands there already by these names is replaced.
        pairs: Rows of `pairs.csv`: two sentences and their gold similarity from 0 to 5.
        texts: Lines of `texts.txt`: sentences that are in none of the pairs' splits.

    Raises:
        OSError: If a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for objective in ("rtd", "mlm"):
        shutil.copytree(embedded_model(objective), folder / objective, dirs_exist_ok=True)
    language = Language(seed=LANGUAGE_SEED)
    rows = [("sentence1", "sentence2", "score"), *language.pairs(pairs, seed=TASK_SEED)]
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows(rows)
    replace_file(folder / "pairs.csv", lines.getvalue().encode())
    replace_file(folder / "texts.txt", "".join(f"{x}\n" for x in language.sentences(texts, seed=TEXTS_SEED)).encode())


def make(name: str, directory: Path, recipe: PretrainingProtocol, *, corpus_size: int = CORPUS_SIZE) -> None:
    """Pretrain one model by the recipe with the objective `name` and save its encoder in float16."""
    protocol = dataclasses.replace(recipe, objective=name)
    language = Language(seed=LANGUAGE_SEED)
    texts = tuple(dict.fromkeys(language.sentences(corpus_size, seed=CORPUS_SEED)))
    tokenizer = word_tokenizer(language, max_length=protocol.max_length)
    run = prepare(texts, tokenizer, protocol, seed=0, device=torch.device("cpu"), autocast=None)
    assert run.trainer is not None
    train(run.trainer, evaluate_every=250)
    encoder: Any = run.encoder
    encoder.half().save_pretrained(directory / name)
    tokenizer.save_pretrained(directory / name)


def _make_in_process(name: str, directory: Path) -> None:
    logging.basicConfig(level=logging.INFO, format=f"{name}: %(message)s")
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    make(name, directory, RECIPE)


def main() -> None:
    """Pretrain both models side by side."""
    parser = argparse.ArgumentParser(prog="python -m layerprobe.pretraining.embedded", description=main.__doc__)
    parser.add_argument("directory", type=Path, help="where the checkpoints mlm and rtd are written")
    directory = parser.parse_args().directory
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_make_in_process, ("mlm", "rtd"), (directory, directory)))


if __name__ == "__main__":
    main()
