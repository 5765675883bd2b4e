"""A comparison -> which layers will drop, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from layerprobe.checks import LEVEL
from layerprobe.comparison.values import Comparison
from layerprobe.dropbench.tuned import REFERENCE, rule_curves, tuned_rule
from layerprobe.encoders.loading import ModelLike
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.errors import DataError
from layerprobe.metrics.names import metric_title
from layerprobe.names import short_names
from layerprobe.prediction.baselines import fixed_fraction, last_layer
from layerprobe.prediction.rule import ModelCurves
from layerprobe.prediction.rules.plateau import check_depth, plateau_rule
from layerprobe.prediction.sentence import call_sentence
from layerprobe.prediction.values import PLATEAU, DropPrediction
from layerprobe.progress import Progress, silent
from layerprobe.readings.cka import layer_curve
from layerprobe.readings.read import read_curves
from layerprobe.readings.registry import READINGS
from layerprobe.readings.values import LayerCurve
from layerprobe.scoring.values import LayerScores
from layerprobe.tasks.values import Task

# Chosen by DropBench and by models that were kept out of it; the README has both tables.
DEFAULT_RULE = "fall of InfoNCE"
# InfoNCE compares copies of a text that lack some of its words; this one reads what every comparison has.
WORDLESS_RULE = "fall of effective rank"
# Zero-shot scores contradict a prediction when a flagged layer is ahead of the recommended one by this much, x 100.
CONTRADICTION = 5.0


def default_rule(texts: Sequence[str]) -> str:
    """Return the rule for texts like these: another one where most have no second word that could be left out."""
    n_several = sum(len(text.split()) > 1 for text in texts)
    return DEFAULT_RULE if 2 * n_several >= len(texts) else WORDLESS_RULE


def chosen_rule(name: str | None, texts: Sequence[str], *, labelled: bool, referenced: bool = True) -> str:
    """Return a rule that can be used: the one that is named, or the default.

    Args:
        name: One of `rule_names`, or None.
        texts: That the model will embed.
        labelled: Whether there are labels.
        referenced: Whether there is a reference.

    Raises:
        DataError: If there is no such rule, or it needs labels or a reference and there are none.
    """
    name = name or default_rule(texts)
    reads = rule_curves(name)
    needed = {name for name in reads if name != REFERENCE and READINGS[name].labelled}
    if needed and not labelled:
        raise DataError(f"expected a task for the rule {name!r}, which reads {' and '.join(sorted(needed))}, got texts")
    if REFERENCE in reads and not referenced:
        raise DataError(
            f"expected a reference for the rule {name!r}, which reads CKA with one, got none: give one, or choose a "
            "rule that reads the model alone"
        )
    return name


def rule_by_reference(name: str) -> str:
    """Return a rule that can tell references apart: itself if it reads CKA, or else the plateau rule."""
    return name if REFERENCE in rule_curves(name) else PLATEAU


def predict(
    comparison: Comparison,
    *,
    zero_shot_validation: LayerScores | None = None,
    rule: str | None = None,
    read: Mapping[str, LayerCurve] | None = None,
) -> DropPrediction:
    """Say which layers will drop after fine-tuning, which layer to keep, and how far to trust the rule.

    Args:
        comparison: The model against an MLM reference; or against itself, each layer with the one before, for a rule
            that reads the model alone.
        zero_shot_validation: Where labels are at hand, the scores that choose the best zero-shot layer; a
            baseline beside the prediction, not part of it.
        rule: One of `rule_names`, tuned on DropBench; by default the fall of InfoNCE, or that of the effective rank
            where InfoNCE was not read.
        read: What `rule_readings` gave: what a rule reads beside CKA and diagnostics, and the errors of what it reads.

    Raises:
        DataError: If the model has fewer than three blocks, there is no such rule, or what it reads is missing.
    """
    model, reference = short_names(comparison.model.name, comparison.reference.name)
    n_blocks = comparison.model.n_blocks
    check_depth(n_blocks + 1, model)
    known = dict(read or {})
    if ranks := tuple(layer.effective_rank for layer in comparison.model_diagnostics):
        known = {**dict.fromkeys(rule_curves(WORDLESS_RULE), LayerCurve(values=ranks)), **known}
    if not comparison.alone:
        known[REFERENCE] = layer_curve(comparison.curve)
    rule = rule or (DEFAULT_RULE if set(rule_curves(DEFAULT_RULE)) <= known.keys() else WORDLESS_RULE)
    seen, tuned = ModelCurves(n_blocks=n_blocks, curves=known), tuned_rule(rule)
    call = tuned(seen)
    baselines = {"last layer": last_layer(n_blocks), "fixed fraction of depth": fixed_fraction(n_blocks)}
    if zero_shot_validation is not None:
        baselines["best zero-shot layer"] = zero_shot_validation.best_layer
    for other in DEFAULT_RULE, WORDLESS_RULE:
        if rule != other and set(rule_curves(other)) <= known.keys():
            baselines[other] = tuned_rule(other)(seen).recommended_layer
    by_plateau = None
    if not comparison.alone:
        measure = comparison.map.measure
        by_plateau = plateau_rule(
            comparison.curve,
            model=model,
            reference=reference,
            measure="CKA" if measure.name == "cka" else measure.title,
        )
        if rule == PLATEAU:
            return replace(by_plateau, baselines=baselines, record=tuned.record)
        baselines[PLATEAU] = by_plateau.recommended_layer
    numbers = {name: known[name] for name in tuned.rule.curves if name != REFERENCE}
    probability = tuned.probability(seen)
    return DropPrediction(
        drop_layers=tuple(range(call.onset, n_blocks + 1)) if call.onset is not None else (),
        onset=call.onset,
        recommended_layer=call.recommended_layer,
        rule=rule,
        evidence=by_plateau.evidence if by_plateau else None,
        sentence=call_sentence(
            rule,
            model,
            {name: curve.values for name, curve in numbers.items()},
            onset=call.onset,
            n_blocks=n_blocks,
            probability=probability,
        ),
        baselines=baselines,
        probability=probability,
        record=tuned.record,
        read={name: curve.values for name, curve in numbers.items()},
        read_uncertainty={name: curve.uncertainty for name, curve in numbers.items() if curve.uncertainty},
    )


def rule_readings(
    model: ModelLike,
    texts: Sequence[str],
    *,
    rule: str | None = None,
    task: Task | None = None,
    level: float = LEVEL,
    documents: Mapping[str, str] | None = None,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> dict[str, LayerCurve]:
    """Return what a rule reads of a model beside what a comparison has; what is in the store is not computed again.

    The effective rank and InfoNCE come with their errors.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        texts: What the model and the reference were compared on.
        rule: One of `rule_names`; by default the fall of InfoNCE, or that of the effective rank where most texts are
            one word.
        task: For a rule that reads labels.
        level: Confidence level of intervals.
        documents: Where each text comes from, if texts of one document are not independent.
        options: How to load and embed.
        progress: Told what is being done.

    Raises:
        DataError: If there is no such rule, or it needs labels and there is no task.
        LayerProbeError: If something cannot be measured; see the stages.
    """
    rule = rule or default_rule(texts)
    return read_curves(
        model,
        texts,
        [name for name in rule_curves(rule) if name != REFERENCE],
        task=task,
        level=level,
        documents=documents,
        options=options,
        progress=progress,
    )


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
    same = (model.revision, model.random_init) == (reference.revision, reference.random_init)
    if same and not comparison.alone:
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
