"""Truncated model fine-tuning (TMFT), its runs on disk, and the verdict over them."""

from layerprobe.finetuning.confirmation import confirmation, layers_to_confirm, outcomes
from layerprobe.finetuning.metrics import Evaluation, evaluate_outputs
from layerprobe.finetuning.objectives import Objective
from layerprobe.finetuning.runs import RunFolder, fine_tune_layers, load_or_run, never, told_what_is_cut
from layerprobe.finetuning.tmft import fine_tune

__all__ = [
    "Evaluation",
    "Objective",
    "RunFolder",
    "confirmation",
    "evaluate_outputs",
    "fine_tune",
    "fine_tune_layers",
    "layers_to_confirm",
    "load_or_run",
    "never",
    "outcomes",
    "told_what_is_cut",
]
