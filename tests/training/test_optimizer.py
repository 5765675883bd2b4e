"""One optimiser set-up: which weights decay, and the learning rate at every step."""

from functools import partial

import pytest
import torch
from torch import nn

from layerprobe.finetuning.values import Protocol
from layerprobe.training.loop import adamw, rate


@pytest.mark.parametrize("fused", [False, True])
def test_only_matrices_decay(fused: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 2))
    optimizer = adamw(list(model.parameters()), Protocol(learning_rate=0.1, weight_decay=0.5), fused=fused)
    decayed, others = optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    assert [p.shape for p in decayed["params"]] == [(4, 3), (5, 2)]
    assert [p.shape for p in others["params"]] == [(4,), (4,), (4,)]
    assert (optimizer.defaults["fused"] or False, decayed["lr"]) == (fused, 0.1)


@pytest.mark.parametrize(("total", "warmup"), [(1, 0.0), (1, 1.0), (7, 0.1), (12, 0.1), (10, 1.0), (999, 0.06)])
def test_both_loops_have_the_same_rate_at_every_step(total: int, warmup: float) -> None:
    """LambdaLR, which fine-tuning steps, and the formula, which the loop on texts sets: the same floats."""
    optimizer = adamw([nn.Parameter(torch.zeros(2, 2))], Protocol(learning_rate=3e-4, weight_decay=0.0), fused=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate, total_steps=total, warmup=warmup))
    rising = round(warmup * total)
    for step in range(total + 1):
        share = step / rising if step < rising else (total - step) / max(1, total - rising)
        assert optimizer.param_groups[0]["lr"] == 3e-4 * share == 3e-4 * rate(step, total_steps=total, warmup=warmup)
        optimizer.step()
        schedule.step()
    assert rate(total + 1, total_steps=total, warmup=warmup) == 0.0
