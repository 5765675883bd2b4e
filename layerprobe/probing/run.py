"""Frozen embeddings of every layer and targets -> which layer to use. Knows arrays, models and tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import minimize
from scipy.special import softmax

from layerprobe.comparison.arrays import NUMBERS, Layer, Rows, as_layers
from layerprobe.context import EMBEDDED, current, part, report
from layerprobe.errors import DataError, DegenerateLayerError, MisalignedSamplesError
from layerprobe.files.serialisation import digest
from layerprobe.interval import Interval
from layerprobe.metrics.scores import fisher_ends
from layerprobe.names import quoted
from layerprobe.probing.linear import FEATURES, Array, Fit, Scale, pair_features, scaled, solved, standard
from layerprobe.probing.probes import COSINES, UNITS, Fitted, Problem, jackknife
from layerprobe.probing.targets import as_groups, as_targets, embedded_task
from layerprobe.probing.values import (
    FOLDINGS,
    FOLDS,
    METHODS,
    WEIGHTED_MEAN,
    WEIGHTED_SUM,
    ProbedLayer,
    ProbeSettings,
    Probing,
    TargetKind,
)
from layerprobe.scoring.probes import PENALTIES
from layerprobe.stats.best import highest_quantile, state
from layerprobe.stats.crossed import (
    Links,
    crossed,
    errors_known,
    item_covariance,
    item_units,
    least_variance,
    score_ends,
)
from layerprobe.stats.values import TOLERANCE, ItemInfluences

if TYPE_CHECKING:
    from layerprobe.encoders.identity import ModelLike
    from layerprobe.tasks.values import Task

CORRELATIONS = ("spearman", "pearson")
SUMMED = 2**30
"""Most numbers in all layers for comparing their weighted sum by default, because they are read many times."""
ROWS, LEARNED = 2000, 2**26
"""Most rows for learning weights, and most numbers in all their layers."""
ROUNDS = 5
"""Number of alternations between fitting a probe on the weighted sum and weights on its outputs."""
LEAST_WEIGHT = 0.01
"""Smaller weights are 0 in a weighted mean, whose model ends at the last other layer."""
HELD_OUT = 3
"""One of this many rows is held out for learning the weights."""


def student(level: float, freedom: float) -> float:
    """Return the half-width of Student's interval, in standard errors."""
    return float(stats.t.isf((1 - level) / 2, freedom))


@dataclass(kw_only=True)
class Board:
    """Scores of all layers so far, on the same items."""

    links: Links | None
    about: Mapping[str, Any]
    """Fields of the result that are known before scoring."""
    began: float = field(default_factory=time.perf_counter)
    primary: str = ""
    """Metric for comparing layers: the first of their metrics."""
    layers: list[ProbedLayer] = field(default_factory=list)
    summed: ProbedLayer | None = None
    by_folding: list[Array] = field(default_factory=list)
    """Primary metric by folding, of the layers and then of their weighted sum."""
    psi: list[NDArray[np.float32]] = field(default_factory=list)
    """Influences on the primary metric, mean over foldings, (n,) each."""
    again: list[Array] = field(default_factory=list)
    """Influences by refitting single layers, if available, see `jackknife`."""
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, layer: int | None, width: int | None, evaluated: Mapping[str, Any]) -> None:
        """Add a layer, or the weighted sum, as `_probed` or `_summed` evaluated it."""
        scored, psi, again = evaluated["scored"], evaluated["psi"], evaluated.get("again")
        metrics = {metric: float(np.mean([scores[metric] for scores in scored])) for metric in scored[0]}
        self.primary = next(iter(metrics))
        self.by_folding.append(np.array([scores[self.primary] for scores in scored]))
        self.psi.append(psi.astype(np.float32))
        if again is not None:
            self.again.append(again)
        error, note = self.error(self.by_folding[-1], psi if again is None else again), evaluated.get("note", "")
        probed = ProbedLayer(name=name, layer=layer, width=width, metrics=metrics, error=error, note=note)
        if layer is None:
            self.summed, pairs = probed, zip(self.layers, evaluated["weights"], strict=True)
            self.layers = [replace(single, weight=weight) for single, weight in pairs]
        else:
            self.layers.append(probed)

    def error(self, values: Array, psi: Array, *, difference: bool = False) -> Interval | None:
        """Return the interval of a score or a difference, over items and foldings; None if errors are unknown."""
        if not errors_known(len(psi), self.links):
            return None
        values = values[:1] if np.ptp(values) == 0 else values
        return crossed(
            values.tolist(),
            np.broadcast_to(psi, (len(values), len(psi))),
            links=self.links,
            level=current().level,
            unit=self.about["unit"],
            metric=self.primary,
            difference=difference,
        )

    def with_ends(self, probed: ProbedLayer, below: float, least: float) -> ProbedLayer:
        """Return the layer with an interval `below` times as wide below as above, on Fisher's scale if that applies."""
        error = probed.error
        if error is None or error.items_error is None:
            return probed
        half, value = student(error.level, error.freedom), error.value
        if self.primary in CORRELATIONS and error.items_error**2 > least:
            ends = fisher_ends(value / 100, error.standard_error / 100, below * half, half)
            low, high = 100 * ends[0], 100 * ends[1]
        else:
            low, high = score_ends(self.primary, value, error.standard_error, below * half, half)
        return replace(probed, error=replace(error, interval=(low, high)))

    def result(self, *, digest: str, last: int, notes: Sequence[str], fits: Mapping[str, Fit]) -> Probing:
        """Return the layers compared with the best of them, and the weighted sum with its gain over single layers.

        `digest` identifies the items, see `ItemInfluences`; `last` is the number of the last layer given.
        """
        layers, summed, level = self.layers, self.summed, current().level
        n, count = len(self.psi[0]), len(layers)
        values = np.stack(self.by_folding[:count])
        best = int(np.argmax(values.mean(axis=1)))
        influences = self.again if len(self.again) == count else np.stack(self.psi[:count])
        candidates = tuple(range(count))
        if errors_known(n, self.links):
            covariance = item_covariance(influences, self.links)
            if values.shape[1] > 1:
                covariance = covariance + np.cov(values) / values.shape[1]
            freedom = item_units(n, self.links) - 1
            least = least_variance(n, self.links)
            below = np.ones(count)
            joint = highest_quantile(covariance, level=level, freedom=freedom, least=least)
            below[best] = joint / student(level, freedom)
            layers = [self.with_ends(*pair, least) for pair in zip(layers, below.tolist(), strict=True)]
            summed = summed and self.with_ends(summed, 1.0, least)
            candidates, behind = state(values.mean(axis=1), covariance, level=level, freedom=freedom, least=least)
            layers = [replace(layer, behind=gap) for layer, gap in zip(layers, behind, strict=True)]
        if summed is not None:
            gains = {
                other: self.error(
                    self.by_folding[-1] - self.by_folding[other],
                    self.psi[-1].astype(np.float64) - self.psi[other],
                    difference=True,
                )
                for other in {best, *candidates}
            }
            better = all(gain is not None and gain.interval[0] > 0 for gain in gains.values())
            summed = replace(summed, gain=gains[best], better=better)
        numbers = [layer.layer for layer in layers if layer.layer is not None]
        report(f"probing {self.about['name']}", 1, 1)
        return Probing(
            primary=self.primary,
            layers=tuple(layers),
            summed=summed,
            fits=dict(fits),
            candidates=tuple(numbers[index] for index in candidates),
            n_items=n,
            level=level,
            seconds=time.perf_counter() - self.began,
            last=None if last == numbers[-1] else last,
            influences=ItemInfluences.of(influences, digest=digest, links=self.links),
            **{**self.about, "left_out": self.left_out, "notes": (*self.about.get("notes", ()), *notes)},
        )


def probe(
    embeddings: ModelLike | ArrayLike | Mapping[str, ArrayLike],
    targets: Task | ArrayLike | str | Path | None = None,
    *,
    groups: ArrayLike | str | Path | None = None,
    kind: TargetKind | None = None,
    column: str | None = None,
    cv: Any = FOLDS,
    foldings: int = FOLDINGS,
    scoring: str | None = None,
    tolerance: float = TOLERANCE,
    random_state: int = 0,
    weighted_sum: bool | None = None,
    weighted_mean: bool = False,
) -> Probing:
    """Find the frozen layer that does a task best, its statistical ties, and the smallest sufficient one.

    Works on arrays, or on a model and a task. Each item is predicted by a probe fitted without its fold, with a
    penalty chosen inside the other folds; pairs and queries are scored by cosines. Errors are over items (groups, if
    given) and foldings.

    Args:
        embeddings: (n, layers, features), a result of `extract`, a sequence or a mapping of (n, features), a file or
            a folder, see `layerprobe.comparison.arrays.as_layers`; or a model: a name, a folder, or a `Model`.
        targets: Target of each row, see `layerprobe.probing.targets.as_targets`; or a `Task` for a model. By
            default the labels in the file of the embeddings.
        groups: (n,) units that folds never divide, such as speakers, documents or protein families; or a file.
        kind: Kind of targets, if ambiguous.
        column: Column in a file of targets.
        cv: Number of folds, 3 to 100; or a splitter of scikit-learn, or (train, test) indices, that
            test each row equally often and train on all others, which also determines the number of foldings.
        foldings: How often samples are divided into `cv` folds.
        scoring: Metric for comparing layers, such as "r2", "f1_macro" or "spearman", computed
            once for all items, by folding. By default the targets' first metric.
        tolerance: Points of score x 100 that you accept to lose for fewer layers.
        random_state: Seed of the folds.
        weighted_sum: Whether to compare a learned weighted sum of the layers, if probes are fitted; by default
            if all layers have at most 2^30 numbers, because they are read many times.
        weighted_mean: Whether to compare a learned weighted mean of the layers as they are instead, with no scale of
            single features: the embedding of a model that `export_model` writes.

    Returns:
        The result. A layer that is constant or has NaN is left out, with a warning.

    Raises:
        DataError: If embeddings, targets, groups, splits or metric are unusable, or no layer can be scored.
        MisalignedSamplesError: If they do not belong to the same samples.
        ModelError: If a model cannot be loaded or truncated.
    """
    from layerprobe.tasks.values import Task

    cv = FOLDS if cv is None else cv
    splits = None if isinstance(cv, Integral) else cv
    if not isinstance(random_state, Integral):
        raise DataError(f"expected random_state as a whole number, got {quoted(random_state)}")
    settings = ProbeSettings(
        folds=FOLDS if splits is not None else int(cv),
        foldings=foldings,
        tolerance=tolerance,
        seed=int(random_state),
    )
    start = 0.0
    if isinstance(targets, Task):
        layers, problem, about = embedded_task(embeddings, targets, settings, splits)
        start = EMBEDDED
    else:
        layers = as_layers(embeddings)
        n = layers[0].shape[0]
        if targets is None:
            if not isinstance(embeddings, str | Path):
                raise DataError("expected targets, or a task for a model, got none")
            targets = embeddings
        numbers = as_groups(groups, n)
        problem = as_targets(targets, n, kind=kind, column=column, n_layers=len(layers))
        problem = problem.folded(numbers, settings, splits)
        about = {
            "name": str(embeddings) if isinstance(embeddings, str | Path) else "embeddings",
            "task": str(targets) if isinstance(targets, str | Path) else problem.kind,
            "model": None,
            "cautions": tuple(getattr(embeddings, "cautions", ())),
            "n_groups": None if numbers is None else int(numbers.max()) + 1,
        }
    with part(start=start, share=1 - start, whole=1):
        summed = WEIGHTED_MEAN if weighted_mean else weighted_sum
        return probe_layers(layers, problem.scored_by(scoring), about, settings=settings, summed=summed)


def probe_layers(
    layers: Sequence[Layer],
    problem: Problem,
    about: Mapping[str, Any],
    *,
    settings: ProbeSettings,
    summed: str | bool | None,
) -> Probing:
    """Score every layer, of features or of embeddings for pairs or queries, and their weighted sum or mean.

    `about` has other fields of the result, among them earlier layers that are left out, with the reason.
    """
    of_problem = {"kind": problem.kind, "method": METHODS[problem.kind], "unit": UNITS[problem.kind]}
    settings = replace(settings, folds=problem.n_folds, foldings=len(problem.foldings))
    about = {"settings": settings, "floors": problem.floors, **of_problem, **about}
    board = Board(links=problem.links, about=about, left_out=dict(about.get("left_out", {})))
    first, scored, fits = len(board.left_out), [], {}
    whole = len(layers) * (1 if summed is False or problem.kind in COSINES else 2) + 1
    places = [first + place if layer.number is None else layer.number for place, layer in enumerate(layers)]
    for place, (number, source) in enumerate(zip(places, layers, strict=True)):
        done = _tried(_probed, problem, source)
        if isinstance(done, DataError):
            broken = source.unusable() if isinstance(done, DegenerateLayerError) else None
            board.left_out[source.name] = f"it {broken}" if broken else str(done)
        else:
            on_one_scale, fits[source.name], evaluated = done
            board.add(source.name, number, source.shape[1], evaluated)
            scored.append((*on_one_scale, source))
        report(f"probing {about['name']}", place + 1, whole)
    if not scored:
        reason = next(iter(board.left_out.values()))
        raise DataError(f"no layer can be scored: {reason}")
    if len(scored) > 1 and (problem.kind not in COSINES if summed is None else summed):
        name = WEIGHTED_MEAN if summed == WEIGHTED_MEAN else WEIGHTED_SUM
        with part(start=len(layers), share=len(layers), whole=whole):
            done = _tried(_summed, problem, scored, anyway=bool(summed), mean=name == WEIGHTED_MEAN)
        if isinstance(done, DataError):  # the single layers have their scores
            board.left_out[name] = str(done)
        else:
            fits[name], evaluated = done
            board.add(name, None, scored[0][0].shape[1], evaluated)
    return board.result(
        digest=digest([problem.kind, np.asarray(problem.targets).tolist()]),
        last=places[-1],
        notes=problem.notes([layer for layer, *_ in scored]),
        fits={} if problem.pairs is None or problem.kind in COSINES else fits,
    )


def _tried(function: Callable[..., Any], *values: Any, **settings: Any) -> Any:
    """Return the value of a function, or the DataError that explains why a layer has none."""
    try:
        return function(*values, **settings)
    except MisalignedSamplesError:
        raise
    except DataError as error:
        return error


def _probed(problem: Problem, source: Layer) -> tuple[tuple[Layer, Scale], Fit | None, dict[str, Any]]:
    """Return a scaled layer, a probe of all items, and what `Board.add` takes."""
    layer, scale = scaled(source, shifted=problem.kind not in COSINES)
    fitted = problem.outputs(layer)
    scored, psi = problem.evaluated(fitted)
    again, fit = jackknife(problem, layer, fitted, next(iter(scored[0]))), None
    if problem.kind not in COSINES:
        fit = problem.fit(layer, fitted.usual_penalties).before(scale)
    return (layer, scale), fit, {"scored": scored, "psi": psi, "again": again}


def _summed(
    problem: Problem, scored: Sequence[tuple[Layer, Scale, Layer]], *, anyway: bool, mean: bool
) -> tuple[Fit, dict[str, Any]]:
    """Return a probe of the learned weighted sum or mean, and what `Board.add` takes.

    The layers are scaled; after their scales they come unscaled.
    """
    layers, scales, sources = zip(*scored, strict=True)
    size = sum(layer.shape[0] * layer.shape[1] for layer in layers)
    if problem.kind in COSINES:
        raise DataError("there is no probe to learn weights with: cosines need none")
    if size > SUMMED and not anyway:
        raise DataError(f"the layers have {size:,} numbers, and would be read many times")
    if len({layer.shape[1] for layer in layers}) > 1:
        raise DataError("the layers have different widths")
    if mean and problem.pairs not in ("", "logistic"):
        raise DataError("regression on pairs of texts reads products of their embeddings")

    def learn(train: NDArray[np.intp], seed: Sequence[int]) -> Any:
        learned = summed_layer(problem, layers, train, seed=seed)
        return mean_layer(problem, sources, scales, learned) if mean else learned

    fitted, weights = summed_outputs(problem, learn)
    by_folding, psi = problem.evaluated(fitted)
    highest = np.argsort(-weights)[:3]
    note = "mean weights " + ", ".join(f"{weights[number]:.2f} of {layers[number].name}" for number in highest)
    summed, weights, *rest = learn(np.arange(len(problem.targets)), [0, 0])
    fit = problem.fit(summed, fitted.usual_penalties)
    fit = fit.before(*rest) if mean else _side_by_side(fit, scales, weights, *rest)
    return fit, {"scored": by_folding, "psi": psi, "note": note, "weights": weights.tolist()}


# ---- the learned weighted sum of layers ------------------------------------------------------------------------------


def summed_outputs(problem: Problem, learn: Callable[..., Any]) -> tuple[Fitted, Array]:
    """Return the outputs of probes of the weighted sum of equally wide scaled layers, and the mean weights over folds.

    Features of each layer are first standardised to mean 0 and variance 1. Weights, a softmax, are learned on some
    thousand random rows of the training folds; probes then use the sum like a layer.

    Source: Peters et al. 2018 (ELMo, NAACL); Yang et al. 2021 (SUPERB, Interspeech).
    """
    learned: list[Array] = []
    outputs, swayed, penalties = [], [], []
    for folding, folds in enumerate(problem.foldings):
        by_fold = []
        for fold in range(problem.n_folds):
            report("the weighted sum of layers", len(learned), len(problem.foldings) * problem.n_folds)
            summed, weights, *_ = learn(np.flatnonzero(folds != fold), [folding, fold])
            learned.append(weights)
            by_fold.append(problem.outputs(summed, folds[None], [fold]))
        outputs.append(np.stack([fitted.outputs[0] for fitted in by_fold])[folds, np.arange(len(folds))])
        swayed.append(sum(fitted.swayed[0] for fitted in by_fold))
        penalties.append([fitted.penalties[0, fold] for fold, fitted in enumerate(by_fold)])
    fitted = Fitted(outputs=np.stack(outputs), swayed=np.stack(swayed), penalties=np.array(penalties))
    return fitted, np.mean(learned, axis=0)


def summed_layer(
    problem: Problem, layers: Sequence[Layer], train: NDArray[np.intp], *, seed: Sequence[int]
) -> tuple[Layer, Array, Array, Array]:
    """Learn the weights of scaled layers on some rows, which standardise the features.

    Returns:
        The (n, d) weighted sum; its (layers,) weights; and (layers, d) means and standard deviations of the features,
        infinite for a constant feature.
    """
    most = min(ROWS, max(LEARNED // sum(layer.shape[1] for layer in layers), 10))
    items = np.random.default_rng(seed).permutation(train)[:most]
    stack = np.stack([layer.rows(items) for layer in layers])
    means, spreads = map(np.stack, zip(*map(standard, stack), strict=True))
    stack -= means[:, None]
    stack /= spreads[:, None]
    weights = _weights(problem, stack, items)
    factors = weights[:, None] / spreads

    def read(rows: Rows) -> NDArray[Any]:
        total: Array = -(means * factors).sum(axis=0)
        for layer, factor in zip(layers, factors, strict=True):
            total = total + factor * layer.rows(rows)
        return total

    n, width = layers[0].shape
    rows_of = read(slice(0, n)).__getitem__ if n * width <= NUMBERS else read
    return Layer(name="weighted sum", shape=(n, width), read=rows_of), weights, means, spreads


def mean_layer(
    problem: Problem, sources: Sequence[Layer], scales: Sequence[Scale], learned: tuple[Layer, Array, Array, Array]
) -> tuple[Layer, Array, Scale]:
    """Return the (n, d) weighted mean of layers before scaling, scaled; its (layers,) weights, sum 1; and its scale.

    Weights are those `learned` by `summed_layer`, each over the layer's mean standard deviation. Of pairs of texts, the
    embeddings are averaged, not the features.
    """
    _, weights, means, spreads = learned
    raw = zip(scales, means, np.where(np.isinf(spreads), 0, spreads), strict=True)
    weights = np.where(weights < LEAST_WEIGHT, 0, weights) / [scale.undone(*of)[1].mean() for scale, *of in raw]
    weights /= weights.sum()
    n, width = sources[0].shape

    def read(rows: Rows) -> NDArray[Any]:
        mean: Array = sum(weight * layer.rows(rows) for weight, layer in zip(weights, sources, strict=True) if weight)
        return pair_features(mean[:, : 2 * width // 3], features=problem.pairs) if problem.pairs else mean

    layer, scale = scaled(Layer(name=WEIGHTED_MEAN, shape=(n, width), read=read), shifted=True)
    return layer, weights, scale


def _side_by_side(fit: Fit, scales: Sequence[Scale], by_layer: Array, means: Array, spreads: Array) -> Fit:
    """Return a probe of the weighted sum for the features of all layers side by side."""
    slopes = fit.weights / fit.scale[:, None]
    raw = zip(scales, means, np.where(np.isinf(spreads), 0, spreads), strict=True)
    means, spreads = map(np.concatenate, zip(*(scale.undone(*of) for scale, *of in raw), strict=True))
    weights = np.concatenate([weight * slopes for weight in by_layer])
    # for pairs, first texts come before second texts, and so do their features
    parts = FEATURES[fit.pairs](*np.ones((2, 1, 1))).shape[1] if fit.pairs else 1
    order = np.arange(len(means)).reshape(len(by_layer), parts, -1).swapaxes(0, 1).ravel()
    scale, weights = np.where(spreads == 0, 1, spreads)[order], np.where(spreads[:, None] == 0, 0, weights)[order]
    return replace(fit, mean=means[order], scale=scale, weights=weights, bias=fit.bias - fit.mean @ slopes)


def _weights(problem: Problem, stack: Array, items: NDArray[np.intp]) -> Array:
    """Alternately fit ridge regression on the weighted sum of most rows, and weights on its outputs for the rest."""
    targets = problem.targets[items]
    numbers = np.eye(int(problem.targets.max()) + 1)[targets] if problem.kind == "classes" else targets
    numbers = numbers.reshape(len(items), -1).astype(np.float64)
    numbers = numbers - numbers.mean(axis=0)
    held_out, logits, width = slice(0, -(-len(items) // HELD_OUT)), np.zeros(len(stack)), stack.shape[2]
    rest = slice(held_out.stop, None)
    for _ in range(ROUNDS):
        z = np.column_stack([np.tensordot(softmax(logits), stack, 1), np.ones(len(items)), numbers])
        train, check = z[rest].T @ z[rest], z[held_out].T @ z[held_out]
        fit = min(solved(train, width, PENALTIES[1::2]), key=lambda tried: np.vdot(tried, check @ tried))
        by_layer = stack[:, held_out] @ fit[:width]
        logits = _fitted_logits(by_layer.reshape(len(stack), -1).T, (numbers[held_out] - fit[width]).ravel(), logits)
    return softmax(logits)


def _fitted_logits(by_layer: Array, targets: Array, logits: Array) -> Array:
    """Return the logits of the weights whose sum of the layers' outputs, (n, layers), is closest to targets, (n,)."""
    products, pull, size = by_layer.T @ by_layer, by_layer.T @ targets, float(targets @ targets) or 1.0

    def loss(logits: Array) -> tuple[float, Array]:
        weights = softmax(logits)
        value = (weights @ products @ weights - 2 * weights @ pull) / size
        slope = 2 * (products @ weights - pull) / size
        return float(value), weights * (slope - weights @ slope)

    return minimize(loss, logits, jac=True, method="L-BFGS-B").x
