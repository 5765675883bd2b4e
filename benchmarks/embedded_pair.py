"""Pretrains two encoders by the recipe of the embedded pair, which ships with layerprobe.

The shipped weights were made by the loop of commit d3c5f83, before `layerprobe pretrain` was there, with the recipe
below. It differed in details: `mlm` had the class of BERT, token type embeddings and the norm of the embeddings were
not tied, the masks of the two models were not the same ones, and copies of sentences were kept. So this makes a pair by
the recipe, not these weights (about half an hour of processor time):

    python benchmarks/embedded_pair.py DIRECTORY
"""

import argparse
import dataclasses
import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from layerprobe.embedded import LANGUAGE_SEED, Language
from layerprobe.lab.pretraining.loop import train
from layerprobe.lab.pretraining.models import word_tokenizer
from layerprobe.lab.pretraining.run import prepare
from layerprobe.lab.pretraining.values import SIZES, PretrainingProtocol

CORPUS_SIZE = 150_000
CORPUS_SEED = 1
RECIPE = PretrainingProtocol(size=SIZES["tiny"], generator_size=0.5, steps=8000, batch_size=64, max_length=64)


def make(name: str, directory: Path, recipe: PretrainingProtocol, *, corpus_size: int = CORPUS_SIZE) -> None:
    """Pretrain one model by the recipe with the objective `name` and save its encoder in float16."""
    protocol = dataclasses.replace(recipe, objective=name)
    language = Language(seed=LANGUAGE_SEED)
    texts = tuple(dict.fromkeys(language.sentences(corpus_size, seed=CORPUS_SEED)))
    tokenizer = word_tokenizer(language, max_length=protocol.max_length)
    encoder: Any
    encoder, trainer, _ = prepare(texts, tokenizer, protocol, seed=0, device=torch.device("cpu"), autocast=None)
    assert trainer is not None
    train(trainer, evaluate_every=250)
    encoder.half().save_pretrained(directory / name)
    tokenizer.save_pretrained(directory / name)


def _make_in_process(name: str, directory: Path) -> None:
    logging.basicConfig(level=logging.INFO, format=f"{name}: %(message)s")
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    make(name, directory, RECIPE)


def main() -> None:
    """Pretrain both models side by side."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path, help="where the checkpoints mlm and rtd are written")
    directory = parser.parse_args().directory
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_make_in_process, ("mlm", "rtd"), (directory, directory)))


if __name__ == "__main__":
    main()
