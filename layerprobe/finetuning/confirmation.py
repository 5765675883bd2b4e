"""Fine-tuning runs -> confirmed, refuted or undecided. Knows numbers and Student's t; trains nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from layerprobe.checks import LEVEL, check_level
from layerprobe.errors import DataError
from layerprobe.finetuning.looks import FIRST_LOOK, interval_at_look
from layerprobe.finetuning.values import MARGIN, Confirmation, FineTuningRun, LayerOutcome, SavedSeeds, Verdict
from layerprobe.metrics.names import metric_title
from layerprobe.metrics.seeds import mean_interval, seed_scores
from layerprobe.prediction.baselines import compared_layers
from layerprobe.prediction.values import DropPrediction
from layerprobe.progress import duration


def layers_to_confirm(prediction: DropPrediction, n_blocks: int) -> tuple[int, int]:
    """Return the layers that decide: the recommended one, or without a drop the baselines' best, and the last."""
    return compared_layers(
        prediction.recommended_layer, drops=prediction.drops, baselines=prediction.baselines, n_blocks=n_blocks
    )


def outcome(runs: Iterable[FineTuningRun], *, level: float = LEVEL) -> LayerOutcome:
    """Put the runs of one layer together; DataError if they are of several layers or metrics, or there are none."""
    runs = sorted(runs, key=lambda run: run.seed)
    if len({run.layer for run in runs}) != 1:
        raise DataError(f"expected runs of one layer, got layers {sorted({run.layer for run in runs})}")
    primary = runs[0].primary
    if others := {run.primary for run in runs} - {primary}:
        raise DataError(f"expected runs of one task, got runs for {primary} and {', '.join(others)}")
    scores = seed_scores([run.test[primary] for run in runs], level)
    return LayerOutcome(
        layer=runs[0].layer,
        parameters=runs[0].parameters,
        seeds=tuple(run.seed for run in runs),
        primary=primary,
        test={name: tuple(run.test[name] for run in runs) for name in runs[0].test},
        validation={name: tuple(run.validation[name] for run in runs) for name in runs[0].validation},
        mean=scores.mean,
        std=scores.std,
        interval=scores.interval,
    )


def outcomes(runs: Sequence[FineTuningRun], *, level: float = LEVEL) -> tuple[LayerOutcome, ...]:
    """Put runs together layer by layer, ascending."""
    layers = sorted({run.layer for run in runs})
    return tuple(outcome((run for run in runs if run.layer == layer), level=level) for layer in layers)


def confirmation(
    prediction: DropPrediction,
    runs: Sequence[FineTuningRun],
    n_blocks: int,
    *,
    level: float = LEVEL,
    planned: int | None = None,
) -> Confirmation:
    """Say whether fine-tuning bears a prediction out.

    effect = mean over seeds of (test score at the earlier layer - test score at the last layer)

    by the primary metric of the task. A predicted drop is confirmed if the interval of the effect lies above 0, and
    refuted if it lies below half a point, which is not worth another layer. Where no drop was predicted the two change
    places. An interval between 0 and half a point is above 0: the drop is sure, small as it is, and the earlier
    layer has fewer blocks, too. Anything else, and a single seed, is undecided.

    The runs are of at least the two compared layers, with the same seeds. Where at most so many seeds are `planned`,
    there is a look after each from the third on and the first settled verdict stands, see `critical_values`; the
    interval of the effect is then that of the look. By default the runs are all there is.

    Raises:
        DataError: If a compared layer has no runs, the seeds differ, or there are more than planned.
    """
    check_level(level)
    results = outcomes(runs, level=level)
    by_layer = {result.layer: result for result in results}
    earlier, last = layers_to_confirm(prediction, n_blocks)
    if earlier not in by_layer or last not in by_layer:
        raise DataError(f"expected runs at layers {earlier} and {last}, got layers {sorted(by_layer)}")
    if by_layer[earlier].seeds != by_layer[last].seeds:
        raise DataError(f"expected the same seeds at layers {earlier} and {last}")
    differences = np.array(by_layer[earlier].scores) - np.array(by_layer[last].scores)
    values, n_seeds = differences.tolist(), len(differences)
    if planned is not None and n_seeds > planned:
        raise DataError(f"expected at most the {planned} seeds that were planned, got {n_seeds}")
    interval = mean_interval(values, level) if planned is None else interval_at_look(values, level, planned=planned)
    verdict = _verdict(interval, predicted_drop=prediction.drops)
    if planned is not None and planned <= FIRST_LOOK:
        planned = None  # the only look is the ordinary one
    early = planned is not None and n_seeds < planned and verdict != "undecided"
    result = Confirmation(
        verdict=verdict,
        compared_layers=(earlier, last),
        primary=by_layer[last].primary,
        effect=float(differences.mean()),
        interval=interval,
        level=level,
        outcomes=results,
        sentence="",
        planned_seeds=planned,
        saved=_saved(runs, planned - n_seeds) if planned is not None and early else None,
    )
    sentence = _sentence(result, by_layer[earlier], by_layer[last], predicted_drop=prediction.drops)
    return replace(result, sentence=sentence)


def _saved(runs: Sequence[FineTuningRun], seeds: int) -> SavedSeeds:
    layers, made = {run.layer for run in runs}, {(run.layer, run.seed) for run in runs}
    seconds = sum(run.seconds for run in runs) / len(made) * len(layers)
    return SavedSeeds(seeds=seeds, runs=seeds * len(layers), seconds=seeds * seconds)


def _verdict(interval: tuple[float, float] | None, *, predicted_drop: bool) -> Verdict:
    if interval is None:
        return "undecided"
    low, high = interval
    if low > 0:
        return "confirmed" if predicted_drop else "refuted"
    if high < MARGIN:
        return "refuted" if predicted_drop else "confirmed"
    return "undecided"


def _sentence(result: Confirmation, earlier: LayerOutcome, last: LayerOutcome, *, predicted_drop: bool) -> str:
    claim = "the predicted drop" if predicted_drop else "the prediction of no drop"
    interval, planned, n_seeds = result.interval, result.planned_seeds, len(last.seeds)
    spread = "no interval"
    if interval is not None:
        spread = f"{result.level:.0%} interval {interval[0]:+.2f} to {interval[1]:+.2f}"
        if planned is not None:
            spread += f" adjusted to {_count(planned - FIRST_LOOK + 1, 'look')}"
    seeds = _count(n_seeds, "seed") if planned is None else f"{n_seeds} of {planned} seeds"
    sentence = (
        f"Fine-tuning {_VERBS[result.verdict]} {claim}: layer {earlier.layer} scores {earlier.mean:.2f} and the last "
        f"layer, {last.layer}, {last.mean:.2f} (effect {result.effect:+.2f} {metric_title(last.primary)} x 100, "
        f"{spread}, {seeds})."
    )
    if saved := result.saved:
        sentence += (
            f" That is settled without the other {_count(saved.seeds, 'seed')}: {_count(saved.runs, 'run')}, about "
            f"{duration(saved.seconds)}."
        )
    return sentence


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


_VERBS: dict[Verdict, str] = {"confirmed": "confirms", "refuted": "refutes", "undecided": "does not decide"}
