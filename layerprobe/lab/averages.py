"""Average the outputs of finished runs of one task with weights chosen by validation, and measure the gain.

Source: averages of outputs: Hansen and Salamon 1990 (IEEE PAMI 12); of seeds: Lakshminarayanan, Pritzel and Blundell
2017 (NeurIPS); selection: Caruana et al. 2004 (ICML).
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from layerprobe.errors import DataError
from layerprobe.finetuning.outcomes import SCORED, ScoredSplit, outputs_in
from layerprobe.finetuning.values import FineTuningRun
from layerprobe.interval import Interval
from layerprobe.lab.results import Average, AveragedMember
from layerprobe.stats.crossed import crossed, errors_known
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs, item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.values import Task

Array = NDArray[np.float64]
ScoreOf = Callable[[Array], float]
"""Function from (k,) nonnegative weights that sum to 1 to the score of the average, higher is better."""
Outputs = list[dict[ScoredSplit, Array]]
"""Outputs of a member by seed and split, (n,) or (n, ...), in the form that is averaged."""
PARTS = 20
"""Weights are multiples of one over this number, or over fewer parts: validation splits resolve no finer ones."""


def average(
    task: Task,
    members: Mapping[str, Sequence[FineTuningRun]],
    *,
    model: str,
    budget: str = "",
    joint: bool = False,
    level: float,
) -> Average:
    """Average the outputs of two or more members, and compare the result with the best single member.

    The weights are nonnegative, sum to 1, and maximise the primary metric on the validation split, averaged
    over seeds: by line search for two members, forward selection for more. Class scores are averaged as probabilities
    (softmax): logits of separately trained heads have different scales, so that an overconfident run
    would outvote the others. Other outputs, such as cosines, are averaged directly. If the kind has a threshold,
    it is chosen again on validation.

    There is one average per seed with the same weights, and the interval of the gain is over test items and seeds; for
    members with one run each it is over test items only. Weights, thresholds and the best single member count as fixed:
    they were chosen on other items.

    Args:
        task: Task of the runs.
        members: At least two members by label: the runs of a layer by seed, with equally many seeds each.
        model: Name of the averaged model.
        budget: Budget of the fine-tuning.
        joint: Whether members are layers of the same scans, which run the blocks once.
        level: Confidence level of the interval.

    Raises:
        DataError: If there are fewer than two members, seeds differ, or outputs of this kind cannot be averaged.
        StoreError: If the outputs of a run are missing.
    """
    if len(members) < 2:
        raise DataError(f"expected at least two layers or seeds of {model} to average, got {len(members)}")
    if len({len(runs) for runs in members.values()}) > 1:
        raise DataError(f"expected the same seeds for each layer to average, got different ones for {model}")
    how = KINDS[task.kind].averages
    if how is None:
        kinds = ", ".join(name for name, kind in KINDS.usable().items() if kind.averages is not None)
        raise DataError(f"expected a task of kind {kinds}, whose outputs can be averaged, got kind {task.kind}")
    loaded, runs = [_loaded(of_seeds, how) for of_seeds in members.values()], list(members.values())

    def score(weights: Array) -> float:
        return fmean(scored.metrics[task.primary] for scored in _evaluated(task, loaded, weights, "validation"))

    if len(loaded) == 2:
        choice = f"the best of all weights from 0 and 1 to 1 and 0 in steps of {1 / PARTS:g}"
        weights = line_search(score)
    else:
        choice = f"forward selection with replacement, {PARTS} additions (Caruana et al. 2004)"
        weights = greedy_selection(score, len(loaded))
    best = max(range(len(loaded)), key=lambda number: fmean(_scores(runs[number], "validation", task.primary)))
    chosen = _evaluated(task, loaded, weights, "validation")
    thresholds = tuple(evaluation.threshold for evaluation in chosen)
    tested = _evaluated(task, loaded, weights, "test", thresholds)
    used = [of_seeds[0] for of_seeds, weight in zip(runs, weights, strict=True) if weight]
    if joint:
        used = [max(used, key=lambda one: one.layer)]
    return Average(
        model=model,
        task=task.name,
        budget=budget,
        primary=task.primary,
        choice=choice,
        members=tuple(
            AveragedMember(
                label=label,
                layer=of_seeds[0].layer,
                parameters=of_seeds[0].parameters,
                weight=float(weight),
                validation=_scores(of_seeds, "validation", task.primary),
                test=_scores(of_seeds, "test", task.primary),
            )
            for (label, of_seeds), weight in zip(members.items(), weights, strict=True)
        ),
        best=best,
        validation=_scores_by_metric(chosen),
        test=_scores_by_metric(tested),
        thresholds=thresholds,
        gain=_gain(task, _averaged(loaded, weights, "test"), tested, runs[best], loaded[best], level=level),
        parameters=sum(one.parameters for one in used),
        blocks=sum(one.layer for one in used),
    )


def _loaded(runs: Sequence[FineTuningRun], how: str) -> Outputs:
    """Read the outputs of a member in the form that is averaged, see `Kind.averages`."""
    outputs: Outputs = []
    for run in runs:
        of_run = outputs_in(run.directory)
        by_split = {split: of_run.of(run.layer, split) for split in SCORED}
        outputs.append(by_split if how == "values" else {at: softmax(of, axis=-1) for at, of in by_split.items()})
    return outputs


def _averaged(members: Sequence[Outputs], weights: Array, split: ScoredSplit) -> list[Array]:
    """Return the weighted average of the members' outputs, for each seed."""
    return [
        np.sum([weight * of[split] for weight, of in zip(weights, outputs, strict=True) if weight], axis=0)
        for outputs in zip(*members, strict=True)
    ]


def _evaluated(
    task: Task,
    members: Sequence[Outputs],
    weights: Array,
    split: ScoredSplit,
    thresholds: Sequence[float | None] | None = None,
) -> list[Evaluation]:
    """Return the scores of the average, for each seed; thresholds are chosen if none are given."""
    averages, gold = _averaged(members, weights, split), task.split(split).gold
    thresholds = thresholds or [None] * len(averages)
    return [
        evaluate_outputs(task.kind, outputs, gold, threshold=threshold)
        for outputs, threshold in zip(averages, thresholds, strict=True)
    ]


def _gain(
    task: Task,
    averages: Sequence[Array],
    tested: Sequence[Evaluation],
    runs: Sequence[FineTuningRun],
    single: Outputs,
    *,
    level: float,
) -> Interval | None:
    """Return the gain of the average over a single member on test, with its errors over items and seeds."""
    kind, gold, links, primary = task.kind, task.test.gold, links_of(task.test), task.primary

    def influences(outputs: Array, threshold: float | None) -> Array:
        return item_influences(kind, outputs, gold, metric=primary, threshold=threshold)

    values = [whole.metrics[primary] - run.test[primary] for whole, run in zip(tested, runs, strict=True)]
    of_items = None
    if errors_known(len(gold), links):
        compared = zip(averages, tested, single, runs, strict=True)
        of_items = np.stack(
            [
                influences(outputs, whole.threshold) - influences(alone["test"], run.threshold)
                for outputs, whole, alone, run in compared
            ]
        )
    return crossed(values, of_items, links=links, level=level, unit=KINDS[kind].unit, metric=primary)


def _scores(runs: Sequence[FineTuningRun], split: ScoredSplit, metric: str) -> tuple[float, ...]:
    return tuple(getattr(run, split)[metric] for run in runs)


def _scores_by_metric(evaluations: Sequence[Evaluation]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(evaluation.metrics[name] for evaluation in evaluations) for name in evaluations[0].metrics}


def line_search(score: ScoreOf) -> Array:
    """Return the best weights of two members, of all from 0 and 1 to 1 and 0 in steps of 1 / `PARTS`.

    Ties go to a single member, which costs less, the first one; among averages to the most even one.

    Examples:
        >>> line_search(lambda weights: -abs(weights[0] - 0.3)).round(12).tolist()
        [0.3, 0.7]
    """
    parts = [PARTS, 0, *sorted(range(1, PARTS), key=lambda part: abs(2 * part - PARTS))]
    choices = [np.array([part, PARTS - part]) / PARTS for part in parts]
    return max(choices, key=score)


def greedy_selection(score: ScoreOf, k: int) -> Array:
    """Return weights of k members by forward selection with replacement.

    It starts empty and repeatedly adds the member whose addition scores best, possibly one that was added
    before; after `PARTS` additions, those up to the highest score count, each member as often as it was added.

    Source: Caruana, Niculescu-Mizil, Crew and Ksikes 2004 (ICML), section 2.2.

    Examples:
        >>> greedy_selection(lambda weights: -np.abs(weights - [0.5, 0.0, 0.5]).sum(), 3).tolist()
        [0.5, 0.0, 0.5]
    """
    counts, best, highest = np.zeros(k), np.zeros(k), -np.inf
    for size in range(1, PARTS + 1):
        scores = [score((counts + one) / size) for one in np.eye(k)]
        counts[int(np.argmax(scores))] += 1
        if max(scores) > highest:
            highest, best = max(scores), counts / size
    return best
