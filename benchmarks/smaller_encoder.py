"""How much do fewer blocks lose on several test sets, each by itself and all of one metric together?

    python benchmarks/smaller_encoder.py MODEL --data FOLDER --size 6 --seeds 3 [--more 15000] [--epochs 1]

FOLDER holds `stsb/en-{train,dev,test}.csv`, `sick/SICK_{train,trial,test_annotated}.txt`,
`mrpc/msr-para-{train,val,test}.tsv` and `corpus/{captions,movie_reviews}.en.txt.gz`. `layerprobe shrink` trains the
model of fewer blocks on the whole model's embeddings of the sets' training texts and `--more` further ones, a quarter
of them film reviews, the rest captions; no label is read, and no text of a validation or test split. Points lost are
measured on each test split. Those of the sets that are scored by Spearman's correlation are then averaged: the items of
each set have their own error, and the seeds are the same for all sets.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import describe
from numpy.typing import NDArray

from layerprobe.checks import LEVEL
from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.model import Model
from layerprobe.finetuning.runs import MODEL
from layerprobe.metrics.scores import cosine_scores
from layerprobe.shrinking.points_lost import ScoredOutputs
from layerprobe.shrinking.run import shrink
from layerprobe.shrinking.teacher import embedder, tokenized
from layerprobe.shrinking.values import TRAINING, PointsLost, ShrinkSettings, Shrunk
from layerprobe.stats.crossed import Links, crossed
from layerprobe.tasks.cells import plain
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Task

TOGETHER = ("stsb", "sick")
"""The sets that are scored by Spearman's correlation."""


SETS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "stsb": ("stsb/en-train.csv", "stsb/en-dev.csv", "stsb/en-test.csv", {}),
    "sick": (
        "sick/SICK_train.txt",
        "sick/SICK_trial.txt",
        "sick/SICK_test_annotated.txt",
        {"kind": "sts", "columns": "sentence_A,sentence_B,relatedness_score", "format": "delimiter=tab,quotes=no"},
    ),
    "mrpc": (
        "mrpc/msr-para-train.tsv",
        "mrpc/msr-para-val.tsv",
        "mrpc/msr-para-test.tsv",
        {"kind": "paraphrase", "format": "quotes=no"},
    ),
}
"""Files of the train, validation and test split of each set, and how they are read."""


def tasks_of(data: Path) -> dict[str, Task]:
    """Return the three sets by name."""
    return {
        name: load_task(data / train, validation=data / validation, test=data / test, **how)
        for name, (train, validation, test, how) in SETS.items()
    }


def spread(texts: Sequence[str], most: int) -> list[str]:
    """Return at most so many texts at equal distances."""
    return list(texts[:: max(1, len(texts) // most)][:most]) if most else []


def training_texts(tasks: dict[str, Task], corpus: Path, more: int) -> list[str]:
    """Return the sets' training texts and further ones, without those of a validation or test split."""
    captions, reviews = (
        gzip.decompress((corpus / f"{name}.en.txt.gz").read_bytes()).decode().splitlines()
        for name in ("captions", "movie_reviews")
    )
    texts = [text for task in tasks.values() for text in task.texts("train")]
    texts += spread(captions, more - more // 4) + spread(reviews, more // 4)
    tested = {plain(text) for task in tasks.values() for split in ("validation", "test") for text in task.texts(split)}
    return [text for text in dict.fromkeys(texts) if text.strip() and plain(text) not in tested]


def scored(model: SharedModel, task: Task) -> ScoredOutputs:
    """Return the score of a model's cosines on the test split, and each item's influence on it."""
    threshold = None
    for split in ("validation", "test") if KINDS[task.kind].threshold else ("test",):
        texts, items = task.texts(split), task.split(split)
        row = {text: i for i, text in enumerate(texts)}
        embeddings = embedder(model)(tokenized(model, texts))
        cosines = cosine_scores(*(embeddings[[row[text] for text in side]] for side in items.sides))
        evaluation = evaluate_outputs(task.kind, cosines, items.gold, threshold=threshold)
        threshold = evaluation.threshold
    influences = item_influences(task.kind, cosines, items.gold, metric=task.primary, threshold=threshold)
    return evaluation, influences


def numbered_apart(tasks: Sequence[Task]) -> Links:
    """Return the links between the items of all test sets: none between items of different ones."""
    first, sides = 0, []
    for task in tasks:
        links = links_of(task.test)
        alone = tuple(np.arange(len(task.test)) + len(task.test) * i for i in range(len(task.test.sides)))
        numbers = [side + first for side in (alone if links is None else links.sides)]
        first = 1 + max(int(side.max()) for side in numbers)
        sides.append(numbers)
    return Links(sides=tuple(np.concatenate(side) for side in zip(*sides, strict=True)))


def models_of(whole: Model, small: Shrunk) -> list[SharedModel]:
    """Return the whole model and the smaller one of each seed, which read and pool alike."""
    resolved = resolve(whole)
    read = resolved.with_options(pooling="mean", max_length=resolved.max_length or DEFAULT_MAX_LENGTH)
    folders = [str(Path(folder) / MODEL) for folder in small.tried[small.chosen].folders]
    smaller = [SharedModel(resolve(Model(folder, end_token=False).like(read.settled))) for folder in folders]
    return [SharedModel(read), *smaller]


def lost(outputs: Sequence[Sequence[ScoredOutputs]], tasks: Sequence[Task], within: float) -> PointsLost:
    """Return the mean over test sets of the points lost; its error is over the items of each set and over seeds.

    Args:
        outputs: For each set, the scores of the whole model and those of the smaller one by seed.
        tasks: The sets, scored by one metric.
        within: The loss that is allowed, in points.
    """
    total, metric = sum(len(task.test) for task in tasks), tasks[0].primary
    scores = np.array([[evaluation.metrics[metric] for evaluation, _ in of_set] for of_set in outputs])
    losses = [np.stack([whole - small for _, small in rest]) for (_, whole), *rest in outputs]
    # the mean over all items is then the mean over sets of the means over the items of each
    influences = [of_set * total / (len(tasks) * len(task.test)) for of_set, task in zip(losses, tasks, strict=True)]
    mean = scores.mean(axis=0)
    values = (mean[0] - mean[1:]).tolist()
    links = numbered_apart(tasks)
    return PointsLost(
        metric=metric,
        whole=(float(mean[0]),),
        small=tuple(map(float, mean[1:])),
        error=crossed(values, np.concatenate(influences, axis=1), links=links, level=LEVEL, metric=metric),
        margin=within,
        failure=max(
            failure(of_set[0], by_item.mean(axis=0), task) / len(tasks)
            for of_set, by_item, task in zip(scores, losses, tasks, strict=True)
        ),
    )


def failure(score: float, losses: NDArray[np.float64], task: Task) -> float:
    """Return the points lost if one more item of a test set failed, as `shrink` counts it."""
    squares, links = float(np.square(losses).sum()), links_of(task.test)
    skew = float((losses**3).sum()) / squares if squares else 0.0
    return (2 * abs(score) + max(skew, 0.0)) / (len(losses) if links is None else links.units)


def line(name: str, loss: PointsLost) -> str:
    """Return one row of the table."""
    low, high = loss.interval or (float("nan"), float("nan"))
    small = ", ".join(f"{score:.2f}" for score in loss.small)
    items = "" if loss.error is None else f"{loss.error.n_items:,}"
    return f"| {name} | {items} | {loss.whole[0]:.2f} | {small} | {loss.value:.2f} ({low:.2f} to {high:.2f}) |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--size", default="6", help="number of blocks, or which, such as 1,5,6")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--more", type=int, default=15_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--within", type=float, default=0.5)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--cache", type=Path, help="the store; runs there are not repeated")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    tasks = tasks_of(options.data)
    texts = training_texts(tasks, options.data / "corpus", options.more)
    print(describe(int(os.environ.get("OMP_NUM_THREADS", "0")) or os.cpu_count() or 1), flush=True)
    model = Model(options.model, dtype=options.dtype, cache_dir=options.cache)
    protocol = replace(TRAINING, epochs=options.epochs, learning_rate=options.learning_rate)
    start = time.perf_counter()
    settings = ShrinkSettings(within=options.within)
    small = shrink(
        model, texts, tasks["stsb"], size=options.size, seeds=options.seeds, protocol=protocol, settings=settings
    )
    best = small.tried[small.chosen]
    print(f"blocks {best.blocks}, {best.parameters / 1e6:.1f} M of {small.model.parameters[-1] / 1e6:.1f} M parameters")
    print(f"{small.n_texts:,} texts, {options.epochs} passes, agreement {best.agreement}")
    if best.speed is not None and best.speed_range is not None:
        print(f"{best.speed:.2f}x as fast ({best.speed_range[0]:.2f} to {best.speed_range[1]:.2f})")
    print("| test set | items | whole | smaller, by seed | points lost (95 %) |\n|---|---|---|---|---|", flush=True)
    outputs = dict[str, list[ScoredOutputs]]()
    models = models_of(model, small)
    sets = [*((name,) for name in tasks), TOGETHER]
    rows = dict[str, object]()
    for names in sets:
        for name in names:
            if name not in outputs:
                outputs[name] = [scored(one, tasks[name]) for one in models]
        loss = lost([outputs[name] for name in names], [tasks[name] for name in names], options.within)
        print(f"{line(' and '.join(names), loss)} {loss.verdict} {loss.margin:g} |", flush=True)
        rows[" and ".join(names)] = {"whole": loss.whole, "small": loss.small, "interval": loss.interval}
    print(f"{time.perf_counter() - start:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
