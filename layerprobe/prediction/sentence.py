"""A prediction in plain words. Knows what a rule measured, not how."""

from collections.abc import Mapping, Sequence

from layerprobe.names import counted, listed
from layerprobe.prediction.values import DropPrediction, DropProbability, Evidence, Record
from layerprobe.readings.values import DIGITS


def drop_sentence(
    values: Sequence[float],
    evidence: Evidence,
    *,
    model: str,
    reference: str,
    measure: str,
    onset: int,
    probability: DropProbability | None,
) -> str:
    """Return what was predicted, why, and how sure the curve is of it; an onset behind the last layer is no drop."""
    last = len(values) - 1
    if onset > last:
        return (
            f"No drop is expected: {measure} of {model} with {reference} falls no more in the final layers than it "
            f"varies before them ({values[-1]:.2f} at layer {last}); {_recommended(last, probability, 'the last one')}"
        )
    decline = ""
    if evidence.decline_interval is not None:
        low, high = evidence.decline_interval
        decline = f"by {evidence.decline:.2f} [{low:.2f}, {high:.2f}], "
    return (
        f"A drop after fine-tuning is expected at {layer_span(range(onset, last + 1))} of {model}: "
        f"{measure} with {reference} falls from {evidence.plateau:.2f} "
        f"({layer_span(evidence.plateau_layers)}) to {values[-1]:.2f} at layer {last}, {decline}where "
        f"{evidence.threshold:.2f} counts as a drop; {_recommended(onset - 1, probability)}"
    )


def _recommended(layer: int, probability: DropProbability | None, which: str = "the last one before it") -> str:
    said = f"layer {layer}, {which}, is recommended"
    if probability is None:
        return f"{said}; confirm it by fine-tuning."
    return (
        f"{said}. {_redrawn(probability)}, and layer {layer} is recommended in "
        f"{_share(probability.recommended[layer])}. That accounts for sampling error only: confirm it by fine-tuning."
    )


def call_sentence(
    model: str,
    read: Mapping[str, Sequence[float]],
    *,
    onset: int | None,
    n_blocks: int,
    probability: DropProbability | None = None,
    first: int = 0,
) -> str:
    """Return what a rule tuned on DropBench says of a model, and what it read besides CKA, from a layer on.

    Examples:
        >>> call_sentence("electra", {}, onset=None, n_blocks=12)
        'No drop of electra is expected; layer 12, the last one, is recommended; confirm it by fine-tuning.'
    """
    curves = f" ({highest_and_last(read, first=first)})" if read else ""
    if onset is None:
        return f"No drop of {model} is expected{curves}; {_recommended(n_blocks, probability, 'the last one')}"
    return (
        f"A drop after fine-tuning is expected at {layer_span(range(onset, n_blocks + 1))} of {model}{curves}; "
        f"{_recommended(onset - 1, probability)}"
    )


def highest_and_last(read: Mapping[str, Sequence[float]], *, first: int = 0) -> str:
    """Return where each of some curves is highest, from a layer on, and where it ends.

    Examples:
        >>> highest_and_last({"curvature": (1.0, 2.0, 1.5), "effective rank": (3.0, 4.0, 5.0)})
        'curvature is highest at layer 1, 2, and 1.5 at layer 2; effective rank is highest at the last layer, 2, 5'
    """
    return "; ".join(_highest_and_last(name, values, first) for name, values in read.items())


def _highest_and_last(name: str, values: Sequence[float], first: int) -> str:
    highest, last = max(range(first, len(values)), key=values.__getitem__), len(values) - 1
    if highest == last:
        return f"{name} is highest at the last layer, {last}, {values[last]:{DIGITS}}"
    return (
        f"{name} is highest at layer {highest}, {values[highest]:{DIGITS}}, and {values[last]:{DIGITS}} at layer {last}"
    )


def record_sentence(rule: str, record: Record) -> str:
    """Return how well a rule does on DropBench."""
    others = record.models - record.drops
    alarms = counted(record.false_alarms, "false alarm")
    return (
        f"On DropBench, {record.models} small encoders of {record.families} pretraining objectives under "
        f'{record.budget} fine-tuning, the rule "{rule}" detects {record.caught} of {record.drops} drops, with '
        f"{alarms} among {others} models without one; its layer is {record.mean_regret:.1f} points below the best on "
        f"average (median {record.median_regret:.1f})."
    )


def trusted(prediction: DropPrediction) -> tuple[str, ...]:
    """Return what is predicted, from how many texts, and how far to trust the rule: a sentence each."""
    record = prediction.record
    said = (texts_sentence(prediction), "" if record is None else record_sentence(prediction.rule, record))
    return (prediction.sentence, *filter(None, said))


def texts_sentence(prediction: DropPrediction) -> str:
    """Return how many texts were read, and how certain that made the prediction; nothing where it is not known."""
    if prediction.n_texts is None:
        return ""
    (n, there), same = prediction.n_texts, prediction.same
    certain = "" if same is None else f": the prediction is the same in {_share(same)} of bootstrap samples"
    return f"Read {f'{n:,} of' if n < there else 'all'} {there:,} texts{certain}."


def _redrawn(probability: DropProbability) -> str:
    return f"In {_share(probability.any_drop)} of bootstrap samples, a drop is flagged"


def _share(share: float) -> str:
    """Return a share in whole percent; draws cannot tell all from nearly all.

    Examples:
        >>> _share(0.976), _share(1.0), _share(0.0)
        ('98%', 'over 99%', 'under 1%')
    """
    if share >= 0.995:
        return "over 99%"
    return f"{share:.0%}" if share >= 0.005 else "under 1%"


def layer_span(layers: Sequence[int]) -> str:
    """Return layers in words, by their ends where they are side by side.

    Examples:
        >>> layer_span([8]), layer_span([2, 3, 4]), layer_span([9, 11])
        ('layer 8', 'layers 2 to 4', 'layers 9 and 11')
    """
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}" if len(layers) > layers[-1] - layers[0] else f"layers {listed(layers)}"
