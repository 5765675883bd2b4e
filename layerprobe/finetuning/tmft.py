"""Truncated model fine-tuning on sentence pairs: one layer, one seed, one run.

Knows a truncated encoder, an optimiser and pairs; knows no files.
Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130), section 3.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders import Encoder, TokenizedTexts, TruncatedEncoder, collate, pool, token_batches
from layerprobe.errors import DataError, TrainingError
from layerprobe.progress import Progress, silent
from layerprobe.results import EpochMetrics, FineTuningRun, Protocol, SentencePairs, STSTask
from layerprobe.similarity import cosine_scores, pearson, spearman

EVALUATION_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedPairs:
    """Sentence pairs as token ids."""

    texts: TokenizedTexts
    """The distinct sentences."""
    first: NDArray[np.int64]
    """(pair,): row of the first sentence in `texts`."""
    second: NDArray[np.int64]
    """(pair,): row of the second."""
    scores: NDArray[np.float64]
    """(pair,): gold similarity, 0 .. 1."""


def prepare(encoder: Encoder, pairs: SentencePairs, *, max_length: int) -> PreparedPairs:
    """Tokenise the distinct sentences of `pairs` once, for all epochs."""
    texts = pairs.texts
    row = {text: i for i, text in enumerate(texts)}
    return PreparedPairs(
        texts=encoder.tokenize(texts, max_length=max_length),
        first=np.array([row[text] for text in pairs.first]),
        second=np.array([row[text] for text in pairs.second]),
        scores=np.array(pairs.scores),
    )


def fine_tune(
    encoder: Encoder,
    layer: int,
    task: STSTask,
    *,
    protocol: Protocol | None = None,
    seed: int = 0,
    save_to: Path | None = None,
    progress: Progress = silent,
) -> FineTuningRun:
    """Fine-tune the encoder truncated at `layer` and score its best epoch on the test pairs.

    loss = mean over pairs of (cosine(u, v) - gold)^2

    Args:
        encoder: The pretrained encoder; it is not changed.
        layer: Blocks kept, 0 .. n_blocks.
        task: Sentence pairs; the best epoch is the one with the highest validation Spearman.
        protocol: The paper's by default.
        seed: Order of the pairs and dropout.
        save_to: Folder for the fine-tuned checkpoint of the best epoch.
        progress: Told the steps that are done.

    Returns:
        The run, scores x 100.

    Raises:
        ModelError: If the model has no such layer.
        TrainingError: If the loss is not finite, or an epoch leaves embeddings that cannot be scored.
    """
    protocol = protocol or Protocol()
    if encoder.autocast == torch.float16:
        raise TrainingError("expected float32 or bfloat16 to fine-tune in, got float16, whose small gradients vanish")
    start = time.perf_counter()
    _reset_peak_memory(encoder.device)
    train, validation, test = (
        prepare(encoder, pairs, max_length=protocol.max_length) for pairs in (task.train, task.validation, task.test)
    )
    # dropout draws from the global generator: leave it as it was found
    with torch.random.fork_rng(devices=[encoder.device] if encoder.device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = TruncatedEncoder(encoder, layer)
        rng = np.random.default_rng(seed)
        trainer = Trainer(encoder, model, protocol, steps_per_epoch=math.ceil(len(train.scores) / protocol.batch_size))
        history: list[EpochMetrics] = []
        best: tuple[float, dict[str, Tensor]] = (-math.inf, {})
        for epoch in range(1, protocol.epochs + 1):
            loss = trainer.epoch(train, rng, progress=progress, task=f"TMFT layer {layer} seed {seed}")
            scores = evaluate(encoder, model, validation, protocol)
            history.append(
                EpochMetrics(epoch=epoch, train_loss=loss, validation_spearman=scores[0], validation_pearson=scores[1])
            )
            if scores[0] > best[0]:
                best = scores[0], copy.deepcopy(model.state_dict())
        model.load_state_dict(best[1])
        test_scores = evaluate(encoder, model, test, protocol)
    if save_to is not None:
        model.save(save_to, encoder.tokenizer)
    chosen = max(history, key=lambda metrics: metrics.validation_spearman)
    return FineTuningRun(
        layer=layer,
        seed=seed,
        protocol=protocol,
        parameters=model.parameters_without_pooler,
        best_epoch=chosen.epoch,
        validation_spearman=chosen.validation_spearman,
        validation_pearson=chosen.validation_pearson,
        test_spearman=test_scores[0],
        test_pearson=test_scores[1],
        epochs=tuple(history),
        seconds=time.perf_counter() - start,
        peak_memory=_peak_memory(encoder.device),
    )


class Trainer:
    """The optimiser, its schedule, and one plain epoch."""

    def __init__(self, encoder: Encoder, model: TruncatedEncoder, protocol: Protocol, *, steps_per_epoch: int) -> None:
        self.encoder, self.model, self.protocol = encoder, model, protocol
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = steps_per_epoch * protocol.epochs
        self.step = 0
        trained = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": protocol.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=protocol.learning_rate)
        warmup = round(protocol.warmup * self.total_steps)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: (
                step / warmup if step < warmup else (self.total_steps - step) / max(1, self.total_steps - warmup)
            ),
        )

    def epoch(self, pairs: PreparedPairs, rng: np.random.Generator, *, progress: Progress, task: str) -> float:
        """Train once on every pair in a random order; return the mean loss."""
        self.model.train()
        order = rng.permutation(len(pairs.scores))
        total = torch.zeros((), dtype=torch.float64, device=self.encoder.device)
        for start in range(0, len(order), self.protocol.batch_size):
            rows = order[start : start + self.protocol.batch_size]
            total += self.update(pairs, rows).double() * len(rows)
            progress(task, self.step, self.total_steps)
        loss = (total / len(order)).item()
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss at layer {self.model.layer} became {loss}: expected a finite one; "
                f"lower the learning rate (now {self.protocol.learning_rate:g}) or use float32"
            )
        return loss

    def update(self, pairs: PreparedPairs, rows: NDArray[np.int64]) -> Tensor:
        """Take one step on the pairs `rows`; return the loss. Both sentences go through one forward pass."""
        device = self.encoder.device
        both = [*pairs.first[rows].tolist(), *pairs.second[rows].tolist()]
        embeddings = embed(self.encoder, self.model, pairs.texts, both, self.protocol)
        cosine = F.cosine_similarity(embeddings[: len(rows)], embeddings[len(rows) :])
        gold = torch.from_numpy(pairs.scores[rows]).to(device, torch.float32)
        loss = F.mse_loss(cosine, gold)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.protocol.max_grad_norm)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return loss.detach()


def embed(
    encoder: Encoder,
    model: TruncatedEncoder,
    texts: TokenizedTexts,
    rows: Sequence[int],
    protocol: Protocol,
) -> Tensor:
    """Return the pooled embeddings of the texts `rows`, (text, feature)."""
    batch = collate(texts, rows, encoder.device)
    with encoder.precision():
        states = model(batch)
    return pool(states, batch["attention_mask"], protocol.pooling)


@torch.inference_mode()
def evaluate(
    encoder: Encoder, model: TruncatedEncoder, pairs: PreparedPairs, protocol: Protocol
) -> tuple[float, float]:
    """Return Spearman and Pearson between the cosine and the gold scores, x 100."""
    model.eval()
    lengths = pairs.texts.lengths
    embeddings = np.empty((len(lengths), encoder.description.hidden_size), dtype=np.float32)
    for rows in token_batches(lengths, budget=EVALUATION_BATCH_TOKENS, same_length=not encoder.padding_invariant):
        embeddings[rows] = embed(encoder, model, pairs.texts, rows, protocol).float().cpu().numpy()
    try:
        cosine = cosine_scores(embeddings[pairs.first], embeddings[pairs.second])
        return 100 * spearman(cosine, pairs.scores), 100 * pearson(cosine, pairs.scores)
    except DataError as error:
        raise TrainingError(f"the embeddings at layer {model.layer} cannot be scored: {error}") from error


def _reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
