"""Make a pretrained model's entry in DropBench's zoo; finished parts are loaded, not repeated."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.comparison.compare import compare_all
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.identity import ModelLike, resolve, resolve_all
from layerprobe.errors import TrainingError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.outcomes import outputs_in
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import FineTuningRun, Protocol, Weighting
from layerprobe.lab.dropbench.zoo import ItemErrors, RunName, ScanScores, TunedLayers, ZooEntry
from layerprobe.metrics.names import Split
from layerprobe.readings.frozen import layer_curve
from layerprobe.readings.reading import READINGS, LayerCurve
from layerprobe.readings.source import N_ALTERED, read_curves
from layerprobe.similarity.values import Matrix
from layerprobe.stats.crossed import item_covariance, item_units
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences, links_of
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Items, Task

Array = NDArray[np.float64]
DECIMALS = 4
"""Decimals of scores x 100 and squared points; a zoo is a file to be shared."""
TEXTS = 2000
"""Most texts for comparing models: more would take time without changing CKA."""
DIGITS = 6
"""Significant digits of readings."""


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
    scans: Mapping[Weighting, Sequence[int]] | None = None,
    n_altered: int = N_ALTERED,
) -> ZooEntry:
    """Extract, compare, score and fine-tune a model at every layer, and return the results as a zoo entry.

    Models are compared on the first 2,000 texts of the task's test split, without labels; zero-shot scores and the
    probe use its validation split. Each part is stored, so an interrupted call continues where it stopped.

    References have names that all entries share, such as "mlm twin, same seed"; budgets are protocols of
    fine-tuning, with one run per layer and seed; scans have seeds by weighting. Name, family, size,
    seed and corpus describe the entry. All registered readings are recorded.
    """
    task = checked_task(task)
    checkpoint = resolve(model, items=task.readable)
    n_blocks = count_blocks(checkpoint.config)
    texts = task.test.texts[:TEXTS]
    tested = extract(checkpoint, texts).complete
    bases = [extract(other, texts).complete for other in resolve_all([checkpoint, *references.values()])[1:]]
    compared = compare_all(tested, bases, device=checkpoint.asked.device).comparisons if bases else ()
    curves = {what: layer_curve(comparison.curve) for what, comparison in zip(references, compared, strict=True)}
    names = [name for name, reading in READINGS.usable().items() if reading.needs != "reference"]
    read = read_curves(checkpoint, texts, names, task=task, n_altered=n_altered)
    tuned = {
        budget: tuned_layers(checkpoint, task, protocol, seeds=seeds, scans=scans)
        for budget, protocol in budgets.items()
    }
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
        cka=rounded_curves(curves),
        metrics=rounded_curves({what: curve for what, curve in read.items() if READINGS[what].alone}),
        labelled=rounded_curves({what: curve for what, curve in read.items() if READINGS[what].labelled}),
    )


def rounded_curves(curves: Mapping[str, LayerCurve]) -> dict[str, LayerCurve]:
    """Round curves to `DIGITS` significant digits, and keep only the standard errors of single layers."""

    def rounded(values: Iterable[float]) -> tuple[float, ...]:
        return tuple(float(f"{value:.{DIGITS}g}") for value in values)

    return {
        what: LayerCurve(
            values=rounded(curve.values),
            standard_errors=None if curve.standard_errors is None else rounded(curve.standard_errors),
        )
        for what, curve in curves.items()
    }


def tuned_layers(
    model: ModelLike,
    task: Task,
    protocol: Protocol,
    *,
    seeds: Sequence[int],
    scans: Mapping[Weighting, Sequence[int]] | None = None,
) -> TunedLayers:
    """Fine-tune a model at every layer and scan it; finished runs are loaded. The protocol sets the length of texts."""
    task = checked_task(task)
    checkpoint = resolve(model, items=task.readable).with_options(max_length=None)
    layers = range(count_blocks(checkpoint.config) + 1)
    joint = [
        run
        for weighting, of_weighting in (scans or {}).items()
        for run in finetune(
            checkpoint, task, scan=True, seeds=of_weighting, weighting=weighting, protocol=protocol
        ).runs
    ]
    tuned = finetune(checkpoint, task, layers, seeds=seeds, protocol=protocol)
    if tuned.failures:
        raise TrainingError(tuned.failures[0])
    by_run = {(run.layer, run.seed): run for run in tuned.runs}
    seeds = list(dict.fromkeys(run.seed for run in tuned.runs))
    outputs = {name: outputs_in(run.directory) for name, run in by_run.items()}

    def on(split: Split) -> dict[RunName, ItemOutputs]:
        return {name: (of.of(name[0], split), by_run[name].threshold) for name, of in outputs.items()}

    halves = {name: half_scores(run, task.kind, task.test) for name, run in on("test").items()}
    epochs, primary = _ends_of_epochs(next(iter(by_run.values())).epochs, protocol), task.primary
    return TunedLayers(
        protocol=protocol,
        steps=protocol.epochs * math.ceil(len(task.train) / protocol.batch_size),
        seeds=tuple(seeds),
        validation=_rows([[by_run[layer, seed].validation[primary] for seed in seeds] for layer in layers]),
        test=_rows([[by_run[layer, seed].test[primary] for seed in seeds] for layer in layers]),
        epochs=tuple(
            _rows([[by_run[layer, seed].epochs[epoch].validation[primary] for epoch in epochs] for seed in seeds])
            for layer in layers
        ),
        halves=tuple(_rows([[halves[layer, seed][half] for seed in seeds] for layer in layers]) for half in range(2)),
        validation_errors=item_errors(on("validation"), task.kind, task.validation),
        test_errors=item_errors(on("test"), task.kind, task.test),
        scans=tuple(
            _scan_scores(list(runs), protocol)
            for _, runs in itertools.groupby(joint, key=lambda run: (run.weighting, run.seed))
        ),
    )


def _ends_of_epochs(evaluations: Sequence[object], protocol: Protocol) -> range:
    """Return the indices of a run's evaluations at the end of an epoch."""
    an_epoch = len(evaluations) // protocol.epochs
    return range(an_epoch - 1, len(evaluations), an_epoch)


def _scan_scores(runs: Sequence[FineTuningRun], protocol: Protocol) -> ScanScores:
    primary, by_epoch = runs[0].primary, [{epoch.epoch: epoch.validation for epoch in run.epochs} for run in runs]
    evaluations = range(max(map(len, by_epoch)))
    assert runs[0].weighting is not None

    def scores(metrics: Iterable[Mapping[str, float]]) -> tuple[float | None, ...]:
        return tuple(round(of[primary], DECIMALS) if of else None for of in metrics)

    return ScanScores(
        weighting=runs[0].weighting,
        seed=runs[0].seed,
        epochs=tuple(
            scores(epochs.get(end + 1, {}) for epochs in by_epoch) for end in _ends_of_epochs(evaluations, protocol)
        ),
        validation=scores(run.validation for run in runs),
        test=scores(run.test for run in runs),
    )


def _rows(values: Iterable[Iterable[float]]) -> Matrix:
    return tuple(tuple(round(value, DECIMALS) for value in row) for row in values)


ItemOutputs = tuple[Array, float | None]
"""Outputs of one model for the items of a split, (items,) or (items, classes), and the threshold from which an
example counts as class 1, if the kind has one; chosen on validation."""


def half_scores(run: ItemOutputs, kind: str, examples: Items) -> tuple[float, float]:
    """Return the primary metric x 100 on two random halves of the items, which depend only on their number."""
    order = np.random.default_rng(0).permutation(len(examples))
    (outputs, threshold), targets = run, examples.gold
    first, second = (
        evaluate_outputs(kind, outputs[half], targets[half], threshold=threshold) for half in np.array_split(order, 2)
    )
    return next(iter(first.metrics.values())), next(iter(second.metrics.values()))


def item_errors(runs: Mapping[RunName, ItemOutputs], kind: str, examples: Items) -> ItemErrors:
    """Return the covariance over items of the primary metrics of runs at every layer, with equally many seeds each.

    common = mean covariance of runs of two layers with different seeds; own = a run's variance minus common.
    With one seed per layer, common is the covariance of the only runs. Negative eigenvalues from rounding and few
    seeds are clipped.
    """
    targets, links = examples.gold, links_of(examples)
    influences = [item_influences(kind, outputs, targets, threshold=threshold) for outputs, threshold in runs.values()]
    whole = item_covariance(influences, links)
    layers, seeds = np.array(list(runs)).T
    of_layer = (np.arange(layers.max() + 1)[:, None] == layers).astype(np.float64)
    same = seeds[:, None] == seeds

    def mean_of_pairs(pairs: NDArray[np.bool_]) -> Array:
        """Return the mean covariance of some pairs of runs of two layers, (layers, layers)."""
        return (of_layer @ (whole * pairs) @ of_layer.T) / (of_layer @ pairs @ of_layer.T)

    same_seed = mean_of_pairs(same)
    common = same_seed if same.all() else mean_of_pairs(~same)
    values, vectors = np.linalg.eigh((common + common.T) / 2)
    common = (vectors * np.maximum(values, 0)) @ vectors.T  # the nearest positive semidefinite matrix
    variances = np.maximum(np.diag(same_seed) - np.diag(common), 0.0)
    return ItemErrors(
        n_items=len(examples),
        units=round(float(item_units(len(examples), links)), DECIMALS),
        common=tuple(tuple(np.round(row[: i + 1], DECIMALS).tolist()) for i, row in enumerate(common)),
        own=tuple(np.round(variances, DECIMALS).tolist()),
    )
