"""Scores of profiled models' layers, from studies. Knows studies, no page."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import median

from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.model import ModelDescription
from layerprobe.errors import DataError
from layerprobe.files.serialisation import digest
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.profiling.values import LayerProfile, Profile, Profiles
from layerprobe.study.values import Study

Identified = ModelDescription | Checkpoint
"""A model that can be identified."""


def side_by_side(profiles: Sequence[Profile], studies: Sequence[Study] = ()) -> Profiles:
    """Return profiles of the same lengths and batch sizes, with the scores of their layers in studies."""
    result = Profiles(
        profiles=pooled(profiles),
        scores=tuple(tuple(scores_of(studies, profile.model).values()) for profile in profiles),
    )
    check_studies(studies, [profile.model for profile in profiles])
    return result


def pooled(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """Return profiles of which those of one architecture, size and machine have the times of all of them together."""
    alike: dict[str, list[Profile]] = {}
    for profile in profiles:
        alike.setdefault(_shape(profile), []).append(profile)
    return tuple(
        replace(profile, layers=tuple(map(_pooled, profile.layers, zip(*(one.layers for one in same), strict=True))))
        for profile in profiles
        for same in [alike[_shape(profile)]]
    )


def _shape(profile: Profile) -> str:
    model, layers = profile.model, [layer.layer for layer in profile.layers]
    costs = [(cost.shape, cost.flops) for layer in profile.layers for cost in layer.costs]
    how = [profile.device, profile.hardware, profile.threads, profile.attn, profile.pooling, model.dtype, model.norm]
    return digest([model.architecture, model.hidden_size, layers, costs, *how])


def _pooled(layer: LayerProfile, alike: Sequence[LayerProfile]) -> LayerProfile:
    costs = []
    for cost, *same in zip(layer.costs, *(one.costs for one in alike), strict=True):
        rounds = tuple(chain.from_iterable(one.by_round for one in same))
        if len(same) > 1 and all(one.by_round for one in same):
            cost = replace(
                cost,
                seconds=median(rounds),
                seconds_low=min(one.seconds_low for one in same),
                seconds_high=max(one.seconds_high for one in same),
                by_round=rounds,
                repeats=sum(one.repeats for one in same),
            )
        costs.append(cost)
    return replace(layer, costs=tuple(costs))


def scores_of(studies: Sequence[Study], model: Identified) -> dict[int, LayerOutcome]:
    """Return what the studies' fine-tuning showed of a model, as their model or their reference, by layer."""
    scores = {}
    for study in studies:
        pairs = (study.comparison.model, study.outcomes), (study.comparison.reference, study.reference_outcomes)
        for described, outcomes in pairs:
            if _same(described, model):
                scores.update({outcome.layer: outcome for outcome in outcomes})
    return dict(sorted(scores.items()))


def check_studies(studies: Sequence[Study], models: Sequence[Identified]) -> None:
    """Check that every study has fine-tuning scores of one of the models."""
    if len(metrics := dict.fromkeys(study.metric for study in studies)) > 1:
        raise DataError(
            f"expected studies scored by one metric, got {' and '.join(map(metric_title, metrics))}: "
            "give those of one kind of task"
        )
    for study in studies:
        pair = study.comparison.model, study.comparison.reference
        if not any(_same(described, model) for described in pair for model in models):
            raise DataError(
                f"expected a study of the model that is profiled, got one of {pair[0].name} and {pair[1].name}: "
                "profile the same checkpoint"
            )
        if not any(scores_of([study], model) for model in models):
            raise DataError(
                f"expected a study with fine-tuned layers, got none in that of {pair[0].name}: "
                "run it without --no-fine-tuning"
            )


def _same(first: Identified, second: Identified) -> bool:
    return (first.revision, first.random_init) == (second.revision, second.random_init)
