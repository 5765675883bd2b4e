"""DropBench: a zoo of models whose drops are known from fine-tuning, and what predictors of a drop score on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.lab.dropbench.tables import strategies_table
from layerprobe.metrics.names import METRICS
from layerprobe.prediction.values import Truth
from layerprobe.readings.registry import cka_with
from layerprobe.readings.values import LayerCurve
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table
from layerprobe.similarity.values import Matrix

TWIN: Literal["mlm"] = "mlm"
"""The objective that all others are compared with."""
SAME_SEED, OTHER_SEED = "mlm twin, same seed", "mlm twin, other seed"
"""References of CKA; the second one is all that an MLM model itself has, and so the noise floor."""

# ---- the zoo: what is known of each model ---------------------------------------------------------------


RunName = tuple[int, int, bool]
"""Layer and seed of a score, and whether it is of a scan, which has a score at every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemErrors:
    """How the scores of runs on the same items go together over other items, in squared points.

    Arms are the layers 0 .. n_blocks of TMFT and, where there are scans, then the same layers of a scan. The covariance
    of two scores is that of their arms, and of a run with itself also what it has of its own.
    """

    n_items: int
    units: float
    """How many items that share no text they are worth, see `item_units`."""
    common: Matrix
    """Lower triangle by arms: what runs of different seeds have in common."""
    own: tuple[float, ...]
    """By layer: what a TMFT run has beyond that; 0 for a single seed, of which it is unknown."""
    own_of_scan: Matrix = ()
    """Lower triangle by layers: the same of one scan, whose layers go together; empty without scans."""
    weighting: Weighting | None = None
    """Of the scans; None without."""

    def __post_init__(self) -> None:
        n_arms = len(self.own) + len(self.own_of_scan)
        triangles = (self.common, n_arms), (self.own_of_scan, len(self.own_of_scan))
        if any([len(row) for row in rows] != list(range(1, n + 1)) for rows, n in triangles):
            raise DataError(f"expected lower triangles of {n_arms} arms and of the scan's layers, got other rows")
        if len(self.own_of_scan) not in (0, len(self.own)) or bool(self.own_of_scan) != (self.weighting is not None):
            raise DataError("expected a scan of as many layers, with its weighting, or none")

    @property
    def of_layers(self) -> NDArray[np.float64]:
        """(layers, layers): covariance of the mean scores of TMFT over seeds without end."""
        n_layers = len(self.own)
        return _symmetric(self.common)[:n_layers, :n_layers]

    def covariance(self, runs: Sequence[RunName]) -> NDArray[np.float64]:
        """Return (runs, runs): how their scores go together over items; DataError for a scan that is not known."""
        if not self.own_of_scan and any(scan for _, _, scan in runs):
            raise DataError("expected scores of TMFT alone, got a scan, of which no errors are known")
        arms = [layer + scan * len(self.own) for layer, _, scan in runs]
        whole = _symmetric(self.common)[np.ix_(arms, arms)]
        of_scan = _symmetric(self.own_of_scan)
        for i, (layer, seed, scan) in enumerate(runs):
            for j, other in enumerate(runs):
                if (seed, scan) == other[1:] and scan:
                    whole[i, j] += of_scan[layer, other[0]]
                elif (layer, seed, scan) == other:
                    whole[i, j] += self.own[layer]
        return whole


def _symmetric(lower: Matrix) -> NDArray[np.float64]:
    """Return the (n, n) matrix of a lower triangle."""
    whole = np.zeros((len(lower), len(lower)))
    for i, row in enumerate(lower):
        whole[i, : i + 1] = whole[: i + 1, i] = row
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanScores:
    """The scores of one scan: a run with a loss at every layer."""

    weighting: Weighting
    seed: int
    epochs: tuple[tuple[float | None, ...], ...]
    """epochs[epoch][layer] on validation, x 100; None where the layer failed."""
    validation: tuple[float | None, ...]
    """By layer, of the epoch that is best in the mean over layers."""
    test: tuple[float | None, ...]
    """The same on the test split."""

    @property
    def whole(self) -> bool:
        """Whether no layer failed."""
        return not any(score is None for row in (*self.epochs, self.validation, self.test) for score in row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayers:
    """Fine-tuning scores of every layer of a model under one budget."""

    protocol: Protocol
    """The budget."""
    steps: int
    """Optimiser steps of one run; a step costs about (layer + 1) blocks."""
    seeds: tuple[int, ...]
    """Of the runs of every layer."""
    validation: Matrix
    """validation[layer][seed]: the task's primary metric x 100, of the epoch that is best by it."""
    test: Matrix
    """test[layer][seed]: the same on the test split."""
    epochs: tuple[Matrix, ...] = ()
    """epochs[layer][seed][epoch]: validation after each epoch; empty where it was not kept, as is what follows."""
    halves: tuple[Matrix, ...] = ()
    """halves[half][layer][seed]: test scores on two random halves of the test items, to choose by one alone."""
    validation_errors: ItemErrors | None = None
    """Of validation scores over items."""
    test_errors: ItemErrors | None = None
    """Of test scores over items."""
    scans: tuple[ScanScores, ...] = ()
    """By weighting and seed."""

    def __post_init__(self) -> None:
        shapes = {tuple(map(len, scores)) for scores in (self.validation, self.test)}
        if not self.seeds or shapes != {(len(self.seeds),) * len(self.validation)} or not self.validation:
            raise DataError(
                f"expected a validation and a test score of every layer for each of {len(self.seeds)} seeds, "
                f"got rows of {sorted({length for shape in shapes for length in shape})}"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise DataError(f"expected distinct seeds, got {', '.join(map(str, self.seeds))}")
        by_layer = [*self.halves, *((self.epochs,) if self.epochs else ()), *(scan.test for scan in self.scans)]
        by_layer += [errors.own for errors in (self.validation_errors, self.test_errors) if errors is not None]
        if {len(values) for values in by_layer} - {self.n_layers} or len(self.halves) not in (0, 2):
            raise DataError(f"expected epochs, two halves, errors and scans of {self.n_layers} layers, got others")

    @property
    def n_layers(self) -> int:
        """Layers, the embedding output among them."""
        return len(self.test)

    def whole_scans(self, weighting: Weighting) -> list[ScanScores]:
        """Return the scans of a weighting of which no layer failed."""
        return [scan for scan in self.scans if scan.weighting == weighting and scan.whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One pretrained model: what a predictor may read of it, and what fine-tuning showed."""

    name: str
    """Unique in the zoo."""
    family: str
    """The pretraining objective; predictors are tuned on other families than they are scored on."""
    size: str
    """Such as tiny or small."""
    seed: int
    """Of the pretraining."""
    corpus: str
    """What it was pretrained on."""
    task: str
    """What it was fine-tuned on."""
    metric: str
    """The task's primary metric, which all scores are of."""
    n_blocks: int
    """Layers count from 0 to this."""
    budgets: dict[str, TunedLayers]
    """The truth by budget of fine-tuning, such as gentle and converged."""
    cka: dict[str, LayerCurve] = field(default_factory=dict)
    """By reference, such as "mlm twin, same seed"; never against the model itself."""
    metrics: dict[str, LayerCurve] = field(default_factory=dict)
    """What needs neither labels nor a reference, by the names of readings."""
    labelled: dict[str, LayerCurve] = field(default_factory=dict)
    """What needs labels and no fine-tuning, on the validation split, by the names of readings."""

    def __post_init__(self) -> None:
        METRICS.check(self.metric)
        if self.n_blocks < 1:
            raise DataError(f"expected at least one block of {self.name}, got {self.n_blocks}")
        if not self.budgets:
            raise DataError(f"expected at least one budget of fine-tuning of {self.name}, got none")
        curves = self.curves
        if len(curves) < len(self.cka) + len(self.metrics) + len(self.labelled):
            raise DataError(f"expected every curve of {self.name} under a name of its own")
        lengths = {what: tuned.n_layers for what, tuned in self.budgets.items()}
        lengths |= {what: len(curve.values) for what, curve in curves.items()}
        for what, length in lengths.items():
            if length != self.n_blocks + 1:
                raise DataError(f"expected {what!r} at layers 0 to {self.n_blocks} of {self.name}, got {length} layers")

    @property
    def curves(self) -> dict[str, LayerCurve]:
        """All numbers by layer that a rule may read, by name; CKA against a reference is `CKA, <reference>`."""
        cka = {cka_with(name): curve for name, curve in self.cka.items()}
        return {**cka, **self.metrics, **self.labelled}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooProvenance:
    """Where a zoo comes from."""

    layerprobe: str
    """Version that made it."""
    created: str
    """ISO 8601, UTC."""
    command: str
    """How to make it again."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of Python and of the libraries."""
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
            raise DataError(f"expected models with names of their own, got {', '.join(twice[:3])}{more} more than once")


# ---- the bench: what predictors score on it --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """A rule's prediction for a model that it was not tuned on, and its outcome; means for a random rule."""

    model: str
    family: str
    missing: bool
    """Whether the model lacks what the rule reads; it then calls no drop and takes the last layer."""
    drop: bool
    """The truth."""
    called: float
    """Probability that the rule says drop; 0 or 1 but for a random rule."""
    recommended: tuple[int, ...]
    """The recommended layer; several are equally likely."""
    regret: float
    """Test score of the best layer less that of the recommended one, x 100; negative where the rule was luckier."""
    onset_error: float | None
    """Layers between the onsets; None where the model does not drop."""
    cost: float
    """Share of the full sweep's training that it takes to confirm the call, 0 .. 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A score over the models and its interval."""

    value: float
    lower: float | None
    """Of the bootstrap interval; None where nothing could be redrawn."""
    upper: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleScores:
    """What one rule scores on the models of the other families than it was tuned on."""

    rule: str
    labelled: bool
    """Whether it reads labels."""
    parameters: int
    """Tuned on other families; 0 for a rule that stands as it is."""
    precision: Score | None
    """Of its calls of a drop; None where it makes none."""
    recall: Score | None
    """Of the models that drop; None where none does."""
    f1: Score | None
    """None where no model drops and none is called."""
    onset_error: Score | None
    """Mean, in layers, over the models that drop; a missed one counts as an onset behind the last layer."""
    mean_regret: Score
    """x 100."""
    median_regret: Score
    """x 100."""
    cost: Score
    """Mean share of the full sweep's training, 0 .. 1."""
    outcomes: tuple[RuleOutcome, ...]
    """By model."""

    @property
    def missing(self) -> int:
        """How many models lack what the rule reads."""
        return sum(outcome.missing for outcome in self.outcomes)


Needs = Literal["nothing", "readings", "labels", "training"]
"""What a strategy looks at; readings: of embeddings, without labels; labels: readings that need them; training:
fine-tuning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOutcome:
    """A strategy's choices for one model, all equally likely, with the regret and cost of each."""

    model: str
    family: str
    layers: tuple[int, ...]
    distances: tuple[float, ...]
    """Mean test score of the best layer less that of the chosen one, x 100, on seeds that it did not look at if
    any are left; at least 0 but for a model of its own."""
    regrets: tuple[float, ...]
    """The same against the layer that other seeds choose on the other half of the test items; can be negative."""
    costs: tuple[float, ...]
    """Of choosing, shares of the paper's sweep: every layer with five seeds."""
    items_error: float | None
    """Of the distance over test items, the mean over choices; None where it is not known."""
    seeds_error: float | None
    """The same over seeds."""
    coverage: float | None
    """Chance that the set it states holds the best layer, by the errors of the test scores; None if it states none."""
    set_size: float | None
    """Layers in it, the mean over choices."""
    sufficient: float | None
    """Chance that the layer which it says is within half a point of the best is so; None if it says so of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyScores:
    """What a strategy scores over the models that have what it needs."""

    strategy: str
    source: str
    """Who proposed it, or what it is a control for."""
    needs: Needs
    fresh: bool
    """Whether it is scored on seeds that it did not look at, with every model."""
    mean: Score
    """Of the distances to the best layer on the test items, in points."""
    median: Score
    ninth: Score
    """Their 90 % quantile."""
    worst: float
    regret: Score
    """Mean regret against a layer that other items and seeds choose, in points."""
    items_error: float | None
    """Standard error of the mean distance over test items, at most: as if all models of a task erred alike."""
    seeds_error: float | None
    """The same over seeds, which are the models' own."""
    cost: Score
    """Mean share of the paper's sweep, 0 .. 1 and more."""
    coverage: Score | None
    """Mean chance that the stated set holds the best layer; None without sets."""
    set_size: float | None
    """Mean layers in it."""
    sufficient: Score | None
    """Mean chance that the smallest layer said to be within half a point of the best is so; None if none is said to."""
    outcomes: tuple[StrategyOutcome, ...]
    """By model."""
    letters: str = ""
    """Two rows of a budget that share one do not differ significantly, all pairs at once, see `lettered`; empty for
    rows that lack models, or that stand in the whole table alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorScores:
    """How well the fall of a curve to the last layer tells models that drop from others."""

    detector: str
    needs: Needs
    models: int
    drops: int
    """Of these models."""
    area: Score | None
    """Under the ROC curve: how often a model that drops has the larger fall, ties by half; None if all or none do."""
    precision: Score | None
    """Where a drop is called above the threshold with the best F1 on the other families; None if none is called."""
    recall: Score | None
    effect: float | None
    """Spearman's correlation of the falls with the true effects over models; None for fewer than three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveScores:
    """How alike a curve is to the test scores by layer of the same model."""

    curve: str
    needs: Needs
    models: int
    mean: Score
    """Of Spearman's correlation over the layers of a model."""
    median: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class JointScores:
    """What the model of a scan, cut at a layer, scores on the test items less TMFT at that layer, in points."""

    weighting: Weighting
    models: int
    at_best: Score
    """At the layer that is best for TMFT."""
    at_last: Score
    overall: Score
    """In the mean over the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetScores:
    """All rules under one budget of fine-tuning, scored on the same models."""

    budget: str
    clusters: str
    """What the bootstrap redraws: families, or models where families are few, those of one encoder together."""
    truths: dict[str, Truth]
    """By model."""
    rules: tuple[RuleScores, ...]
    """The lowest mean regret first; those without labels before those with."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Rules that could not be scored, and why."""
    strategies: tuple[StrategyScores, ...] = ()
    """Ways to choose a layer, the rules among them; the cheapest first."""
    detectors: tuple[DetectorScores, ...] = ()
    """What detects a drop, the best first."""
    curves: tuple[CurveScores, ...] = ()
    """What looks like the test scores, the best first."""
    joint: tuple[JointScores, ...] = ()
    """Models of scans against TMFT."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bench(Shown):
    """What predictors of a drop score on a zoo, evaluated leave-one-family-out."""

    provenance: ZooProvenance
    """Of the zoo."""
    families: tuple[str, ...]
    level: float
    """Confidence level of the intervals."""
    draws: int
    """Of the bootstrap."""
    budgets: tuple[BudgetScores, ...]

    @property
    def table(self) -> Table:
        """A row a budget and strategy: its regret and cost."""
        rows = [(scores.budget, strategy) for scores in self.budgets for strategy in scores.strategies]
        whole = strategies_table([strategy for _, strategy in rows], "All strategies and rules")
        return replace(whole, columns=(Column("budget", tuple(budget for budget, _ in rows)), *whole.columns))

    @property
    def summary(self) -> str:
        """The result in one line."""
        budgets = ", ".join(f"{len(budget.truths)} models under {budget.budget}" for budget in self.budgets)
        return f"{len(self.families)} families: {budgets}"
