"""Tests a prediction by fine-tuning at the deciding layers: confirmed, refuted or undecided."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from layerprobe.checks import LEVEL, Seeds, check_level, check_seeds
from layerprobe.context import current
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import ModelLike, resolve
from layerprobe.errors import DataError, TrainingError
from layerprobe.finetuning.outcomes import differences, outcomes
from layerprobe.finetuning.outputs import NO_ITEMS, RunItems, run_items
from layerprobe.finetuning.tuning import PAPER_SEEDS, agreed, check_layers, finetune
from layerprobe.finetuning.values import MARGIN, Confirmation, FineTuningRun, Protocol
from layerprobe.interval import ClaimVerdict
from layerprobe.names import counted
from layerprobe.prediction.rule import compared_layers
from layerprobe.prediction.values import DropPrediction
from layerprobe.stats.crossed import crossed
from layerprobe.stats.sentences import claim_phrase, confirmation_sentences, spoilt_sentence
from layerprobe.study.predict import predict
from layerprobe.study.values import Finding, Prediction
from layerprobe.tasks.splitting import checked_task, spoilt_items
from layerprobe.tasks.values import Task

SAME = 1e-9
"""Deviations and influences that are no larger are of values that are the same but for rounding: counts, such as
accuracy, agree by chance, which Student's t knows nothing of, so that no look is taken while more seeds are to come."""


def claim_of(result: object) -> DropPrediction:
    """Return the claim about the last layer of a prediction or a finding; DataError for anything else."""
    if isinstance(result, Finding):
        drops = (result.last_layer,) * (result.best_layer != result.last_layer)
        return DropPrediction(
            drop_layers=drops,
            onset=drops[0] if drops else None,
            recommended_layer=result.best_layer,
            rule="search",
            evidence=None,
            sentence=result.kept,
            baselines={},
        )
    claim = getattr(result, "drop", result)
    if not isinstance(claim, DropPrediction):
        raise DataError(
            "expected a prediction or a finding to confirm, as in confirm(model, task, prediction), got a "
            f"{type(result).__name__}"
        )
    return claim


def confirm(
    model: ModelLike,
    task: Task,
    prediction: Prediction | DropPrediction | Finding | None = None,
    *,
    layers: Sequence[int] = (),
    seeds: Seeds = PAPER_SEEDS,
    protocol: Protocol | None = None,
    all_seeds: bool = False,
    groups: Mapping[str, str] | None = None,
) -> Confirmation:
    """Fine-tune at the recommended and the last layer, and say what that shows.

    Without a prediction, the model's is made first, see `predict`. Of what a search found, the layer to keep is
    compared with the last one. Fine-tunes as `finetune`, with the same arguments; the verdict, see `confirmation`, does
    not use the further `layers`. Where no drop is predicted, the best zero-shot layer is compared with the last.

    Of more than three seeds, in their order, no more are run than settle the verdict; it is looked at after each from
    the third on, and the intervals are so much wider that all looks together err no more often than the level says.
    With `all_seeds` all are run, and looked at once: the interval of the effect is then the ordinary one. Intervals
    are over other test items and other seeds; items that share a text, or, where `groups` says where each text comes
    from, a group, are not independent.

    Raises:
        DataError: If it is no task, or a layer does not exist.
        TrainingError: If a run fails.
    """
    level = current().level
    task = checked_task(task)
    claim = None if prediction is None else claim_of(prediction)
    seeds = check_seeds(seeds)
    _, checkpoint = agreed(protocol, resolve(model, items=task.readable))
    if claim is None:
        claim = predict(checkpoint, task).drop
    n_blocks = count_blocks(checkpoint.config)
    planned, n_spoilt = None if all_seeds else len(set(seeds)), spoilt_items(task)

    def confirmed(runs: Sequence[FineTuningRun]) -> Confirmation:
        items = run_items(task, runs, groups=groups)
        return confirmation(claim, runs, n_blocks, items=items, level=level, planned=planned, spoilt=n_spoilt)

    tuned = finetune(
        checkpoint,
        task,
        sorted({*check_layers(checkpoint, layers), *layers_to_confirm(claim, n_blocks)}),
        seeds=seeds,
        protocol=protocol,
        enough=None if all_seeds else lambda runs: confirmed(runs).verdict != "undecided",
    )
    if tuned.failures:
        raise TrainingError(tuned.failures[0])
    return confirmed(tuned.runs)


def layers_to_confirm(prediction: DropPrediction, n_blocks: int) -> tuple[int, int]:
    """Return the layers that decide: the recommended one, or without a drop the baselines' best, and the last."""
    return compared_layers(
        prediction.recommended_layer, drops=prediction.drops, baselines=prediction.baselines, n_blocks=n_blocks
    )


def confirmation(
    prediction: DropPrediction,
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
    verdict: ClaimVerdict = "undecided"
    if error is not None and error.seeds_error is not None:
        verdict = error.verdict(claimed=prediction.drops, margin=MARGIN)
    if planned is not None and planned <= FIRST_LOOK:
        planned = None  # the only look is the ordinary one
    result = Confirmation(
        verdict=verdict,
        compared_layers=(earlier, last),
        primary=by_layer[last].primary,
        level=level,
        outcomes=results,
        sentence="",
        planned_seeds=planned,
        error=error,
    )
    sentence = confirmation_sentences(
        claim_phrase(verdict, earlier=earlier, last=last, drops=prediction.drops, margin=MARGIN),
        layers=(earlier, last),
        means=(by_layer[earlier].mean, by_layer[last].mean),
        metric=result.primary,
        difference=error,
        level=level,
        seeds=counted(n_seeds, "seed") if planned is None else f"{n_seeds} of {planned} seeds",
        looks=0 if planned is None else planned - FIRST_LOOK + 1,
        flagged=len(prediction.drop_layers),
        undecided=verdict == "undecided",
    )
    return replace(result, sentence=f"{spoilt_sentence(spoilt)} {sentence}" if spoilt else sentence)


# ---- looks after each seed ------------------------------------------------------------------------------


FIRST_LOOK = 3
"""Seeds before the first look: of two, the error over seeds has one degree of freedom and its tails settle nothing."""
SPENDING_POWER = 5
"""Error is spent as (looks' seeds / planned seeds) ** 5: two thirds of it are left for the last of five seeds."""


def looks(planned: int) -> tuple[int, ...]:
    """Return after how many seeds there is a look: each from the third on, and the last."""
    return tuple(range(FIRST_LOOK, planned + 1)) or (planned,)


def level_at_look(seeds: int, level: float, *, planned: int) -> float | None:
    """Return the level of the interval after so many seeds; None where there is no look.

    An interval at the same level after every seed errs more often than the level says: 10 % instead of 5 % over three
    looks at seeds alone. Here the share of error is spent over the looks, little of it early: those after the first k
    of the planned seeds spend (1 - level) (k / planned)^5. Each interval is at the level of its share (Bonferroni), so
    that all together cover the effect at the level whatever the errors of the looks have in common. A single look has
    all of it.

    Source: Lan and DeMets 1983, Biometrika 70, 659-663 (spending); Jennison and Turnbull 1989, JRSS B 51, 305-361
    (repeated intervals).

    Examples:
        >>> [round(level_at_look(k, 0.95, planned=5), 4) for k in (3, 4, 5)]
        [0.9961, 0.9875, 0.9664]
        >>> level_at_look(3, 0.95, planned=3), level_at_look(2, 0.95, planned=3)
        (0.95, None)
    """
    if seeds not in looks(planned):
        return None
    before = ((seeds - 1) / planned) ** SPENDING_POWER if seeds - 1 in looks(planned) else 0.0
    return 1 - (1 - level) * ((seeds / planned) ** SPENDING_POWER - before)
