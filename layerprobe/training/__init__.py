"""One training loop on texts, for what goes on with a model and for what begins one.

Knows token ids, objectives, steps and where an unfinished run is kept; knows neither tasks nor similarity.
"""

from layerprobe.training.corpus import Corpus, epoch_batches, hold_out, pack, tokenize_corpus
from layerprobe.training.folder import as_block, check_target
from layerprobe.training.loop import Schedule, Trainer, steps_per_epoch, train
from layerprobe.training.objective import (
    Answer,
    Flags,
    MaskedLanguageModelling,
    Masking,
    Objective,
    Question,
    Words,
    rates_of,
)
from layerprobe.training.workplace import Saved, Workplace

__all__ = [
    "Answer",
    "Corpus",
    "Flags",
    "MaskedLanguageModelling",
    "Masking",
    "Objective",
    "Question",
    "Saved",
    "Schedule",
    "Trainer",
    "Words",
    "Workplace",
    "as_block",
    "check_target",
    "epoch_batches",
    "hold_out",
    "pack",
    "rates_of",
    "steps_per_epoch",
    "tokenize_corpus",
    "train",
]
