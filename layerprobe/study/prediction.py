"""A comparison -> which layers will drop, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layerprobe.encoders import Checkpoint
from layerprobe.errors import DataError
from layerprobe.names import short_names
from layerprobe.prediction import plateau_rule
from layerprobe.prediction.predictors import Seen
from layerprobe.prediction.sentence import call_sentence
from layerprobe.prediction.tuned import REFERENCE, rule_curves, tuned_rule
from layerprobe.progress import Progress, silent
from layerprobe.results import Comparison, DropPrediction, LayerCurve, LayerScores, Task, metric_title
from layerprobe.results.prediction import PLATEAU
from layerprobe.study.options import Options, found
from layerprobe.study.readings import DIAGNOSTICS, LABELLED, diagnosed, layer_curve, readings

# Chosen by DropBench and by models outside of it; the README has both tables. It reads what every comparison has.
DEFAULT_RULE = "fall of effective rank"
# Zero-shot scores contradict a prediction when a flagged layer is ahead of the recommended one by this much, x 100.
CONTRADICTION = 5.0


def chosen_rule(name: str | None, *, labelled: bool) -> str:
    """Return a rule that can be used: the one that is named, or the default.

    Args:
        name: One of `rule_names`, or None.
        labelled: Whether there are labels.

    Raises:
        DataError: If there is no such rule, or it needs labels and there are none.
    """
    name = name or DEFAULT_RULE
    needed = set(rule_curves(name)) & set(LABELLED)
    if needed and not labelled:
        raise DataError(f"expected a task for the rule {name!r}, which reads {' and '.join(sorted(needed))}, got texts")
    return name


def rule_by_reference(name: str) -> str:
    """Return a rule that can tell references apart: itself if it reads CKA, or else the plateau rule."""
    return name if REFERENCE in rule_curves(name) else PLATEAU


def predict(
    comparison: Comparison,
    *,
    zero_shot_validation: LayerScores | None = None,
    rule: str = DEFAULT_RULE,
    read: Mapping[str, LayerCurve] | None = None,
) -> DropPrediction:
    """Say which layers will drop after fine-tuning, which layer to keep, and how far to trust the rule.

    Args:
        comparison: The model against an MLM reference.
        zero_shot_validation: Where labels are at hand, the scores that choose the best zero-shot layer; a
            baseline beside the prediction, not part of it.
        rule: One of `rule_names`, tuned on DropBench.
        read: What `rule_readings` gave, for a rule that reads more than the comparison has: CKA and diagnostics.

    Raises:
        DataError: If the model has fewer than three blocks, there is no such rule, or what it reads is missing.
    """
    other = {} if zero_shot_validation is None else {"best zero-shot layer": zero_shot_validation.best_layer}
    model, reference = short_names(comparison.model.name, comparison.reference.name)
    measure = comparison.map.measure
    n_blocks = comparison.model.n_layers - 1
    known = {REFERENCE: layer_curve(comparison.curve), **diagnosed(comparison.model_diagnostics), **(read or {})}
    seen = Seen(n_blocks=n_blocks, curves=known)
    tuned = tuned_rule(rule)
    call = tuned(seen)
    if rule != DEFAULT_RULE and set(rule_curves(DEFAULT_RULE)) <= known.keys():
        other[DEFAULT_RULE] = tuned_rule(DEFAULT_RULE)(seen).recommended_layer
    by_plateau = plateau_rule(
        comparison.curve,
        model=model,
        reference=reference,
        measure="CKA" if measure.name == "cka" else measure.title,
        other_baselines=other,
    )
    if rule == PLATEAU:
        return replace(by_plateau, record=tuned.record)
    numbers = {name: known[name].values for name in tuned.rule.curves if name != REFERENCE}
    return replace(
        by_plateau,
        drop_layers=tuple(range(call.onset, n_blocks + 1)) if call.onset is not None else (),
        onset=call.onset,
        recommended_layer=call.recommended_layer,
        rule=rule,
        sentence=call_sentence(rule, model, numbers, onset=call.onset, n_blocks=n_blocks),
        baselines={**by_plateau.baselines, PLATEAU: by_plateau.recommended_layer},
        probability=None,
        record=tuned.record,
        read=numbers,
    )


def rule_readings(
    rule: str,
    model: str | Path | Checkpoint,
    texts: Sequence[str],
    *,
    task: Task | None = None,
    random_init: int | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> dict[str, LayerCurve]:
    """Return what a rule reads of a model beside what a comparison has; what is in the store is not computed again.

    Args:
        rule: One of `rule_names`.
        model: Hub id, `id@revision`, a local folder, or what `find_checkpoint` found.
        texts: What the model and the reference were compared on.
        task: For a rule that reads labels.
        random_init: Seed of fresh random weights instead of the trained ones.
        options: How to load and embed.
        progress: Told what is being done.

    Raises:
        DataError: If there is no such rule, or it needs labels and there is no task.
        LayerProbeError: If something cannot be measured; see the stages.
    """
    names = [name for name in rule_curves(rule) if name != REFERENCE and name not in DIAGNOSTICS]
    checkpoint = found(model, random_init, options or Options())
    return readings(checkpoint, texts, names, task=task, options=options, progress=progress)


def cautions(
    comparison: Comparison, prediction: DropPrediction, labelled: LayerScores | None = None
) -> tuple[str, ...]:
    """Return, in plain words, what speaks against taking a predicted drop at its word.

    Args:
        comparison: The two models.
        prediction: What was predicted.
        labelled: Zero-shot scores of the model, where there are labels.
    """
    said = []
    model, reference = comparison.model, comparison.reference
    if (model.revision, model.random_init) == (reference.revision, reference.random_init):
        said.append("the model was compared with itself: expected another model as the reference, such as BERT")
    if prediction.drops and REFERENCE in rule_curves(prediction.rule) and reference.random_init is not None:
        said.append(
            "the reference has random weights: a decline of CKA against it shows how far training moved a layer, "
            "not that the layer serves sentence embeddings worse"
        )
    if prediction.drops and labelled is not None:
        kept, best = labelled.scores[prediction.recommended_layer], labelled.best_layer
        if best in prediction.drop_layers and labelled.scores[best] > kept + CONTRADICTION:
            said.append(
                f"the labels disagree: untrained, the flagged layer {best} scores {labelled.scores[best]:.1f} and "
                f"the recommended layer {prediction.recommended_layer} {kept:.1f} "
                f"({labelled.split} {metric_title(labelled.primary)} x 100)"
            )
    return tuple(said)
