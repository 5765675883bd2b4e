"""Tests a prediction by fine-tuning at the deciding layers: confirmed, refuted or undecided."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from layerprobe.checks import LEVEL, Seeds, check_level, check_seeds
from layerprobe.context import current, duration
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.errors import DataError
from layerprobe.finetuning.outcomes import differences, outcomes
from layerprobe.finetuning.outputs import NO_ITEMS, RunItems
from layerprobe.finetuning.tuning import PAPER_SEEDS, agreed, check_layers, finetune, items_of
from layerprobe.finetuning.values import (
    MARGIN,
    Confirmation,
    FineTuningRun,
    LayerOutcome,
    Protocol,
    SavedSeeds,
    Verdict,
)
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted
from layerprobe.prediction.baselines import compared_layers
from layerprobe.prediction.values import DropPrediction
from layerprobe.stats.crossed import crossed
from layerprobe.stats.sentences import error_sources, range_of, spoilt_sentence
from layerprobe.stats.values import CrossedInterval
from layerprobe.study.interim import FIRST_LOOK, level_at_look
from layerprobe.study.predict import predict
from layerprobe.study.values import Finding, Prediction, Study
from layerprobe.tasks.overlaps import checked_task, spoilt_items
from layerprobe.tasks.values import Task

SAME = 1e-9
"""Deviations and influences that are no larger are of values that are the same but for rounding: counts, such as
accuracy, agree by chance, which Student's t knows nothing of, so that no look is taken while more seeds are to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A prediction about the last layer, made by a rule or a search."""

    recommended_layer: int
    """Where to truncate."""
    drops: bool
    """Whether the last layer is said to be worse."""
    drop_layers: tuple[int, ...]
    """Layers that are said to be worse."""
    baselines: Mapping[str, int] = field(default_factory=dict)
    """What simpler rules recommend."""


def claim_of(result: object) -> DropPrediction | Claim:
    """Return the claim about the last layer of a prediction, finding or study; DataError for anything else."""
    if isinstance(result, Finding):
        last = len(result.parameters) - 1
        drops = result.best_layer != last
        return Claim(recommended_layer=result.best_layer, drops=drops, drop_layers=(last,) * drops)
    claim = getattr(result, "drop", None) or getattr(result, "prediction", result)
    if not isinstance(claim, DropPrediction):
        raise DataError(
            "expected a prediction, a finding or a study to confirm, as in confirm(model, task, prediction), got a "
            f"{type(result).__name__}"
        )
    return claim


def confirm(
    model: ModelLike,
    task: Task,
    prediction: Study | Prediction | DropPrediction | Finding | None = None,
    *,
    layers: Sequence[int] = (),
    seeds: Seeds = PAPER_SEEDS,
    protocol: Protocol | None = None,
    all_seeds: bool = False,
    documents: Mapping[str, str] | None = None,
) -> Confirmation:
    """Fine-tune at the recommended and the last layer, and say what that shows.

    Without a prediction, the model's is made first, see `predict`. Of what a search found, the layer to keep is
    compared with the last one. Fine-tunes as `finetune`, with the same arguments; the verdict, see `confirmation`, does
    not use the further `layers`. Where no drop is predicted, the best zero-shot layer is compared with the last.

    Of more than three seeds, in their order, no more are run than settle the verdict; it is looked at after each from
    the third on, and the intervals are so much wider that all looks together err no more often than the level says.
    With `all_seeds` all are run, and looked at once: the interval of the effect is then the ordinary one. Intervals
    are over other test items and other seeds; items that share a text, or, where `documents` says where each text comes
    from, a document, are not independent.

    Raises:
        DataError: If it is no task, or a layer does not exist.
        TrainingError: If a run fails.
    """
    level = current().level
    task = checked_task(task)
    claim = None if prediction is None else claim_of(prediction)
    seeds = check_seeds(seeds)
    _, checkpoint = agreed(protocol, resolve_checkpoint(model, items=task.readable))
    if claim is None:
        claim = predict(checkpoint, task).drop
    n_blocks = count_blocks(checkpoint.config)
    planned, n_spoilt = None if all_seeds else len(set(seeds)), spoilt_items(task)

    def confirmed(runs: Sequence[FineTuningRun]) -> Confirmation:
        items = items_of(checkpoint, runs, task, documents=documents)
        return confirmation(claim, runs, n_blocks, items=items, level=level, planned=planned, spoilt=n_spoilt)

    runs = finetune(
        checkpoint,
        task,
        sorted({*check_layers(checkpoint, layers), *layers_to_confirm(claim, n_blocks)}),
        seeds=seeds,
        protocol=protocol,
        enough=None if all_seeds else lambda runs: confirmed(runs).verdict != "undecided",
    )
    return confirmed(runs)


def layers_to_confirm(prediction: DropPrediction | Claim, n_blocks: int) -> tuple[int, int]:
    """Return the layers that decide: the recommended one, or without a drop the baselines' best, and the last."""
    return compared_layers(
        prediction.recommended_layer, drops=prediction.drops, baselines=prediction.baselines, n_blocks=n_blocks
    )


def confirmation(
    prediction: DropPrediction | Claim,
    runs: Sequence[FineTuningRun],
    n_blocks: int,
    *,
    items: RunItems = NO_ITEMS,
    level: float = LEVEL,
    planned: int | None = None,
    spoilt: int = 0,
) -> Confirmation:
    """Say whether fine-tuning bears out what a prediction says of the last layer.

    effect = mean over seeds of (test score at the earlier layer - test score at the last layer)

    by the primary metric of the task, with its errors over test items and seeds, see `crossed`. A predicted drop of the
    last layer is confirmed if the interval of the effect lies above 0, and refuted if it lies below half a point, which
    does not justify another layer. Where no drop was predicted the two change places. An interval between 0 and half a
    point is above 0: the drop is sure, small as it is, and the earlier layer has fewer blocks, too. Anything else, and
    a single seed, is undecided. Nothing is claimed of flagged layers before the last one.

    The runs are of at least the two compared layers, with the same seeds. Where at most so many seeds are `planned`,
    there is a look after each from the third on and the first settled verdict stands, see `level_at_look`; the
    interval of the effect is then that of the look. By default the runs are all there is. Where items that stand in
    two splits have `spoilt` the scores, nothing is said of the effect.
    """
    check_level(level)
    results = outcomes(runs, items, level=level)
    by_layer = {result.layer: result for result in results}
    earlier, last = layers_to_confirm(prediction, n_blocks)
    if earlier not in by_layer or last not in by_layer:
        raise DataError(f"expected runs at layers {earlier} and {last}, got layers {sorted(by_layer)}")
    if by_layer[earlier].seeds != by_layer[last].seeds:
        raise DataError(f"expected the same seeds at layers {earlier} and {last}")
    n_seeds = len(by_layer[last].seeds)
    if planned is not None and n_seeds > planned:
        raise DataError(f"expected at most the {planned} seeds that were planned, got {n_seeds}")
    first, second = (
        sorted((run for run in runs if run.layer == layer), key=lambda run: run.seed) for layer in (earlier, last)
    )
    at_level = level if planned is None else level_at_look(n_seeds, level, planned=planned)
    error = None
    if at_level is not None and not spoilt:
        values, influences = differences(first, second, (items, items))
        links, primary = items.links.get("test"), first[0].primary
        error = crossed(values, influences, links=links, level=at_level, unit=items.unit, metric=primary)
        same = statistics.pstdev(values) <= SAME and (influences is None or bool((abs(influences) <= SAME).all()))
        if same and planned is not None and n_seeds < planned:
            error = None
    verdict = _verdict(error, predicted_drop=prediction.drops)
    if planned is not None and planned <= FIRST_LOOK:
        planned = None  # the only look is the ordinary one
    early = planned is not None and n_seeds < planned and verdict != "undecided"
    result = Confirmation(
        verdict=verdict,
        compared_layers=(earlier, last),
        primary=by_layer[last].primary,
        effect=by_layer[earlier].mean - by_layer[last].mean,
        interval=None if error is None else error.interval,
        level=level,
        outcomes=results,
        sentence="",
        planned_seeds=planned,
        saved=_saved(runs, planned - n_seeds) if planned is not None and early else None,
        error=error,
    )
    sentence = _sentence(result, by_layer[earlier], by_layer[last], prediction)
    sentence = f"{spoilt_sentence(spoilt)} {sentence}" if spoilt else sentence
    return replace(result, sentence=sentence)


def _saved(runs: Sequence[FineTuningRun], seeds: int) -> SavedSeeds:
    layers, made = {run.layer for run in runs}, {(run.layer, run.seed) for run in runs}
    seconds = sum(run.seconds for run in runs) / len(made) * len(layers)
    return SavedSeeds(seeds=seeds, runs=seeds * len(layers), seconds=seeds * seconds)


def _verdict(error: CrossedInterval | None, *, predicted_drop: bool) -> Verdict:
    if error is None or error.seeds_error is None:
        return "undecided"
    low, high = error.interval
    if low > 0:
        return "confirmed" if predicted_drop else "refuted"
    if high < MARGIN:
        return "refuted" if predicted_drop else "confirmed"
    return "undecided"


def _sentence(
    result: Confirmation, earlier: LayerOutcome, last: LayerOutcome, prediction: DropPrediction | Claim
) -> str:
    error, planned, n_seeds = result.error, result.planned_seeds, len(last.seeds)
    spread = "no interval"
    if error is not None:
        spread = f"{range_of(error.interval, result.level)} {error_sources(error)}"
        if planned is not None:
            spread += f"; adjusted to {counted(planned - FIRST_LOOK + 1, 'look')}"
    seeds = counted(n_seeds, "seed") if planned is None else f"{n_seeds} of {planned} seeds"
    sentence = (
        f"{_claim(result, predicted_drop=prediction.drops)}: layer {earlier.layer} scores {earlier.mean:.2f} and the "
        f"last layer {last.mean:.2f} (effect {result.effect:+.2f} {metric_title(last.primary)} x 100, {spread}; "
        f"{seeds})."
    )
    if len(prediction.drop_layers) > 1:
        n_flagged = len(prediction.drop_layers)
        sentence += f" Of the {n_flagged} flagged layers, only the last was compared with layer {earlier.layer}."
    if result.verdict == "undecided" and error is not None:
        sentence += f" {_visible(error)}"
    if saved := result.saved:
        sentence += (
            f" That saved the other {counted(saved.seeds, 'seed')}: {counted(saved.runs, 'run')}, about "
            f"{duration(saved.seconds)}."
        )
    return sentence


def _claim(result: Confirmation, *, predicted_drop: bool) -> str:
    """Return the tested claim about the last layer."""
    earlier, last = result.compared_layers
    lower = f"the last layer, {last}, scores lower than layer {earlier}"
    if result.verdict == "undecided":
        return f"Fine-tuning is inconclusive on whether {lower}"
    drops = predicted_drop == (result.verdict == "confirmed")
    what = lower if drops else f"the last layer, {last}, scores less than {MARGIN:g} below layer {earlier}"
    return f"Fine-tuning {'confirms that' if result.verdict == 'confirmed' else 'refutes the prediction:'} {what}"


def _visible(error: CrossedInterval) -> str:
    """Return the smallest difference that was detectable."""
    drawn = [counted(error.n_seeds, "seed")] if error.seeds_error is not None else []
    drawn = [*([] if error.n_items is None else [counted(error.n_items, error.unit)]), *drawn]
    return f"{' and '.join(drawn)} can detect a difference of {error.visible:.1f} points or more."
