"""A lab study that takes seconds."""

import dataclasses
from typing import Any

from layerprobe.encoders.model import Model
from layerprobe.finetuning.values import Protocol
from layerprobe.lab.pretraining.values import EncoderSize, PretrainingProtocol
from layerprobe.lab.studies.values import LabStudy, LabTask

OPTIONS = Model(device="cpu")
SIZE = EncoderSize(n_blocks=2, hidden_size=8, heads=2, intermediate_size=16)
SMALL = LabStudy(
    name="small",
    objectives=("mlm", "rtd", "random"),
    sizes={"s": SIZE},
    generator_sizes=(0.5,),
    pretraining=PretrainingProtocol(steps=3, batch_size=8, max_length=64, held_out=20),
    tasks=(LabTask(examples=(24, 20, 20)),),
    budgets={"gentle": Protocol(epochs=1), "fast": Protocol(epochs=1, learning_rate=1e-2)},
    finetuning_seeds=(0,),
)

TOML = """
objectives = ["mlm", "rtd", "random"]
generator_sizes = [0.5]
finetuning_seeds = 1
[sizes]
s = { n_blocks = 2, hidden_size = 8, heads = 2, intermediate_size = 16 }
[pretraining]
steps = 3
batch_size = 8
max_length = 64
held_out = 20
[task]
source = "language"
examples = [24, 20, 20]
[budget.gentle]
epochs = 1
[budget.fast]
epochs = 1
learning_rate = 1e-2
"""


def changed(**values: Any) -> LabStudy:
    """Return the study with other fields."""
    return dataclasses.replace(SMALL, **values)
