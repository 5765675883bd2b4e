"""One plain pretraining loop. Knows batches, an optimiser and a schedule; knows no objective."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerprobe.errors import TrainingError

logger = logging.getLogger(__name__)

POOL_BATCHES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingConfig:
    """The budget of a pretraining run."""

    steps: int = 8000
    """Optimiser steps."""
    batch_size: int = 64
    """Sentences a step."""
    learning_rate: float = 1e-3
    """Peak of a linear schedule."""
    warmup: float = 0.1
    """Share of the steps with a rising learning rate."""
    weight_decay: float = 0.01
    """AdamW's, on matrices only."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    seed: int = 0
    """Order of the data, masking, sampling and dropout."""


def batches(sentences: Sequence[Sequence[int]], *, batch_size: int, seed: int) -> Iterator[list[Sequence[int]]]:
    """Yield batches of similar length for ever; every sentence comes once an epoch."""
    rng = random.Random(seed)
    order = list(range(len(sentences)))
    while True:
        rng.shuffle(order)
        for start in range(0, len(order), batch_size * POOL_BATCHES):
            pool = sorted(order[start : start + batch_size * POOL_BATCHES], key=lambda i: len(sentences[i]))
            cuts = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
            rng.shuffle(cuts)
            for cut in cuts:
                yield [sentences[i] for i in cut]


def pad(batch: Sequence[Sequence[int]], *, pad_id: int) -> Tensor:
    """Return the batch as one (sentence, token) tensor."""
    width = max(map(len, batch))
    return torch.tensor([[*ids, *[pad_id] * (width - len(ids))] for ids in batch])


def pretrain(
    objective: nn.Module,
    sentences: Sequence[Sequence[int]],
    config: PretrainingConfig,
    *,
    pad_id: int,
    special_ids: Sequence[int],
) -> list[float]:
    """Train `objective` in place; the numbers depend on its weights, the sentences and the config alone.

    Args:
        objective: A module of `objectives`: (ids, attention mask, special, rng) -> loss.
        sentences: Token ids, one sequence a sentence.
        config: The budget.
        pad_id: Padding.
        special_ids: Tokens that are never masked, padding among them.

    Returns:
        The loss of every step.

    Raises:
        TrainingError: If the loss is not finite.
    """
    matrices = [p for p in objective.parameters() if p.ndim > 1]
    vectors = [p for p in objective.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)
    warmup_steps = max(1, round(config.warmup * config.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup_steps, (config.steps - step) / max(1, config.steps - warmup_steps)),
    )
    rng = torch.Generator().manual_seed(config.seed)
    special = torch.tensor(list(special_ids))
    losses: list[float] = []
    objective.train()
    data = batches(sentences, batch_size=config.batch_size, seed=config.seed)
    # dropout draws from the global generator: leave it as it was found
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        for step in range(config.steps):
            ids = pad(next(data), pad_id=pad_id)
            loss = objective(ids, (ids != pad_id).long(), torch.isin(ids, special), rng)
            if not torch.isfinite(loss):
                raise TrainingError(f"the pretraining loss is {loss.item()} at step {step}: lower the learning rate")
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(objective.parameters(), config.max_grad_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if (step + 1) % 250 == 0:
                logger.info("step %d of %d: loss %.3f", step + 1, config.steps, sum(losses[-250:]) / 250)
    objective.eval()
    return losses
