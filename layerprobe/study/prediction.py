"""A comparison -> which layers will drop, and what speaks against it."""

from __future__ import annotations

from layerprobe.names import short_names
from layerprobe.prediction import plateau_rule
from layerprobe.results import Comparison, DropPrediction, LayerScores, metric_title

# Zero-shot scores contradict a prediction when a flagged layer is ahead of the recommended one by this much, x 100.
CONTRADICTION = 5.0


def predict(comparison: Comparison, *, zero_shot_validation: LayerScores | None = None) -> DropPrediction:
    """Say which layers will drop after fine-tuning, and which layer to keep.

    Args:
        comparison: The model against an MLM reference.
        zero_shot_validation: Where labels are at hand, the scores that choose the best zero-shot layer; a
            baseline beside the prediction, not part of it.

    Raises:
        DataError: If the model has fewer than three blocks.
    """
    other = {} if zero_shot_validation is None else {"best zero-shot layer": zero_shot_validation.best_layer}
    model, reference = short_names(comparison.model.name, comparison.reference.name)
    found = comparison.map.measure
    return plateau_rule(
        comparison.curve,
        model=model,
        reference=reference,
        measure="CKA" if found.name == "cka" else found.title,
        other_baselines=other,
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
    if (model.revision, model.random_init) == (reference.revision, reference.random_init):
        said.append("the model was compared with itself: expected another model as the reference, such as BERT")
    if prediction.drops and comparison.reference.random_init is not None:
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
