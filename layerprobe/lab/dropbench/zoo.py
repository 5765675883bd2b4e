"""DropBench's zoo: models whose drops are known from fine-tuning, what their scores say, and their files.

Whether a model drops, which layers may be best, and the regret of a choice, from TMFT scores of every layer.

The best layer of a sweep is chosen from noisy scores, so its own score is too optimistic. Here the layer is
chosen for each seed by the scores of the other seeds on one half of the test items, and scored by that seed on the
other half, and vice versa: the result of an independent check. Entries without halves choose
by validation. With a single seed the layer is chosen and scored by the same run.

The effect of a pretraining objective is the difference of each model from its MLM twin, paired by seed.
Knows numbers only.
"""

import functools
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.checks import LEVEL
from layerprobe.errors import DataError
from layerprobe.files.atomic import parsed_as, write_whole
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import sealed
from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.interval import Interval
from layerprobe.names import percentage
from layerprobe.prediction.values import Truth
from layerprobe.readings.reading import LayerCurve, cka_with
from layerprobe.results.table import Quantity, Table, columns_of
from layerprobe.similarity.values import Matrix
from layerprobe.stats.crossed import crossed
from layerprobe.stats.values import best_of

Array = NDArray[np.float64]
TWIN: Literal["mlm"] = "mlm"
"""The objective that all others are compared with."""
SAME_SEED, OTHER_SEED = "mlm twin, same seed", "mlm twin, other seed"
"""References of CKA; an MLM model itself has only the second one, which is the noise floor."""
MARGIN = 0.5
"""Points of the primary metric x 100: a smaller gain does not justify another layer."""
DRAWS = 4000
"""Draws of the errors of all layers, for the set of the best ones."""
RunName = tuple[int, int]
"""Layer and seed of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemErrors:
    """Covariances over items of TMFT scores on the same items, in squared points.

    The covariance of two runs is that of their layers; a run's variance adds its own part.
    """

    n_items: int
    units: float
    """Effective number of items that share no text, see `item_units`."""
    common: Matrix
    """Lower triangle by layers: covariance of runs with different seeds; in some zoos scans follow."""
    own: tuple[float, ...]
    """Additional variance of a run, by layer; 0 for a single seed, where it is unknown."""
    own_of_scan: Matrix = ()
    """For scans, in older zoos; unused."""
    weighting: Weighting | None = None
    """Weighting of these scans."""

    @property
    def layer_covariance(self) -> NDArray[np.float64]:
        """Covariance of mean TMFT scores over infinitely many seeds, (layers, layers)."""
        n_layers = len(self.own)
        whole = np.zeros((n_layers, n_layers))
        for i, row in enumerate(self.common[:n_layers]):
            whole[i, : i + 1] = whole[: i + 1, i] = row
        return whole

    def covariance(self, runs: Sequence[RunName]) -> NDArray[np.float64]:
        """Return the covariance of the scores of different runs over items, (runs, runs)."""
        layers = [layer for layer, _ in runs]
        covariance: NDArray[np.float64] = self.layer_covariance[np.ix_(layers, layers)]
        return covariance + np.diag([self.own[layer] for layer in layers])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanScores:
    """The scores of one scan: a run with a loss at every layer."""

    weighting: Weighting
    seed: int
    epochs: tuple[tuple[float | None, ...], ...]
    """epochs[epoch][layer] on validation, x 100; None if the layer failed."""
    validation: tuple[float | None, ...]
    """Validation scores by layer, at the epoch with the best mean over layers."""
    test: tuple[float | None, ...]
    """Test scores by layer, at the same epoch."""

    @property
    def whole(self) -> bool:
        """Whether no layer failed."""
        return not any(score is None for row in (*self.epochs, self.validation, self.test) for score in row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayers:
    """Fine-tuning scores of every layer of a model under one budget."""

    protocol: Protocol
    """Protocol of the budget."""
    steps: int
    """Optimiser steps of one run; a step costs about (layer + 1) blocks."""
    seeds: tuple[int, ...]
    """Seeds of the runs of every layer."""
    validation: Matrix
    """validation[layer][seed]: the task's primary metric x 100, at the epoch where it is best."""
    test: Matrix
    """test[layer][seed]: the same on the test split."""
    epochs: tuple[Matrix, ...] = ()
    """epochs[layer][seed][epoch]: validation after each epoch; empty if not recorded, like the following fields."""
    halves: tuple[Matrix, ...] = ()
    """halves[half][layer][seed]: test scores on two random halves of the test items, for choosing by one of them."""
    validation_errors: ItemErrors | None = None
    """Errors of validation scores over items."""
    test_errors: ItemErrors | None = None
    """Errors of test scores over items."""
    scans: tuple[ScanScores, ...] = ()
    """Scans by weighting and seed."""

    @property
    def n_layers(self) -> int:
        """Number of layers, including the embedding output."""
        return len(self.test)

    def whole_scans(self, weighting: Weighting) -> list[ScanScores]:
        """Return the scans of a weighting without failed layers."""
        return [scan for scan in self.scans if scan.weighting == weighting and scan.whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One pretrained model: readings for predictors, and fine-tuning results."""

    name: str
    """Unique in the zoo."""
    family: str
    """The pretraining objective; predictors are tuned on other families than they are scored on."""
    size: str
    """Name of the size, such as tiny or small."""
    seed: int
    """Seed of the pretraining."""
    corpus: str
    """Corpus of the pretraining."""
    task: str
    """Task of the fine-tuning."""
    metric: str
    """The task's primary metric, for all scores."""
    n_blocks: int
    """Layers count from 0 to this."""
    budgets: dict[str, TunedLayers]
    """Fine-tuning scores by budget, such as gentle and converged."""
    cka: dict[str, LayerCurve] = field(default_factory=dict)
    """CKA by reference, such as "mlm twin, same seed"; never with the model itself."""
    metrics: dict[str, LayerCurve] = field(default_factory=dict)
    """Readings without labels or a reference, by name."""
    labelled: dict[str, LayerCurve] = field(default_factory=dict)
    """Readings with labels but without fine-tuning, on the validation split, by name."""

    @property
    def curves(self) -> dict[str, LayerCurve]:
        """All numbers by layer for rules, by name; CKA with a reference is `CKA, <reference>`."""
        cka = {cka_with(name): curve for name, curve in self.cka.items()}
        return {**cka, **self.metrics, **self.labelled}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooProvenance:
    """Provenance of a zoo."""

    layerprobe: str
    """Version of layerprobe that made it."""
    created: str
    """ISO 8601, UTC."""
    command: str
    """Command that made it."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the libraries."""
    notes: tuple[str, ...] = ()
    """Sizes, corpora and tasks in plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zoo:
    """Models whose drops are known."""

    provenance: ZooProvenance
    entries: tuple[ZooEntry, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if not names:
            raise DataError("expected at least one model in a zoo, got none")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            more = f" and {len(twice) - 3} others" if len(twice) > 3 else ""
            raise DataError(f"expected models with unique names, got {', '.join(twice[:3])}{more} more than once")


def truth(tuned: TunedLayers) -> Truth:
    """Return whether the last layer scores significantly lower than an earlier one, and from which layer on.

    There is a drop if an earlier layer is best over all seeds and the effect, the regret of the last layer, exceeds

        t = max(0.5, q e),   e^2 = 2 s^2 / seeds + variance over items of the difference of best and last,

    with s^2 the residual variance of the test scores after removing means of layers and seeds, which pools the noise
    of all layers, and q Student's 95 % quantile with the degrees of freedom of both parts, see `crossed`.

    The onset is the first of the final run of layers with mean test scores more than t below that of the best
    layer; with a drop the last layer always counts.
    """
    means, last = np.array(tuned.test).mean(axis=1), tuned.n_layers - 1
    # entries without halves choose by validation, as in `regrets`
    best = best_of(np.mean(tuned.test if tuned.halves else tuned.validation, axis=1).tolist())
    error, threshold = _noise(tuned, best, last)
    effect = float(regrets(tuned)[last])
    onset = None
    if best < last and effect > threshold:
        onset = last
        while onset - 1 > best and means[best] - means[onset - 1] > threshold:
            onset -= 1
    return Truth(
        drop=onset is not None,
        effect=effect,
        threshold=threshold,
        standard_error=error,
        best_layer=best,
        onset=onset,
        best_layers=best_layers(tuned),
    )


def best_layers(tuned: TunedLayers, *, level: float = LEVEL) -> tuple[int, ...]:
    """Return the layers that may be the best on the test split: the set contains the best one at the level.

    A layer l is excluded if its distance from the highest, max_k m_k - m_l, is larger than the errors alone would
    make it in a share `level` of all studies with equally good layers.

    Source: Hsu 1984 (Annals of Statistics 12, 1136-1144), multiple comparisons with the best, by simulation.
    """
    means, drawn = np.array(tuned.test).mean(axis=1), _errors_of_means(tuned)
    ahead = means.max() - means
    allowed = np.quantile(drawn.max(axis=1, keepdims=True) - drawn, level, axis=0)
    return tuple(np.flatnonzero(ahead <= allowed).tolist())


def chances_of_best(tuned: TunedLayers) -> Array:
    """Return how often each layer is the best when the mean test scores are redrawn within their errors, (layers,)."""
    return np.bincount(_redrawn_means(tuned).argmax(axis=1), minlength=tuned.n_layers) / DRAWS


def chances_within(tuned: TunedLayers, tolerance: float = MARGIN) -> Array:
    """Return how often each layer is within the tolerance of the best when mean test scores are redrawn, (layers,)."""
    drawn = _redrawn_means(tuned)
    return (drawn >= drawn.max(axis=1, keepdims=True) - tolerance).mean(axis=0)


def _redrawn_means(tuned: TunedLayers) -> Array:
    return np.array(tuned.test).mean(axis=1) + _errors_of_means(tuned)


def regrets(tuned: TunedLayers, seeds: Sequence[int] | None = None) -> Array:
    """Return the points that each layer scores below the best one chosen by other items and seeds.

    Args:
        tuned: The scores.
        seeds: Positions of the seeds to use; all by default.

    Returns:
        (layers,) mean over seeds, and over both halves, of the score of the layer chosen by the other seeds'
        scores on the other half, minus that of each layer; can be negative.
    """
    first, second = tuned.halves or (tuned.validation, tuned.test)
    chosen_by = [(first, second), (second, first)] if tuned.halves else [(first, second)]
    below = [_below_chosen(np.array(choosing), np.array(scoring), seeds) for choosing, scoring in chosen_by]
    return np.mean(below, axis=0)


def distances(tuned: TunedLayers, seeds: Sequence[int] | None = None) -> Array:
    """Return the points of each layer's mean test score below the highest one, (layers,); at least 0.

    The highest of noisy scores is too optimistic, so this exceeds `regrets`.
    """
    test = np.array(tuned.test)
    means = test.mean(axis=1) if seeds is None else test[:, list(seeds)].mean(axis=1)
    return means.max() - means


def item_variance(tuned: TunedLayers, first: int, second: int) -> float | None:
    """Return the variance over test items of the difference of two layers, without noise of seeds; None if unknown."""
    if tuned.test_errors is None:
        return None
    common = tuned.test_errors.layer_covariance
    return max(float(common[first, first] + common[second, second] - 2 * common[first, second]), 0.0)


def seed_variance(tuned: TunedLayers) -> float | None:
    """Return s^2, the residual variance of test scores without means of layers and seeds; None for one seed."""
    test = np.array(tuned.test)
    freedom = _seed_freedom(tuned)
    if freedom == 0:
        return None
    rest = test - test.mean(axis=1, keepdims=True) - test.mean(axis=0, keepdims=True) + test.mean()
    return float((rest**2).sum()) / freedom


def cost_share(layers: Collection[int], n_blocks: int) -> float:
    """Return the cost of fine-tuning some layers as a share of fine-tuning all, with the same seeds.

    A step at layer l costs l + 1 blocks: a block costs about as much as the rest of a step.

    Examples:
        >>> round(cost_share({6, 8}, 8), 3)
        0.356
    """
    return sum(layer + 1 for layer in set(layers)) / sum(range(1, n_blocks + 2))


def _below_chosen(choosing: Array, scoring: Array, seeds: Sequence[int] | None) -> Array:
    """Return the points of each layer below the one chosen by the other seeds, mean over seeds, (layers,)."""
    if seeds is not None:
        choosing, scoring = choosing[:, list(seeds)], scoring[:, list(seeds)]
    n_seeds = scoring.shape[1]
    others = [np.delete(choosing, seed, axis=1) if n_seeds > 1 else choosing for seed in range(n_seeds)]
    chosen = np.array([scoring[scores.sum(axis=1).argmax(), seed] for seed, scores in enumerate(others)])
    return (chosen - scoring).mean(axis=1)


def _noise(tuned: TunedLayers, best: int, last: int) -> tuple[float | None, float]:
    """Return the standard error of the difference of two layers' means, and the threshold of a drop."""
    of_one, of_items = seed_variance(tuned), item_variance(tuned, best, last)
    of_seeds = 2 / len(tuned.seeds) * (of_one or 0.0)
    variance = of_seeds + (of_items or 0.0)
    if of_one is None and of_items is None:
        return None, MARGIN
    share = of_seeds / variance if variance > 0 else 1.0
    per_items = 0.0 if tuned.test_errors is None else (1 - share) / (tuned.test_errors.units - 1)
    freedom = 1 / (share / max(_seed_freedom(tuned), 1) + per_items)
    error = math.sqrt(variance)
    return error, max(MARGIN, float(stats.t.ppf(LEVEL, freedom)) * error)


def _seed_freedom(tuned: TunedLayers) -> int:
    return (tuned.n_layers - 1) * (len(tuned.seeds) - 1)


def _errors_of_means(tuned: TunedLayers) -> Array:
    """Return (draws, layers) errors of the mean test scores, over items and seeds as far as known."""
    n, n_seeds = tuned.n_layers, len(tuned.seeds)
    normal, chi2 = _standard_draws(n, _seed_freedom(tuned))
    drawn: Array = normal[0] * math.sqrt((seed_variance(tuned) or 0.0) / n_seeds) / np.sqrt(chi2)[:, None]
    if tuned.test_errors is not None:
        values, vectors = np.linalg.eigh(tuned.test_errors.layer_covariance)
        drawn += normal[1] @ (vectors * np.sqrt(np.maximum(values, 0))).T
    return drawn


@functools.cache
def _standard_draws(n: int, freedom: int) -> tuple[Array, Array]:
    """Return (2, draws, n) standard normals, and (draws,) of chi square over its degrees of freedom."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((2, DRAWS, n))
    return normal, rng.chisquare(freedom, DRAWS) / freedom if freedom else np.ones(DRAWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveEffect:
    """Difference between the drop of an objective and that of masked language modelling with the same seed, paired."""

    family: str
    task: str
    """Task of the fine-tuning."""
    size: str | None
    """None for all sizes together."""
    budget: str
    """Budget of the fine-tuning."""
    models: tuple[str, ...]
    """Names of the models, each with a twin."""
    values: tuple[float, ...]
    """Drops of these models: test score of the best layer minus that of the last one, x 100, see `truth`."""
    twins: tuple[float, ...]
    """Drops of the MLM models of the same size and seed."""
    difference: Interval | None
    """Interval of mean(value - twin), with pairs as replicates; None for one pair."""

    @property
    def mean(self) -> float:
        """Mean of the differences value - twin."""
        return fmean(map(operator.sub, self.values, self.twins))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's interval of that mean."""
        return None if self.difference is None else self.difference.interval


def objective_effects(entries: Sequence[ZooEntry], *, level: float = LEVEL) -> tuple[ObjectiveEffect, ...]:
    """Compare the drop of each model with that of its MLM twin, which started with the same weights and batches.

    The mean difference over seeds has Student's t interval, without correction for the number of effects.
    Entries without a twin are skipped. The effects are by task, family, budget and size in the order of the entries.
    """
    twins = {_place(entry): entry for entry in entries if entry.family == TWIN}
    pairs = [(entry, twins[_place(entry)]) for entry in entries if entry.family != TWIN and _place(entry) in twins]
    tasks = list(dict.fromkeys(entry.task for entry in entries))
    groups = dict.fromkeys((entry.task, entry.family, budget) for entry, _ in pairs for budget in entry.budgets)
    effects = list[ObjectiveEffect]()
    for task, family, budget in sorted(groups, key=lambda group: tasks.index(group[0])):
        of_family = [pair for pair in pairs if (pair[0].task, pair[0].family) == (task, family)]
        tuned = [pair for pair in of_family if all(budget in entry.budgets for entry in pair)]
        for size in (None, *dict.fromkeys(entry.size for entry, _ in tuned)):
            chosen = [pair for pair in tuned if size in (None, pair[0].size)]
            if not chosen:
                continue
            values, of_twins = (tuple(truth(pair[side].budgets[budget]).effect for pair in chosen) for side in range(2))
            effect = ObjectiveEffect(
                family=family,
                task=task,
                size=size,
                budget=budget,
                models=tuple(entry.name for entry, _ in chosen),
                values=values,
                twins=of_twins,
                difference=crossed(list(map(operator.sub, values, of_twins)), None, level=level),
            )
            effects.append(effect)
    return tuple(effects)


def _place(entry: ZooEntry) -> tuple[object, ...]:
    return entry.size, entry.corpus, entry.task, entry.seed, entry.n_blocks


def effects_table(effects: Sequence[ObjectiveEffect], level: float) -> Table:
    """Return one row per effect."""
    column, quantity = columns_of(effects), Quantity("points, best layer less last layer")
    return Table(
        columns=(
            column("objective", lambda effect: effect.family),
            column("task"),
            column("budget"),
            column("size", lambda effect: effect.size or "all"),
            column("value", lambda effect: fmean(effect.values), form="+.2f", quantity=quantity),
            column("seeds", lambda effect: effect.values, form="+.2f", shown=False),
            column("twin", lambda effect: fmean(effect.twins), title="twin's drop", form="+.2f", quantity=quantity),
            column("difference", lambda effect: effect.mean, form="+.2f"),
            column("interval", title=f"{percentage(level)} interval", form="+.2f", interval=True),
            column("pairs", lambda effect: len(effect.values)),
        ),
        title="Differences from the MLM twin: points, best layer less last layer",
        marks=tuple("chosen" if effect.difference and effect.difference.sign else None for effect in effects),
    )


SHIPPED = Path(__file__).parent / "zoos"
"""Zoos that come with layerprobe, each with the lab study that made it."""
KEPT_OUT = SHIPPED / "kept-out"
"""Zoos with models that no rule is tuned on."""
SEARCHED = SHIPPED / "searched"
"""Zoos of models with recorded outputs and scans: searches can be replayed on them."""


def read_zoo(*paths: str | Path, shipped: Path = SHIPPED) -> Zoo:
    """Return the models of zoo files by `write_zoo` as one zoo; by default those of a folder that layerprobe ships."""
    return put_together([_read(Path(path)) for path in paths or sorted(shipped.glob("*.json"))])


def read_kept_out() -> Zoo:
    """Return layerprobe's models that no rule is tuned on."""
    return read_zoo(shipped=KEPT_OUT)


def read_searched(*, unseen: bool = False) -> Zoo:
    """Return layerprobe's models for replaying searches.

    No rule is tuned on their scores. Half of them are encoders of `read_zoo`, though, fine-tuned on other pairs; the
    `unseen` ones are not.
    """
    zoo = read_zoo(shipped=SEARCHED)
    shipped = set(map(pretrained_as, read_zoo().entries)) if unseen else set()
    return replace(zoo, entries=tuple(entry for entry in zoo.entries if pretrained_as(entry) not in shipped))


def pretrained_as(entry: ZooEntry) -> tuple[str, int, int, str]:
    """Return the key that identifies a shipped encoder, whatever it was fine-tuned on."""
    return entry.family, entry.n_blocks, entry.seed, entry.corpus


def put_together(zoos: Sequence[Zoo]) -> Zoo:
    """Merge at least one zoo into one; raise DataError if two models have the same name."""
    if len(zoos) == 1:
        return zoos[0]
    sources = [zoo.provenance for zoo in zoos]
    newest = max(sources, key=lambda source: source.created)
    return Zoo(
        provenance=ZooProvenance(
            layerprobe=", ".join(dict.fromkeys(source.layerprobe for source in sources)),
            created=newest.created,
            command="; ".join(source.command for source in sources),
            versions=newest.versions,
            notes=tuple(note for source in sources for note in source.notes),
        ),
        entries=tuple(entry for zoo in zoos for entry in zoo.entries),
    )


def write_zoo(zoo: Zoo, path: str | Path) -> None:
    """Write a zoo on one line, whole or not at all."""
    write_whole(Path(path), sealed(zoo, indent=None))


def _read(file: Path) -> Zoo:
    try:
        return parsed_as(Zoo, read_document(file))
    except OSError as error:
        raise DataError(f"cannot read {file} as a zoo: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{file} is not a zoo: {error}") from error
