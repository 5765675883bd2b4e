"""A prediction in plain words. Knows what a rule measured, not how."""

from collections.abc import Mapping, Sequence

from layerprobe.names import listed
from layerprobe.prediction.values import LOOK_FIRST, DropPrediction, Evidence, Record, RecordPart
from layerprobe.readings.registry import READINGS
from layerprobe.readings.values import DIGITS
from layerprobe.results.numbers import capitalised


def drop_sentence(
    values: Sequence[float], evidence: Evidence, *, model: str, reference: str, measure: str, onset: int
) -> str:
    """Return what was predicted, and why; an onset behind the last layer is no drop."""
    last = len(values) - 1
    if onset > last:
        return (
            f"No drop is expected: {measure} of {model} with {reference} falls no more in the final layers than it "
            f"varies before them ({values[-1]:.2f} at layer {last}); {_keep_last(last)}"
        )
    decline = ""
    if evidence.decline_interval is not None:
        low, high = evidence.decline_interval
        decline = f"by {evidence.decline:.2f} [{low:.2f}, {high:.2f}], "
    return _look_first(
        model,
        f"{measure} with {reference} falls from {evidence.plateau:.2f} ({layer_span(evidence.plateau_layers)}) to "
        f"{values[-1]:.2f} at layer {last}, {decline}where {evidence.threshold:.2f} counts as a fall. ",
        range(onset, last + 1),
    )


def _keep_last(last: int) -> str:
    return f"layer {last}, the last one, is recommended; confirm it by fine-tuning."


def _look_first(model: str, grounds: str, flagged: range) -> str:
    """Return where to look first, why, and that a flag is no more than that."""
    are, they = ("is", "it scores") if len(flagged) == 1 else ("are", "they score")
    return (
        f"{LOOK_FIRST}: layer {flagged[0] - 1} of {model}. {grounds}{capitalised(layer_span(flagged))} {are} "
        f"flagged; whether {they} lower after fine-tuning, only fine-tuning can say."
    )


def call_sentence(
    model: str, read: Mapping[str, Sequence[float]], *, onset: int | None, n_blocks: int, first: int = 0
) -> str:
    """Return a DropBench-tuned rule's call for a model, with the curves that it read besides CKA.

    Examples:
        >>> call_sentence("electra", {}, onset=None, n_blocks=12)
        'No drop of electra is expected; layer 12, the last one, is recommended; confirm it by fine-tuning.'
    """
    curves = highest_and_last(read, first=max(first, 1))
    if onset is None:
        return f"No drop of {model} is expected{f' ({curves})' if read else ''}; {_keep_last(n_blocks)}"
    return _look_first(model, f"{capitalised(curves)}. " if read else "", range(onset, n_blocks + 1))


def highest_and_last(read: Mapping[str, Sequence[float]], *, first: int = 0) -> str:
    """Return where each of some curves is highest, from a layer on, and where it ends.

    Examples:
        >>> highest_and_last({"InfoNCE": (1.0, 2.0, 1.5), "LiDAR": (3.0, 4.0, 5.0)})
        'InfoNCE falls by 0.5 nats, from 2 at layer 1 to 1.5 at layer 2; LiDAR is highest at the last layer, 2, 5'
    """
    return "; ".join(_highest_and_last(name, values, first) for name, values in read.items())


def _highest_and_last(name: str, values: Sequence[float], first: int) -> str:
    highest, last = max(range(first, len(values)), key=values.__getitem__), len(values) - 1
    if values[highest] == values[last]:
        return f"{name} is highest at the last layer, {last}, {values[last]:{DIGITS}}"
    fall, unit = f"{values[highest] - values[last]:{DIGITS}}", READINGS[name].unit if name in READINGS else ""
    return (
        f"{name} falls by {f'{fall} {unit}'.strip()}, from {values[highest]:{DIGITS}} at layer {highest} to "
        f"{values[last]:{DIGITS}} at layer {last}"
    )


def record_sentence(rule: str, record: Record) -> str:
    """Return how well a rule does on DropBench: on the encoders that it was chosen by, and on others."""
    if not record.parts:
        return (
            f"On DropBench, {record.models} small encoders of {record.families} pretraining objectives under "
            f'{record.budget} fine-tuning, the rule "{rule}" {_flags(record)}; its layer is '
            f"{record.mean_regret:.1f} points below the best on average (median {record.median_regret:.1f})."
        )
    parts = "; ".join(map(_of_part, record.parts))
    return f'The rule "{rule}" on DropBench, under {record.budget} fine-tuning: {parts}.{_worth(record)}'


def _of_part(part: RecordPart) -> str:
    if not part.drops:
        return f"on {part.models} {part.encoders}, none of which drops, it flags {part.false_alarms or 'none'}"
    return (
        f"on {part.models} {part.encoders}, it {_flags(part)}, and its layer is {part.mean_regret:.1f} points below "
        f"the best (the last layer {part.last_regret:.1f})"
    )


def _flags(record: Record | RecordPart) -> str:
    others = record.models - record.drops
    return f"flags {record.caught} of {record.drops} that drop and {record.false_alarms} of {others} that do not"


def _worth(record: Record) -> str:
    """Warn that the flag is uninformative where the rule flags every encoder of this kind."""
    dropping = [part for part in record.parts if part.drops]
    if not dropping or any(part.caught + part.false_alarms < part.models for part in dropping):
        return ""
    return " It flags every small pretrained encoder, dropping or not: the flag says nothing there, its layer does."


def trusted(prediction: DropPrediction) -> tuple[str, ...]:
    """Return what is predicted, how far to trust the rule, and last of how many texts it is: a sentence each."""
    record = prediction.record
    sentences = ("" if record is None else record_sentence(prediction.rule, record), texts_sentence(prediction))
    return (prediction.sentence, *filter(None, sentences))


def texts_sentence(prediction: DropPrediction) -> str:
    """Return how many texts were read, and how often others like these say the same, as far as that is known."""
    read = ""
    if prediction.n_texts is not None:
        n, available = prediction.n_texts
        read = f"Read {f'{n:,} of' if n < available else 'all'} {available:,} texts."
    if prediction.same is None:
        return read
    return (
        f"{read} Resampled, the texts give the same layer {_share(prediction.same)} of the time: the same for other "
        "texts like these, which does not make it right."
    ).strip()


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
