"""One optimiser set-up and its rate at every step; saved steps that a disk damages or refuses."""

import errno
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from layerprobe.errors import StoreError
from layerprobe.files import atomic
from layerprobe.files.atomic import new_folder
from layerprobe.finetuning.runs import has_model
from layerprobe.finetuning.values import Protocol
from layerprobe.training import SavedSteps, adamw, rate

TENSORS = {"a": torch.arange(3.0)}


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


def refuse(path: Path) -> str:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_step_that_the_disk_refuses_is_an_error_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = SavedSteps(tmp_path, dict[str, int], root=tmp_path, advice="", name=tmp_path.name)
    steps.save(1, {"step": 1}, TENSORS)
    with monkeypatch.context() as patch:
        for name in ("file_sha256", "known_sha256"):
            patch.setattr(atomic, name, refuse)
        with pytest.raises(StoreError, match=r"cannot read .*step-000000001.*: Input/output error: check the disk"):
            steps.last()
    last = steps.last()
    assert last is not None
    assert last[0] == {"step": 1}
    torch.testing.assert_close(last[1], TENSORS)
    (steps.folders()[0] / "tensors.safetensors").unlink()
    assert steps.last() is None
    assert steps.folders() == []


def test_weights_that_the_disk_refuses_are_an_error_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "runs" / "layer-001-seed-0"
    with new_folder(directory / "model") as folder:
        (folder / "layerprobe.json").write_bytes(b"{}")
    for name in ("file_sha256", "known_sha256"):
        monkeypatch.setattr(atomic, name, refuse)
    with pytest.raises(StoreError, match=r"cannot read .*layerprobe\.json: Input/output error: check the disk"):
        has_model(directory)
