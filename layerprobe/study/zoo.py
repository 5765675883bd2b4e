"""A pretrained model -> its entry in DropBench's zoo; parts that are done are read, not repeated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layerprobe.encoders import Checkpoint, count_blocks
from layerprobe.errors import DataError
from layerprobe.finetuning import outcomes
from layerprobe.progress import Progress, silent
from layerprobe.results import (
    FineTuningRun,
    LayerCurve,
    Protocol,
    Task,
    TunedLayers,
    Views,
    ZooEntry,
)
from layerprobe.study.comparison import compare_all
from layerprobe.study.embeddings import extract
from layerprobe.study.options import Options, found
from layerprobe.study.readings import labelled_readings, layer_curve, readings
from layerprobe.study.tuning import finetune


def zoo_entry(
    model: str | Path | Checkpoint,
    references: Mapping[str, str | Path | Checkpoint],
    task: Task,
    budgets: Mapping[str, Protocol],
    *,
    name: str,
    family: str,
    size: str,
    seed: int,
    corpus: str,
    seeds: Sequence[int] = (0, 1, 2),
    views: Views | None = None,
    random_init: int | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> ZooEntry:
    """Extract, compare, score and fine-tune a model at every layer, and put down what that gave.

    Models are compared on the texts of the task's test split, without its labels; zero-shot scores and the probe are
    of its validation split. Each part is kept in the store, so an interrupted call goes on where it was.

    Args:
        model: Hub id, `id@revision`, a local folder, or what `find_checkpoint` found.
        references: By the names that entries have in common, such as "mlm twin, same seed".
        task: What to fine-tune on.
        budgets: Protocols of fine-tuning, by name.
        name: Of the entry.
        family: The pretraining objective.
        size: Such as tiny.
        seed: Of the pretraining.
        corpus: What it was pretrained on.
        seeds: One fine-tuning run a layer each.
        views: How copies of texts are made for the label-free metrics.
        random_init: Seed of fresh random weights instead of the trained ones.
        options: How to load and embed.
        progress: Told what is being done.

    Raises:
        DataError: If a reference is the model itself.
        LayerProbeError: If any stage cannot be done; see the stages.
    """
    options = options or Options()
    checkpoint = found(model, random_init, options)
    n_blocks = count_blocks(checkpoint.config)
    texts = task.test.texts
    tested = extract(checkpoint, texts, options=options, progress=progress)
    bases = [extract(other, texts, options=options, progress=progress) for other in references.values()]
    itself = [what for what, base in zip(references, bases, strict=True) if base.fingerprint == tested.fingerprint]
    if itself:
        raise DataError(
            f"expected references other than {name} itself, got it as {itself[0]!r}: leave that one out, "
            "or CKA would be 1 at every layer and call no drop without looking"
        )
    curves: dict[str, LayerCurve] = {}
    if bases:
        compared = compare_all(tested, bases, device=options.device, progress=progress).comparisons
        # a zoo holds what rules are tuned on, which is no more than the errors of single layers
        curves = {
            what: replace(layer_curve(each.curve), uncertainty=None)
            for what, each in zip(references, compared, strict=True)
        }
    metrics = readings(checkpoint, texts, views=views, options=options, progress=progress)
    labelled = labelled_readings(checkpoint, task, options=options, progress=progress)
    tuned = {}
    for budget, protocol in budgets.items():
        runs = finetune(
            checkpoint,
            range(n_blocks + 1),
            task,
            seeds=seeds,
            protocol=protocol,
            options=options,
            progress=progress,
        )
        tuned[budget] = tuned_layers(runs, steps=protocol.epochs * math.ceil(len(task.train) / protocol.batch_size))
    return ZooEntry(
        name=name,
        family=family,
        size=size,
        seed=seed,
        corpus=corpus,
        task=task.name,
        metric=task.primary,
        n_blocks=n_blocks,
        budgets=tuned,
        cka=curves,
        metrics=metrics,
        labelled=labelled,
    )


def tuned_layers(runs: Sequence[FineTuningRun], *, steps: int) -> TunedLayers:
    """Put the runs of all layers of a model under one protocol together.

    Args:
        runs: At every layer, with the same seeds.
        steps: Optimiser steps of one.

    Raises:
        DataError: If the layers have different seeds or metrics.
    """
    layers = outcomes(runs)
    return TunedLayers(
        protocol=runs[0].protocol,
        steps=steps,
        seeds=layers[0].seeds,
        validation=tuple(layer.validation[layer.primary] for layer in layers),
        test=tuple(layer.scores for layer in layers),
    )
