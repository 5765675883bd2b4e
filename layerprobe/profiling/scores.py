"""What studies say of models that are profiled: the scores of their layers. Knows studies, no page."""

from collections.abc import Sequence

from layerprobe.encoders.loading import Checkpoint
from layerprobe.encoders.values import ModelDescription
from layerprobe.errors import DataError
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.profiling.values import Profile, Profiles
from layerprobe.study.values import Study

Identified = ModelDescription | Checkpoint
"""A model that can be identified."""


def side_by_side(profiles: Sequence[Profile], studies: Sequence[Study] = ()) -> Profiles:
    """Return profiles of the same lengths and batch sizes, with the scores of their layers in studies.

    Raises:
        DataError: If the profiles are of different shapes, or a study is of other models.
    """
    shown = Profiles(
        profiles=tuple(profiles),
        scores=tuple(tuple(scores_of(studies, profile.model).values()) for profile in profiles),
    )
    check_studies(studies, [profile.model for profile in profiles])
    return shown


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
    """Check that every study has fine-tuning scores of one of the models.

    Raises:
        DataError: If one is a study of other models, without fine-tuning of these, or scored by another metric.
    """
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
