"""A prediction -> the layers that decide, fine-tuned, and what that says of it."""

from __future__ import annotations

from collections.abc import Sequence

from layerprobe.checks import LEVEL, check_level
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.finetuning.confirmation import confirmation, layers_to_confirm
from layerprobe.finetuning.tuning import (
    PAPER_SEEDS,
    finetune,
)
from layerprobe.finetuning.values import Confirmation, FineTuningRun, Protocol
from layerprobe.prediction.values import DropPrediction
from layerprobe.progress import Progress, silent
from layerprobe.tasks.values import Task


def confirm(
    model: ModelLike,
    prediction: DropPrediction,
    task: Task,
    *,
    layers: Sequence[int] = (),
    seeds: Sequence[int] = PAPER_SEEDS,
    protocol: Protocol | None = None,
    level: float = LEVEL,
    all_seeds: bool = False,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> Confirmation:
    """Fine-tune at the recommended and the last layer, and say what that shows.

    The verdict uses no other layers. Where no drop is predicted, the best zero-shot layer is held against the last.
    Of more than three seeds, no more are run than settle the verdict; it is looked at after each from the third on,
    and the intervals are so much wider that all looks together err no more often than the level says. Seeds count in
    their order, whatever runs are there already.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        prediction: What `predict` gave for it.
        task: What to learn.
        layers: Further layers to fine-tune, such as the other flagged ones.
        seeds: One run each, at most; with a single one the verdict is undecided.
        protocol: The paper's by default.
        level: Confidence level of the intervals.
        all_seeds: Run all seeds, and look once: the interval of the effect is then the ordinary one.
        options: How to load.
        progress: Told the share of the work that is done.

    Raises:
        DataError: If a layer does not exist.
        TrainingError: If a run fails.
    """
    check_level(level)
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code)
    n_blocks = count_blocks(checkpoint.config)
    wanted = sorted({*layers, *layers_to_confirm(prediction, n_blocks)})
    planned = None if all_seeds else len(set(seeds))

    def settled(runs: Sequence[FineTuningRun]) -> bool:
        if planned is None:
            return False
        return confirmation(prediction, runs, n_blocks, level=level, planned=planned).verdict != "undecided"

    runs = finetune(
        checkpoint, wanted, task, seeds=seeds, protocol=protocol, options=options, enough=settled, progress=progress
    )
    return confirmation(prediction, runs, n_blocks, level=level, planned=planned)
