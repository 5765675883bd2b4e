"""A layer and targets -> outputs for each item across folds, and their scores. Knows arrays and kinds of targets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.comparison.arrays import NUMBERS, Layer
from layerprobe.errors import DataError
from layerprobe.kinds.retrieval.metrics import closest_documents
from layerprobe.metrics.correlation import cosine_scores, spearman
from layerprobe.metrics.influence import decision_influences
from layerprobe.metrics.scores import decision_scores
from layerprobe.probing.ridge import Array, refitted, ridge_outputs
from layerprobe.probing.scaling import Scale, standard
from layerprobe.probing.values import ProbeSettings, TargetKind
from layerprobe.process import without_warnings
from layerprobe.scoring.probes import LOGIT_VARIANCE, STEPS
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
from layerprobe.stats.links import Links, joined
from layerprobe.tasks.evaluation import evaluate_outputs, item_influences
from layerprobe.tasks.kind import KINDS

SCORED_AS = {"scores": "regression", "classes": "classification", "pairs": "sts", "queries": "retrieval"}
"""Which kind of task has the metrics of these targets."""
UNITS = {"scores": "sample", "classes": "sample", "labels": "sample", "pairs": "pair", "queries": "query"}
LABEL_METRICS = ("average precision", "f1")
"""Of several labels: the mean over labels, at a threshold of 1/2."""
RARE_PRIMARY = "macro f1"
"""Of classes of which one is rare."""
VARIANCES = (0.1, 1.0, LOGIT_VARIANCE, 100.0)
"""Of a logit under the prior of logistic regression, the strongest penalty first."""
FIT_NUMBERS = 2**26
"""Of the training rows of a logistic regression, 256 MB at most: of more rows a random part is taken."""

Folds = NDArray[np.intp]
"""(n,) the fold or the group of each item."""
LayerOf = Callable[[int, int], Layer]
"""A folding and the fold that is left out -> the features."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """The outputs for every item, by folding."""

    outputs: NDArray[Any]
    """(foldings, n, ...)."""
    swayed: Array
    """(foldings, n) influences x 100 of the items as ones to train on; 0 where they are not known."""
    penalties: Array
    """(foldings, folds, labels) that were chosen; nothing where nothing is fitted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Targets, their rows, and the folds."""

    kind: TargetKind
    targets: NDArray[Any]
    """(n,) scores or class numbers, (n, labels) of 0 and 1, or (n,) scores of pairs; of queries (n,) mappings."""
    foldings: NDArray[np.intp] = field(default_factory=lambda: np.zeros((0, 0), np.intp))
    """(foldings, n): the fold of each item; none before `folded`."""
    links: Links | None = None
    """Which items are not independent."""
    rows: NDArray[np.intp] | None = None
    """Of pairs (n, 2), of queries (n,): rows of the embeddings."""
    documents: NDArray[np.intp] | None = None
    """Rows that queries look for."""
    own: NDArray[np.int64] | None = None
    """By query, the place in `documents` of the query itself, which is not ranked for it, or -1; None where none is."""
    scored_as: str = ""
    """The kind of task that has the metrics, where it is another than that of the targets."""
    remarks: tuple[str, ...] = ()
    """What was taken for granted of the targets."""

    @property
    def n_items(self) -> int:
        """Of which there is an output each."""
        return int(self.foldings.shape[1])

    @property
    def n_folds(self) -> int:
        """Of each folding."""
        return int(self.foldings.max()) + 1

    def folded(self, groups: Folds | None, settings: ProbeSettings) -> Problem:
        """Return the problem with folds of the items, which divide no group, and with the links that groups make."""
        foldings, links, targets = self._foldings(groups, settings), self._links(groups), self.targets
        if self.kind in ("scores", "pairs"):
            targets = Scale.of(lambda: [targets[:, None]])(targets[:, None])[:, 0]
        return replace(self, foldings=foldings, links=links, targets=targets)

    def _links(self, groups: Folds | None) -> Links | None:
        """Return which items are not independent: those of one group, and pairs that share a row; None where none."""
        if self.kind == "pairs" and self.rows is not None:
            first, second = self.rows.T if groups is None else groups[self.rows].T
            alone = len(np.unique(self.rows)) == self.rows.size and groups is None
            return None if alone else Links(sides=(first, second))
        if groups is None:
            return None
        return Links(sides=(groups if self.rows is None else groups[self.rows],))

    def _foldings(self, groups: Folds | None, settings: ProbeSettings) -> NDArray[np.intp]:
        from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

        n, units = len(self.targets), self._units(groups, settings.folds)
        n_units = n if units is None else len(np.unique(units))
        if n_units < settings.folds:
            what, finer = ("items", "") if groups is None else ("groups", ", or finer groups")
            message = f"expected at least as many {what} as folds, got {n_units} for {settings.folds}"
            raise DataError(f"{message}: use fewer folds{finer}")
        classes = self.targets if self.kind == "classes" else None
        splitters: dict[tuple[bool, bool], Any] = {
            (False, False): KFold,
            (True, False): StratifiedKFold,
            (False, True): GroupKFold,
            (True, True): StratifiedGroupKFold,
        }
        splitter = splitters[classes is not None, units is not None]
        result = np.empty((settings.foldings, n), dtype=np.intp)
        for folding, folds in enumerate(result):
            seed = settings.seed + folding
            with without_warnings():  # of a class with fewer samples than folds
                try:
                    made = splitter(settings.folds, shuffle=True, random_state=seed).split(folds, classes, units)
                    for fold, (_, inside) in enumerate(made):
                        folds[inside] = fold
                except ValueError as error:
                    raise DataError(
                        f"expected samples of a class for each of {settings.folds} folds: {error}"
                    ) from error
        return result

    def _units(self, groups: Folds | None, folds: int) -> Folds | None:
        """Return (items,) group ids for the folds; None where every item is its own group."""
        if self.kind != "pairs" or self.rows is None:
            return groups if groups is None or self.rows is None else groups[self.rows]
        units = joined(*(self.rows if groups is None else groups[self.rows]).T)
        # where pairs are all connected, or in few sets: what is chosen across folds is a few numbers
        sizes = np.bincount(units)
        return None if groups is None and (sizes.max() > len(units) / 2 or len(sizes) < folds) else units

    @property
    def has_rare_class(self) -> bool:
        """Whether macro F1 comes before accuracy, which would be first, as that says little of a rare class."""
        usual = KINDS[self.scored_as or SCORED_AS[self.kind]].metrics[0] if self.kind == "classes" else RARE_PRIMARY
        return usual != RARE_PRIMARY and has_rare_class(np.bincount(self.targets).tolist())

    @property
    def floors(self) -> dict[str, Floor]:
        """The scores of a trivial answer, by metric."""
        if self.kind == "classes":
            return class_floors(self.targets)
        if self.kind == "labels":
            by_label = [decision_floors(label) for label in self.targets.T]
            means = {metric: float(np.mean([one[metric].value for one in by_label])) for metric in LABEL_METRICS}
            return {metric: Floor(value=mean, by=by_label[0][metric].by) for metric, mean in means.items()}
        if self.kind == "queries":
            assert self.documents is not None
            itself = np.zeros(self.n_items) if self.own is None else self.own >= 0
            ranked = (len(self.documents) - itself).astype(int).tolist()
            return ranking_floors([list(gains.values()) for gains in self.targets], ranked)
        of_order = zero_floors("spearman", "pearson", by=RANDOM_ORDER)
        return of_order if self.kind == "pairs" else {**of_order, **zero_floors("r2", by=NAMING_THE_MEAN)}

    def scores(self, outputs: NDArray[Any]) -> dict[str, float]:
        """Return the metrics x 100 of outputs for all items, the primary one first."""
        if self.kind != "labels":
            metrics = evaluate_outputs(self.scored_as or SCORED_AS[self.kind], outputs, self.targets).metrics
            return {RARE_PRIMARY: metrics[RARE_PRIMARY], **metrics} if self.has_rare_class else metrics
        by_label = [decision_scores(*columns, 0.5) for columns in zip(outputs.T, self.targets.T, strict=True)]
        return {metric: 100 * float(np.mean([one[metric] for one in by_label])) for metric in LABEL_METRICS}

    def influences(self, outputs: NDArray[Any], metric: str) -> Array:
        """Return (n,) influences of the items on a metric x 100."""
        if self.kind != "labels":
            return item_influences(self.scored_as or SCORED_AS[self.kind], outputs, self.targets, metric=metric)
        psi = [decision_influences(*columns, 0.5)[metric] for columns in zip(outputs.T, self.targets.T, strict=True)]
        influences: Array = 100 * np.mean(psi, axis=0)
        return influences

    def notes(self, layers: Sequence[Layer]) -> tuple[str, ...]:
        """Return remarks on the targets, and notes on rare classes and on fits on a sample of the rows."""
        notes = list(self.remarks)
        if self.has_rare_class:
            smallest = f"the smallest has {np.bincount(self.targets).min():,} of {self.n_items:,} samples"
            notes.append(f"macro F1 comes before accuracy, which says little of rare classes: {smallest}")
        n, width = round(self.n_items * (1 - 1 / self.n_folds)), max(layer.shape[1] for layer in layers)
        if self.kind in ("classes", "labels") and n * width > FIT_NUMBERS:
            most = f"at most {FIT_NUMBERS // width:,} rows at random, of {n:,} in the other folds"
            notes.append(f"logistic regression is fitted on {most}")
        return tuple(notes)

    def score(self, outputs: NDArray[Any], metric: str) -> float:
        """Return one metric x 100 of outputs for all items."""
        return 100 * spearman(outputs, self.targets) if metric == "spearman" else self.scores(outputs)[metric]

    def outputs(self, layer: Layer) -> Fitted:
        """Return the outputs of one layer, see `scaled`, for every folding."""
        return self._fitted(layer, self.foldings, range(self.n_folds))

    def combined(self, layer_of: LayerOf) -> Fitted:
        """Return the outputs of features that differ by held-out fold."""
        outputs, swayed = [], np.zeros((len(self.foldings), self.n_items))
        for folding, folds in enumerate(self.foldings):
            result: NDArray[Any] = np.empty(0)
            for fold in range(self.n_folds):
                fitted, here = self._fitted(layer_of(folding, fold), folds[None], [fold]), folds == fold
                swayed[folding] += fitted.swayed[0]
                result = result if result.size else fitted.outputs[0].copy()
                result[here] = fitted.outputs[0][here]
            outputs.append(result)
        return Fitted(outputs=np.stack(outputs), swayed=swayed, penalties=np.zeros(0))

    def _fitted(self, layer: Layer, foldings: NDArray[np.intp], predicted: Collection[int]) -> Fitted:
        nothing = np.zeros((len(foldings), self.n_items))
        if self.kind == "scores":
            outputs, swayed, penalties = ridge_outputs(layer, self.targets[:, None], foldings, self.n_folds, predicted)
            return Fitted(outputs=outputs[..., 0], swayed=100 * swayed, penalties=penalties[..., None])
        if self.kind in ("classes", "labels"):
            labels = self.targets.reshape(self.n_items, -1).T
            fits = [logistic_outputs(layer, label, foldings, self.n_folds, predicted) for label in labels]
            outputs = fits[0][0] if self.kind == "classes" else np.stack([fit[0][..., -1] for fit in fits], axis=-1)
            return Fitted(
                outputs=outputs,
                swayed=nothing,
                penalties=np.stack([variances for _, variances in fits], axis=-1),
            )
        once = self._cosines(layer) if self.kind == "pairs" else self._ranked(layer)
        return Fitted(
            outputs=np.stack([once] * len(foldings)),
            swayed=nothing,
            penalties=np.zeros((len(foldings), self.n_folds, 1)),
        )

    def refitted(self, rows: Array, kept: NDArray[np.bool_], fitted: Fitted) -> NDArray[Any]:
        """Return the outputs of the first folding, (sets, n, ...), of probes that are fitted on some items at a time.

        Args:
            rows: (n, d).
            kept: (sets, n) items that probes of scores or classes are fitted on.
            fitted: On all items: penalties are those chosen there.
        """
        outputs = np.stack([fitted.outputs[0]] * len(kept))
        for fold, penalties in enumerate(fitted.penalties[0]):
            inside = self.foldings[0] == fold
            changed = np.flatnonzero((~kept & ~inside).any(axis=1))
            if self.kind == "scores":
                of_train, targets = kept[changed][:, ~inside], self.targets[~inside]
                new = refitted(rows[~inside], of_train, targets, rows[inside], penalties[0])
                outputs[np.ix_(changed, inside)] = new
                continue
            for place in changed:
                train = kept[place] & ~inside
                model = _Logistic.of(rows[train], self.targets[train], None, penalties[0])
                outputs[place, inside] = 0
                outputs[np.ix_([place], inside, model.classes)] = model.probabilities(rows[inside])
        return outputs

    def _cosines(self, layer: Layer) -> Array:
        """Return (n,) cosines of pairs of rows; nothing is fitted."""
        assert self.rows is not None
        step = max(1, NUMBERS // layer.shape[1])
        parts = (self.rows[start : start + step] for start in range(0, len(self.rows), step))
        return np.concatenate([cosine_scores(*map(layer.rows, part.T)) for part in parts])

    def _ranked(self, layer: Layer) -> NDArray[Any]:
        """Return (n, k, 2) documents with the highest cosines; one layer is in memory."""
        assert self.rows is not None
        assert self.documents is not None
        values = np.concatenate([block for _, block in layer.blocks()]).astype(np.float32, copy=False)
        itself = np.full(len(self.rows), -1) if self.own is None else self.own
        return closest_documents(values, self.rows, self.documents, itself, name=layer.name)


def logistic_outputs(
    layer: Layer, classes: NDArray[np.intp], foldings: NDArray[np.intp], n_folds: int, predicted: Collection[int]
) -> tuple[Array, Array]:
    """Return probabilities of the classes by logistic regression that was fitted without the fold of the row.

    Each feature is divided by its standard deviation in the training rows. The penalty is chosen by the log loss on one
    more fold that is left out, weaker ones being tried until that grows; then all training rows are fitted. Of more
    than `FIT_NUMBERS` training numbers a random part of the rows is taken.

    Returns:
        (foldings, n, classes) outputs, meaningless in folds that are not predicted; (foldings, folds) variances of a
        logit that were chosen.
    """
    n, n_classes = layer.shape[0], int(classes.max()) + 1
    outputs = np.zeros((len(foldings), n, n_classes))
    variances = np.full((len(foldings), n_folds), np.nan)
    most = max(FIT_NUMBERS // layer.shape[1], 2)
    for folding, folds in enumerate(foldings):
        for fold in predicted:
            train = np.flatnonzero(folds != fold)
            if len(train) > most:
                train = np.sort(np.random.default_rng(folding).choice(train, most, replace=False))
            inner = folds[train] != (fold + 1) % n_folds
            model = _Logistic.of(layer.rows(train), classes[train], inner)
            variances[folding, fold] = model.variance
            here = np.flatnonzero(folds == fold)
            step = max(1, NUMBERS // layer.shape[1])
            for start in range(0, len(here), step):
                part = here[start : start + step]
                outputs[folding, part[:, None], model.classes] = model.probabilities(layer.rows(part))
    return outputs, variances


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Logistic:
    """A fitted logistic regression."""

    mean: NDArray[Any]
    spread: NDArray[Any]
    model: Any
    """None where there was one class."""
    classes: NDArray[np.intp]
    variance: float
    """Of a logit under the prior: the penalty."""

    @classmethod
    def of(
        cls,
        rows: NDArray[Any],
        classes: NDArray[np.intp],
        inner: NDArray[np.bool_] | None,
        chosen: float = VARIANCES[0],
    ) -> _Logistic:
        """Fit rows with a penalty that is chosen by those that are not `inner`, or with the one that is given."""
        from sklearn.linear_model import LogisticRegression  # takes a second to load

        mean, spread = standard(rows)
        rows, present, loss = (rows - mean) / spread, np.unique(classes), np.inf
        if len(present) < 2:
            return cls(mean=mean, spread=spread, model=None, classes=present, variance=chosen)
        # after so many steps the predictions no longer change, even where the gradient is not yet small enough
        with without_warnings():
            model = LogisticRegression(max_iter=STEPS, warm_start=True)
            if inner is not None and len(np.unique(classes[inner])) > 1 and not inner.all():
                for variance in VARIANCES:
                    model.set_params(C=variance / rows.shape[1]).fit(rows[inner], classes[inner])
                    if (tried := _log_loss(model, rows[~inner], classes[~inner])) >= loss:
                        break
                    loss, chosen = tried, variance
            # not from weights of fewer classes
            model = LogisticRegression(C=chosen / rows.shape[1], max_iter=STEPS).fit(rows, classes)
        return cls(mean=mean, spread=spread, model=model, classes=present, variance=chosen)

    def probabilities(self, rows: NDArray[Any]) -> Array:
        """Return (n, classes that it knows)."""
        if self.model is None:
            return np.ones((len(rows), 1))
        probabilities: Array = self.model.predict_proba((rows - self.mean) / self.spread)
        return probabilities


def _log_loss(model: Any, rows: NDArray[Any], classes: NDArray[np.intp]) -> float:
    """Return the mean of -log p of the true class, which is no less than 1e-6 where the model does not know it."""
    probabilities = model.predict_proba(rows)
    place = np.searchsorted(model.classes_, classes).clip(max=len(model.classes_) - 1)
    of_true = np.where(model.classes_[place] == classes, probabilities[np.arange(len(rows)), place], 0)
    return float(-np.log(np.maximum(of_true, 1e-6)).mean())
