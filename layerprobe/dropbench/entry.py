"""A pretrained model -> its entry in DropBench's zoo; parts that are done are read, not repeated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from layerprobe.comparison.compare import compare_all
from layerprobe.dropbench.values import TunedLayers, ZooEntry
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.confirmation import outcomes
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.progress import Progress, silent
from layerprobe.readings.cka import layer_curve
from layerprobe.readings.read import read_curves
from layerprobe.readings.registry import READINGS
from layerprobe.readings.values import LayerCurve, Views
from layerprobe.tasks.values import Task


def zoo_entry(
    model: ModelLike,
    references: Mapping[str, ModelLike],
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
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> ZooEntry:
    """Extract, compare, score and fine-tune a model at every layer, and put down what that gave.

    Models are compared on the texts of the task's test split, without its labels; zero-shot scores and the probe are
    of its validation split. Each part is kept in the store, so an interrupted call goes on where it was.

    References go by the names that entries have in common, such as "mlm twin, same seed"; budgets are protocols of
    fine-tuning, with a run a layer for each of the seeds. Name, family, size, seed and corpus are those of the entry.

    Raises:
        DataError: If a reference is the model itself.
        LayerProbeError: If any stage cannot be done; see the stages.
    """
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code)
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
    compared = compare_all(tested, bases, device=options.device, progress=progress).comparisons if bases else ()
    curves = {what: layer_curve(each.curve) for what, each in zip(references, compared, strict=True)}
    names = [name for name, reading in READINGS.items() if reading.needs != "reference"]
    read = read_curves(checkpoint, texts, names, task=task, views=views, options=options, progress=progress)
    tuned = {}
    for budget, protocol in budgets.items():
        layers = range(n_blocks + 1)
        runs = finetune(checkpoint, layers, task, seeds=seeds, protocol=protocol, options=options, progress=progress)
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
        cka=_single(curves),
        metrics=_single({what: curve for what, curve in read.items() if READINGS[what].alone}),
        labelled=_single({what: curve for what, curve in read.items() if READINGS[what].labelled}),
    )


def _single(curves: Mapping[str, LayerCurve]) -> dict[str, LayerCurve]:
    """Return curves with no more than the errors of single layers: a zoo holds what rules are tuned on."""
    return {what: replace(curve, uncertainty=None) for what, curve in curves.items()}


def tuned_layers(runs: Sequence[FineTuningRun], *, steps: int) -> TunedLayers:
    """Put the runs of all layers of a model under one protocol, of so many optimiser steps each, together.

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
