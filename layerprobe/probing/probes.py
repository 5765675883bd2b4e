"""From a layer and targets to cross-validated outputs of items, and their scores. Knows arrays and kinds of targets."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from layerprobe.comparison.arrays import NUMBERS, Layer
from layerprobe.errors import DataError
from layerprobe.kinds.retrieval import closest_documents
from layerprobe.metrics.scores import cosine_scores, decision_influences, decision_scores, mean_influences, spearman
from layerprobe.names import nearest, quoted
from layerprobe.probing.linear import (
    Array,
    Fit,
    Scale,
    deviations,
    fold_products,
    logistic,
    refitted,
    ridge_outputs,
    solved,
)
from layerprobe.probing.values import ProbeSettings, TargetKind
from layerprobe.process import without_warnings
from layerprobe.stats.crossed import Links
from layerprobe.stats.floors import (
    NAMING_THE_MEAN,
    RANDOM_ORDER,
    Floor,
    class_floors,
    decision_floors,
    has_rare_class,
    ranking_floors,
    zero_floors,
)
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.kind import KINDS

COSINES = ("pairs", "queries")
"""Targets that need no fitting."""
SCORED_AS = {"scores": "regression", "classes": "classification", "pairs": "sts", "queries": "retrieval"}
"""Kind of task with the metrics of these targets."""
UNITS = {"scores": "sample", "classes": "sample", "labels": "sample", "pairs": "pair", "queries": "query"}
LABEL_METRICS = ("average precision", "f1")
"""Metrics of several labels: means over labels, at a threshold of 1/2."""
RARE_PRIMARY = "macro f1"
"""Primary metric of classes if one is rare."""
FIT_NUMBERS = 2**26
"""Most numbers in the training rows of a logistic regression, 256 MB; more rows are sampled."""
SETS = 60
"""Most items, or groups, that are left out one by one; more are left out in this many random sets."""
REFITTED_NUMBERS = 2**19
"""Most numbers in a layer whose probes are refitted: 700 items of 768 features."""

Folds = NDArray[np.intp]
"""Fold or group of each item, (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """Outputs for every item, by folding."""

    outputs: NDArray[Any]
    """Outputs, (foldings, n, ...)."""
    swayed: Array
    """Influences x 100 of the items as training items, (foldings, n); 0 if unknown."""
    penalties: Array
    """Chosen penalties, (foldings, folds, labels); 0 if nothing is fitted."""

    @property
    def usual_penalties(self) -> Array:
        """Median penalties over foldings and folds, (labels,)."""
        return np.quantile(self.penalties, 0.5, axis=(0, 1), method="lower")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Targets, their rows, and the folds."""

    kind: TargetKind
    targets: NDArray[Any]
    """(n,) scores or class numbers, (n, labels) of 0 and 1, or (n,) scores of pairs; for queries (n,) mappings."""
    foldings: NDArray[np.intp] = field(default_factory=lambda: np.zeros((0, 0), np.intp))
    """Fold of each item, (foldings, n); empty before `folded`."""
    links: Links | None = None
    """Links between dependent items."""
    rows: Any = None
    """Rows of the embeddings: (n, 2) for pairs, (n,) for queries."""
    documents: Any = None
    """Rows that queries are compared with."""
    itself: Any = -1
    """Position of each query in `documents`, where it is not ranked, or -1."""
    scored_as: str = ""
    """Kind of task whose metrics apply, if it differs from that of the targets."""
    remarks: tuple[str, ...] = ()
    """Assumptions about the targets."""
    names: NDArray[Any] | None = None
    """Names of class numbers, or of 0 and 1 of labels, (classes,); None for other targets."""
    unit: Scale | None = None
    """Scaling of the targets; None if they are unscaled."""
    primary: str = ""
    """Metric for comparing layers, if not the usual one."""
    pairs: str | None = ""
    """Name in `FEATURES` of the features of two texts; None if unnamed, and no fit is stored."""

    @property
    def n_folds(self) -> int:
        """Number of folds in each folding."""
        return int(self.foldings.max()) + 1

    def folded(self, groups: Folds | None, settings: ProbeSettings, splits: Any = None) -> Problem:
        """Return the problem with folds that divide no group, and with the links between items of a group.

        Folds come from the settings, or from splits, see `split_folds`.
        """
        if splits is not None and self.kind in COSINES:
            raise DataError(f"expected no splits for {self.kind}, which are scored by cosines: omit cv")
        sides: tuple[Folds, ...] = () if groups is None else (groups,)
        targets, unit = self.targets, None
        if self.rows is not None:
            rows = self.rows if groups is None else groups[self.rows]
            alone = groups is None and (self.kind == "queries" or len(np.unique(rows)) == rows.size)
            sides = () if alone else tuple(np.atleast_2d(rows.T))
        links = Links(sides=sides) if sides else None
        units = None if groups is None else sides[0]
        foldings = self._foldings(units, settings) if splits is None else split_folds(splits, targets, units)
        if units is not None:
            parts = max(len(np.unique(units * len(units) + folds)) for folds in foldings)
            if parts > len(np.unique(units)):
                raise DataError("expected splits that divide no group, such as GroupKFold's, got a group in two folds")
        if self.kind in ("scores", "pairs"):
            unit = Scale.of(lambda: [targets[:, None]])
            targets = unit(targets[:, None])[:, 0]
        return replace(self, foldings=foldings, links=links, targets=targets, unit=unit)

    def _foldings(self, units: Folds | None, settings: ProbeSettings) -> NDArray[np.intp]:
        n = len(self.targets)
        n_units = n if units is None else len(np.unique(units))
        if n_units < settings.folds:
            what = "items" if units is None else "groups"
            message = f"expected at least as many {what} as folds, got {n_units} for {settings.folds}"
            raise DataError(f"{message}: use fewer folds")
        classes = self.targets if self.kind == "classes" else None
        result = np.empty((settings.foldings, n), dtype=np.intp)
        for seed, folds in enumerate(result, settings.seed):
            if classes is None and units is None:  # the same as KFold, which takes a second to load
                tests = np.array_split(np.random.RandomState(seed).permutation(n), settings.folds)
            else:
                from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, StratifiedKFold

                grouped = GroupKFold if classes is None else StratifiedGroupKFold
                splitter: Any = (StratifiedKFold if units is None else grouped)(
                    settings.folds, shuffle=True, random_state=seed
                )
                try:
                    with without_warnings():  # about a class with fewer samples than folds
                        tests = [test for _, test in splitter.split(folds, classes, units)]
                except ValueError as error:
                    raise DataError(
                        f"expected samples of a class for each of {settings.folds} folds: {error}"
                    ) from error
            for fold, test in enumerate(tests):
                folds[test] = fold
        return result

    def scored_by(self, scoring: str | None) -> Problem:
        """Return the problem with another primary metric; DataError if it has no such metric."""
        if scoring is None:
            return self
        macro = "f1" if self.kind == "labels" else RARE_PRIMARY
        metric = macro if scoring == "f1_macro" else str(scoring).replace("_", " ")
        if metric not in self.metrics:
            listed = ", ".join(self.metrics)
            raise DataError(
                f"expected scoring as one of {listed}, got {quoted(scoring)}{nearest(metric, self.metrics)}"
            )
        return replace(self, primary=metric)

    @property
    def has_rare_class(self) -> bool:
        """Whether macro F1 replaces accuracy as the first metric, because a class is rare."""
        usual = KINDS[self.scored_as or SCORED_AS[self.kind]].metrics[0] if self.kind == "classes" else RARE_PRIMARY
        return usual != RARE_PRIMARY and has_rare_class(np.bincount(self.targets).tolist())

    @property
    def floors(self) -> dict[str, Floor]:
        """Scores of a trivial answer, by metric."""
        if self.kind == "classes":
            return class_floors(self.targets)
        if self.kind == "labels":
            by_label = [decision_floors(label) for label in self.targets.T]
            means = {metric: float(np.mean([one[metric].value for one in by_label])) for metric in LABEL_METRICS}
            return {metric: Floor(value=mean, by=by_label[0][metric].by) for metric, mean in means.items()}
        if self.kind == "queries":
            ranked = np.broadcast_to(len(self.documents) - (np.asarray(self.itself) >= 0), len(self.targets)).tolist()
            return ranking_floors([list(gains.values()) for gains in self.targets], ranked)
        of_order = zero_floors("spearman", "pearson", by=RANDOM_ORDER)
        return of_order if self.kind == "pairs" else {**of_order, **zero_floors("r2", by=NAMING_THE_MEAN)}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of the kind of targets, the usual primary one first."""
        names = LABEL_METRICS if self.kind == "labels" else KINDS[self.scored_as or SCORED_AS[self.kind]].metrics
        return tuple(dict.fromkeys((RARE_PRIMARY, *names))) if self.has_rare_class else names

    def scores(self, outputs: NDArray[Any]) -> dict[str, float]:
        """Return the metrics x 100 of outputs for all items, the primary one first."""
        if self.kind == "labels":
            by_label = [decision_scores(*columns, 0.5) for columns in zip(outputs.T, self.targets.T, strict=True)]
            metrics = {metric: 100 * float(np.mean([one[metric] for one in by_label])) for metric in LABEL_METRICS}
        else:
            metrics = evaluate_outputs(self.scored_as or SCORED_AS[self.kind], outputs, self.targets).metrics
        primary = self.primary or self.metrics[0]
        return {primary: metrics[primary], **metrics}

    def influences(self, outputs: NDArray[Any], metric: str) -> Array:
        """Return (n,) influences of the items on a metric x 100."""
        if self.kind != "labels":
            return item_influences(self.scored_as or SCORED_AS[self.kind], outputs, self.targets, metric=metric)
        psi = [decision_influences(*columns, 0.5)[metric] for columns in zip(outputs.T, self.targets.T, strict=True)]
        return 100 * np.mean(psi, axis=0)

    def evaluated(self, fitted: Fitted) -> tuple[list[dict[str, float]], Array]:
        """Return the metrics x 100 by folding, see `scores`, and (n,) influences of the items on the primary one."""
        scored = [self.scores(outputs) for outputs in fitted.outputs]
        primary = next(iter(scored[0]))
        psi = np.mean([self.influences(outputs, primary) for outputs in fitted.outputs], axis=0)
        return scored, mean_influences(psi + fitted.swayed.mean(axis=0))

    def notes(self, layers: Sequence[Layer]) -> tuple[str, ...]:
        """Return remarks on the targets, and notes on rare classes and on sampled rows."""
        notes = list(self.remarks)
        if self.has_rare_class and not self.primary:
            smallest = f"the smallest has {np.bincount(self.targets).min():,} of {len(self.targets):,} samples"
            notes.append(f"macro F1 is used instead of accuracy, which says little about rare classes: {smallest}")
        n, width = round(len(self.targets) * (1 - 1 / self.n_folds)), max(layer.shape[1] for layer in layers)
        if self.kind in ("classes", "labels") and n * width > FIT_NUMBERS:
            most = f"a random sample of {FIT_NUMBERS // width:,} of the {n:,} rows in the other folds"
            notes.append(f"logistic regression is fitted on {most}")
        return tuple(notes)

    def score(self, outputs: NDArray[Any], metric: str) -> float:
        """Return one metric x 100 of outputs for all items."""
        return 100 * spearman(outputs, self.targets) if metric == "spearman" else self.scores(outputs)[metric]

    def fit(self, layer: Layer, penalties: Array) -> Fit:
        """Return a probe of a scaled layer, fitted on all rows, for targets in their original unit."""
        n, width = layer.shape
        if self.kind == "scores":
            ((products,),) = fold_products(layer, self.targets[:, None], np.zeros((1, n), np.intp), 1)
            (fit,) = solved(products, width, penalties)
            mean, spread = products[width, :width] / n, deviations(products, width)
            bias, weights = fit[width] + mean @ fit[:width], fit[:width] * spread[:, None]
            if self.unit is not None:
                bias, weights = self.unit.undone(bias, weights)
            return Fit(
                mean=mean,
                scale=np.where(spread == 0, 1, spread),
                weights=weights,
                bias=bias,
                penalties=penalties,
                classes=np.empty(0),
                pairs=self.pairs or "",
            )
        train, names = drawn(np.arange(n), width, seed=0), np.asarray(self.names)
        rows, labels = layer.rows(train), self.targets.reshape(n, -1).T
        fits = [logistic(rows, label[train], penalty) for label, penalty in zip(labels, penalties, strict=True)]
        return replace(
            fits[0],
            weights=np.concatenate([fit.weights for fit in fits], axis=1),
            bias=np.concatenate([fit.bias for fit in fits]),
            penalties=penalties,
            classes=names[fits[0].classes] if self.kind == "classes" else names,
            pairs=self.pairs or "",
        )

    def outputs(
        self, layer: Layer, foldings: NDArray[np.intp] | None = None, predicted: Collection[int] = ()
    ) -> Fitted:
        """Return the outputs of one scaled layer, see `scaled`: by default for every folding and all its folds."""
        foldings, predicted = self.foldings if foldings is None else foldings, predicted or range(self.n_folds)
        swayed = np.zeros(foldings.shape)
        if self.kind == "scores":
            outputs, swayed, penalties = ridge_outputs(layer, self.targets[:, None], foldings, self.n_folds, predicted)
            return Fitted(outputs=outputs[..., 0], swayed=100 * swayed, penalties=penalties[..., None])
        if self.kind in COSINES:
            outputs = np.stack([self._cosines(layer)] * len(foldings))
            return Fitted(outputs=outputs, swayed=swayed, penalties=np.zeros((len(foldings), self.n_folds, 1)))
        labels = self.targets.reshape(len(self.targets), -1).T
        fits = [logistic_outputs(layer, label, foldings, self.n_folds, predicted) for label in labels]
        outputs = fits[0][0] if self.kind == "classes" else np.stack([fit[0][..., -1] for fit in fits], axis=-1)
        return Fitted(outputs=outputs, swayed=swayed, penalties=np.stack([chosen for _, chosen in fits], axis=-1))

    def refitted(self, rows: Array, included: NDArray[np.bool_], fitted: Fitted) -> NDArray[Any]:
        """Return outputs of the first folding, (sets, n, ...), by probes fitted on subsets of the items.

        Probes of scores or classes are fitted on (sets, n) `included` of the (n, d) rows, with the same penalties.
        """
        outputs = np.stack([fitted.outputs[0]] * len(included))
        for fold, penalties in enumerate(fitted.penalties[0]):
            inside = self.foldings[0] == fold
            changed = np.flatnonzero((~included & ~inside).any(axis=1))
            if self.kind == "scores":
                of_train, targets = included[changed][:, ~inside], self.targets[~inside]
                new = refitted(rows[~inside], of_train, targets, rows[inside], penalties[0])
                outputs[np.ix_(changed, inside)] = new
                continue
            for place in changed:
                train = included[place] & ~inside
                fit = logistic(rows[train], self.targets[train], penalties[0])
                outputs[place, inside] = 0
                outputs[np.ix_([place], inside, fit.classes)] = fit.probabilities(rows[inside])
        return outputs

    def _cosines(self, layer: Layer) -> NDArray[Any]:
        """Return (n,) cosines of row pairs, or (n, k, 2) documents with the highest cosines, for a layer in memory."""
        if self.kind == "pairs":
            step = max(1, NUMBERS // layer.shape[1])
            parts = (self.rows[start : start + step] for start in range(0, len(self.rows), step))
            return np.concatenate([cosine_scores(*map(layer.rows, part.T)) for part in parts])
        values = np.concatenate([block for _, block in layer.blocks()]).astype(np.float32, copy=False)
        itself = np.broadcast_to(self.itself, len(self.rows))
        return closest_documents(values, self.rows, self.documents, itself, name=layer.name)


def split_folds(splits: Any, targets: NDArray[Any], groups: NDArray[np.intp] | None) -> NDArray[np.intp]:
    """Return the folds of splits, (foldings, n), from a splitter of scikit-learn or (train, test) indices.

    Raises:
        DataError: If they are invalid, or do not test each row equally often and train on all others.
    """
    from sklearn.model_selection import check_cv

    rows = np.arange(len(targets))
    foldings = [np.full(len(rows), -1)]
    try:
        with without_warnings():  # about groups that a splitter ignores
            made = list(check_cv(splits).split(rows[:, None], targets, groups))
        fits = True
        for train, test in made:
            if foldings[-1].min() >= 0:
                foldings.append(np.full(len(rows), -1))
            fits &= len(test) > 0 and foldings[-1][test].max() < 0
            fits &= np.array_equal(np.sort(rows[train]), np.setdiff1d(rows, rows[test]))
            foldings[-1][test] = foldings[-1].max() + 1
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(
            "expected cv as a number of folds, a splitter of scikit-learn, or (train, test) indices of the "
            f"{len(rows)} rows: {quoted(str(error), 200)}"
        ) from error
    if not fits or foldings[-1].min() < 0 or len({int(folds.max()) for folds in foldings}) > 1:
        raise DataError(
            "expected splits that test each row once, or equally often, and train on all others, as those of KFold, "
            f"GroupKFold and PredefinedSplit, got {len(made)} splits of {len(rows)} rows that do not"
        )
    return np.stack(foldings)


def drawn(rows: NDArray[np.intp], width: int, *, seed: int) -> NDArray[np.intp]:
    """Return the rows for fitting a logistic regression: all, or a random sample if they exceed `FIT_NUMBERS`."""
    most = max(FIT_NUMBERS // width, 2)
    return rows if len(rows) <= most else np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def logistic_outputs(
    layer: Layer, classes: NDArray[np.intp], foldings: NDArray[np.intp], n_folds: int, predicted: Collection[int]
) -> tuple[Array, Array]:
    """Return class probabilities of logistic regression fitted without the fold of the row.

    The penalty is chosen with one more fold held out; then all training rows are fitted, see `drawn`.

    Returns:
        (foldings, n, classes) outputs, meaningless in folds that are not predicted; chosen `C`, (foldings, folds).
    """
    n, width = layer.shape
    outputs = np.zeros((len(foldings), n, int(classes.max()) + 1))
    penalties = np.full((len(foldings), n_folds), np.nan)
    for folding, folds in enumerate(foldings):
        for fold in predicted:
            train = drawn(np.flatnonzero(folds != fold), width, seed=folding)
            inner = folds[train] != (fold + 1) % n_folds
            fit = logistic(layer.rows(train), classes[train], inner=inner)
            penalties[folding, fold] = fit.penalties[0]
            here, step = np.flatnonzero(folds == fold), max(1, NUMBERS // width)
            for start in range(0, len(here), step):
                part = here[start : start + step]
                outputs[folding, part[:, None], fit.classes] = fit.probabilities(layer.rows(part))
    return outputs, penalties


# ---- influences by refitting -----------------------------------------------------------------------------------------


def jackknife(problem: Problem, layer: Layer, fitted: Fitted, metric: str) -> Array | None:
    """Return the influences of the items, (n,) with mean 0, on a metric x 100 of the first folding.

    Leaving out k of G units, items or groups of them, changes the score by about -1 / (G - k) times the sum of their
    influences, which the k units share so that the sum of squares is preserved. Accuracy jumps with every refit,
    which would count as error: for classes, the influence as training items is that on a smoothed score.

    Influence functions are first-order and cover only the outputs: with few items, heavy-tailed features or more
    features than items they are too small, and for logistic regression they ignore the training rows. Penalties stay
    fixed here.

    Source: Tukey 1958 (Annals of Mathematical Statistics 29); leaving out groups: Kott 2001 (Journal of Official
    Statistics 17).

    Returns:
        None if targets are not scores or classes, the metric of classes is not accuracy or macro F1, the layer has
        more than `REFITTED_NUMBERS` numbers, items belong to several groups, or the score of a subset is not defined.
    """
    n, sides = len(problem.targets), () if problem.links is None else problem.links.sides
    smoothed = problem.kind == "classes" and metric in ("accuracy", "macro f1")
    if not (smoothed or problem.kind == "scores") or n * layer.shape[1] > REFITTED_NUMBERS or len(sides) > 1:
        return None
    rows = layer.rows(slice(0, n))
    units = np.arange(n) if not sides else np.unique(sides[0], return_inverse=True)[1]
    sizes = np.bincount(units)
    order = np.arange(len(sizes)) if len(sizes) <= SETS else np.random.default_rng(0).permutation(len(sizes))
    influences, sets = np.zeros(n), np.array_split(order, min(len(sizes), SETS))
    included = np.stack([~np.isin(units, chosen) for chosen in sets])
    try:
        smooth = _bandwidth(fitted.outputs[0], problem.targets) if problem.kind == "classes" else None
        score = problem.score(fitted.outputs[0], metric)
        for chosen, items, outputs in zip(sets, included, problem.refitted(rows, included, fitted), strict=True):
            left = replace(problem, targets=problem.targets[items])
            if smooth is None:
                change = score - left.score(outputs[items], metric)
            else:
                before, after = (
                    _smoothed(values[items], left.targets, metric, smooth) for values in (fitted.outputs[0], outputs)
                )
                change = before - after
            influences[~items] = (len(sizes) - len(chosen)) * change / np.sqrt(len(chosen))
    except DataError:
        return None
    scored = 0.0 if smooth is None else problem.influences(fitted.outputs[0], metric)
    return mean_influences(scored + influences * n / len(sizes) / sizes[units])


def _bandwidth(probabilities: Array, classes: NDArray[np.intp]) -> float:
    """Return the temperature of `_smoothed` from the spread of the margins; it falls with the number of items."""
    logits, rows = np.log(np.maximum(probabilities, 1e-12)), np.arange(len(classes))
    others = logits.copy()
    others[rows, classes] = -np.inf
    spread = float((logits[rows, classes] - others.max(axis=1)).std())
    return max(0.6 * spread / math.pow(len(classes), 0.2), 1e-6)


def _smoothed(probabilities: Array, classes: NDArray[np.intp], metric: str, temperature: float) -> float:
    """Return accuracy or macro F1 x 100 with an item's share in every class instead of its most likely class."""
    shares = softmax(np.log(np.maximum(probabilities, 1e-12)) / temperature, axis=1)
    true = np.eye(shares.shape[1])[classes]
    hits = (shares * true).sum(axis=0)
    by_class = 2 * hits / (shares.sum(axis=0) + true.sum(axis=0))
    return 100 * float(hits.sum() / len(classes) if metric == "accuracy" else by_class.mean())
