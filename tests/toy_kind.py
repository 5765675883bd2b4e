"""A kind of task from another package: the number that a text has, by a linear head."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerprobe.metrics.names import METRICS
from layerprobe.tasks.kind import KINDS
from tests.plugins import install

TOY = """
import numpy as np
from layerprobe.finetuning.losses import Loss
from layerprobe.metrics.scores import pearson
from layerprobe.metrics.names import Metric
from layerprobe.scoring.probes import RIDGE
from layerprobe.tasks.kind import Kind, Learning
from torch import nn
from torch.nn import functional as F

FIT = Metric(title="toy fit")


def scored(outputs, targets):
    error = ((outputs - targets) ** 2).sum() / ((targets - targets.mean()) ** 2).sum()
    return {"pearson": pearson(outputs, targets), "fit": 1 - float(error)}


class Grading(Loss):
    def __init__(self, *, width, n_labels):
        super().__init__(width=width, n_labels=n_labels)
        self.head = nn.Linear(width, 1)

    def forward(self, u, v):
        return self.head(u)[:, 0]

    def loss(self, outputs, targets):
        return F.mse_loss(outputs, targets)


GRADING = Kind(
    name="grading",
    pairs=False,
    labelled=False,
    metrics=("pearson", "fit"),
    score=scored,
    learning=lambda: Learning(loss=Grading, probe=RIDGE),
    zero_shot="probe",
    target_columns=("grade",),
    detects=lambda cells: "0.5" in cells,
)
"""


@contextlib.contextmanager
def toy_kind(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """A package with the kind grading and a metric of its own."""
    install(monkeypatch, folder, KINDS, TOY, {"grading": "GRADING"})
    install(monkeypatch, folder, METRICS, "from toy_plugin import FIT", {"fit": "FIT"}, package="toy_metric")
    yield
    monkeypatch.undo()
    KINDS.reload()
    METRICS.reload()
