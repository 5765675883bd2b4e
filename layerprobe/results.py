"""The frozen values that travel between stages, to and from JSON.

Knows what each stage hands to the next. All fields are plain Python values, so a result can be written down,
compared and read back; arrays of embeddings stay in the store. Layers count from 0, the output of the
embedding module; truncating at layer l keeps the embeddings and blocks 1 .. l.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from layerprobe.errors import DataError, ModelError

T = TypeVar("T")

Pooling = Literal["mean", "cls", "max", "last"]
Kernel = Literal["linear", "rbf"]
Estimator = Literal["debiased", "biased"]
Alignment = Literal["same-index", "relative-depth", "best-match"]
Verdict = Literal["confirmed", "refuted", "undecided"]

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")


def check_attn(attn: str) -> None:
    """Check the name of an attention implementation: auto, one of transformers, or a kernel on the hub.

    Raises:
        ModelError: If it is none of these.
    """
    if attn != "auto" and attn not in ATTENTION and not re.fullmatch(r"[^/\s]+/[^/\s]+", attn):
        raise ModelError(f"expected attn auto, {', '.join(ATTENTION)} or a kernel such as org/name, got {attn!r}")


# ---- tasks --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePairs:
    """Sentence pairs with their gold similarity."""

    first: tuple[str, ...]
    """The first sentence of every pair."""
    second: tuple[str, ...]
    """The second sentence of every pair."""
    scores: tuple[float, ...]
    """Gold similarity, scaled to 0 .. 1."""

    def __post_init__(self) -> None:
        if not len(self.first) == len(self.second) == len(self.scores):
            lengths = len(self.first), len(self.second), len(self.scores)
            raise DataError(f"expected as many first as second sentences and scores, got {lengths}")

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct sentences in order of first appearance, pair by pair."""
        return tuple(dict.fromkeys(text for pair in zip(self.first, self.second, strict=True) for text in pair))


@dataclass(frozen=True, slots=True, kw_only=True)
class STSTask:
    """Semantic textual similarity: pairs to train on, to select on and to report."""

    name: str
    """As the user gave it."""
    train: SentencePairs
    """Fine-tuning sees these."""
    validation: SentencePairs
    """Epochs and layers are selected on these."""
    test: SentencePairs
    """Scores are reported on these; their texts are what CKA compares models on."""
    score_range: tuple[float, float]
    """What 0 and 1 were in the source."""
    notes: tuple[str, ...] = ()
    """How the data was understood, in plain words."""
    warnings: tuple[str, ...] = ()
    """What was changed in the data or left out, with counts."""

    @property
    def digest(self) -> str:
        """Return a sha256 of all sentences and scores."""
        return digest([self.train, self.validation, self.test])


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """Texts without scores, to extract embeddings of."""

    name: str
    """As the user gave it."""
    texts: tuple[str, ...]
    """In the order of the file; the same text can occur more than once."""
    warnings: tuple[str, ...] = ()
    """What was changed in the data or left out, with counts."""


# ---- models -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What a loaded encoder is."""

    name: str
    """Hub id, id@revision or folder, as the user gave it, with the seed where weights are random."""
    revision: str
    """Resolved commit, or the content digest of a local folder."""
    architecture: str
    """Hugging Face's model type."""
    n_blocks: int
    """Transformer blocks; layers count from 0 to this."""
    hidden_size: int
    """Features of a layer."""
    norm: Literal["none", "final", "raw"]
    """none: post-norm; final: the model's final norm is applied at every layer; raw: it was left out."""
    dtype: str
    """What the forward pass computes in."""
    parameters: tuple[int, ...]
    """Parameters of the model truncated at each layer, without the pooler."""
    random_init: int | None = None
    """Seed of random weights; None for trained ones."""

    def __post_init__(self) -> None:
        if self.n_blocks < 0 or len(self.parameters) != self.n_layers:
            raise DataError(
                f"expected the parameters of layers 0 to {self.n_blocks} of {self.name}, got {len(self.parameters)}"
            )

    @property
    def n_layers(self) -> int:
        """Blocks and the embedding output."""
        return self.n_blocks + 1


# ---- similarity ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CKAMap:
    """CKA of every layer of one model against every layer of another."""

    values: tuple[tuple[float, ...], ...]
    """values[i][j]: layer i of the model against layer j of the reference; debiased values can be negative."""
    kernel: Kernel
    """linear, or rbf with K = exp(-d^2 / (2 sigma^2))."""
    estimator: Estimator
    """debiased (Song et al. 2012) or biased (Gretton et al. 2005)."""
    n_samples: int
    """Distinct texts."""
    bandwidth_multiplier: float | None = None
    """rbf: sigma = multiplier x the square root of the median of d^2 over i < j."""
    sigma_squared: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """rbf: sigma^2 of every layer of the model and of the reference."""

    def __post_init__(self) -> None:
        widths = sorted({len(row) for row in self.values})
        if len(widths) != 1 or widths == [0]:
            raise DataError(f"expected a CKA map with rows of one length, got rows of lengths {widths}")
        if self.kernel == "rbf" and self.bandwidth_multiplier is None:
            raise DataError("expected a bandwidth multiplier for an rbf CKA map, got none")
        if self.sigma_squared is not None and tuple(map(len, self.sigma_squared)) != self.shape:
            raise DataError(
                f"expected a sigma^2 for each of {self.shape} layers, got {tuple(map(len, self.sigma_squared))}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Layers of the model and of the reference."""
        return len(self.values), len(self.values[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class CKACurve:
    """One CKA value for every layer of a model."""

    values: tuple[float, ...]
    """By layer of the model."""
    reference_layers: tuple[int, ...]
    """The layer of the reference that each layer is compared with."""
    alignment: Alignment
    """How those were chosen."""

    def __post_init__(self) -> None:
        if not self.values or len(self.values) != len(self.reference_layers):
            raise DataError(
                f"expected a CKA curve with a reference layer for each value, got {len(self.values)} values and "
                f"{len(self.reference_layers)} reference layers"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two models compared on the same texts."""

    model: ModelDescription
    reference: ModelDescription
    texts_digest: str
    """sha256 of the texts that both embedded."""
    pooling: Pooling
    cka: CKAMap
    curve: CKACurve

    def __post_init__(self) -> None:
        expected = self.model.n_layers, self.reference.n_layers
        if self.cka.shape != expected:
            raise DataError(f"expected a CKA map of {expected} layers of model and reference, got {self.cka.shape}")
        if len(self.curve.values) != self.model.n_layers:
            raise DataError(f"expected a CKA curve of {self.model.n_layers} layers, got {len(self.curve.values)}")
        _check_layers(self.curve.reference_layers, self.reference, what="reference layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScores:
    """How well the cosine of untrained embeddings ranks sentence pairs, layer by layer."""

    split: str
    """validation or test."""
    spearman: tuple[float, ...]
    """By layer, x 100."""
    pearson: tuple[float, ...]
    """By layer, x 100."""

    def __post_init__(self) -> None:
        if not self.spearman or len(self.spearman) != len(self.pearson):
            raise DataError(
                f"expected a Spearman and a Pearson score of every layer, got {len(self.spearman)} and "
                f"{len(self.pearson)}"
            )

    @property
    def best_layer(self) -> int:
        """The layer with the highest Spearman, the earlier one of equals."""
        return max(range(len(self.spearman)), key=lambda layer: (self.spearman[layer], -layer))


# ---- prediction ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The numbers behind a prediction."""

    plateau_layers: tuple[int, ...]
    """The layers just before the decline."""
    plateau: float
    """Their median CKA, from which the decline is measured."""
    decline: float
    """The plateau less CKA at the last layer; negative where the curve rises."""
    wobble: float
    """The median change from layer to layer before the decline."""
    threshold: float
    """How far below the plateau every layer of the decline must lie."""

    def __post_init__(self) -> None:
        if not self.plateau_layers:
            raise DataError("expected at least one plateau layer, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPrediction:
    """Which layers are expected to score lower after fine-tuning than an earlier one."""

    drop_layers: tuple[int, ...]
    """The final run of flagged layers; empty where no drop is expected."""
    onset: int | None
    """The first drop layer."""
    recommended_layer: int
    """Where to truncate."""
    rule: str
    """Name of the rule."""
    evidence: Evidence
    sentence: str
    """The prediction in plain words."""
    baselines: dict[str, int]
    """Layers that simpler ways recommend: last layer, best zero-shot layer, fixed fraction of depth."""

    def __post_init__(self) -> None:
        first = self.drop_layers[0] if self.drop_layers else None
        if self.onset != first:
            raise DataError(f"expected the first drop layer, {first}, as onset, got {self.onset}")

    @property
    def drops(self) -> bool:
        """Whether any layer is flagged."""
        return bool(self.drop_layers)


# ---- fine-tuning --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a truncated model is fine-tuned; the defaults are those of arXiv 2402.13130."""

    learning_rate: float = 2e-5
    """Peak of AdamW's linear schedule."""
    weight_decay: float = 0.01
    """On everything but biases and norms."""
    epochs: int = 10
    """Passes over the training pairs."""
    batch_size: int = 32
    """Pairs a step."""
    warmup: float = 0.1
    """Share of the steps with a rising learning rate."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    max_length: int = 128
    """Tokens a sentence at most."""
    pooling: Pooling = "mean"
    """How token states become one embedding."""

    def __post_init__(self) -> None:
        expected = {
            "a learning rate above 0": 0 < self.learning_rate < math.inf,
            "a weight decay of 0 or more": 0 <= self.weight_decay < math.inf,
            "at least one epoch": self.epochs >= 1,
            "at least one pair a batch": self.batch_size >= 1,
            "a warm-up from 0 to 1": 0 <= self.warmup <= 1,
            "a gradient norm above 0": 0 < self.max_grad_norm < math.inf,
            "room for at least two tokens": self.max_length >= 2,
            f"pooling by one of {typing.get_args(Pooling)}": self.pooling in typing.get_args(Pooling),
        }
        wrong = [what for what, holds in expected.items() if not holds]
        if wrong:
            raise DataError(f"expected {' and '.join(wrong)}, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """What one epoch of fine-tuning left."""

    epoch: int
    """From 1."""
    train_loss: float
    """Mean squared error between cosine and gold score over the epoch."""
    validation_spearman: float
    """x 100."""
    validation_pearson: float
    """x 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningRun:
    """One truncated model, fine-tuned with one seed; scores are those of the best epoch by validation."""

    layer: int
    seed: int
    protocol: Protocol
    parameters: int
    """Of the truncated model, without the pooler."""
    best_epoch: int
    """The epoch with the highest validation Spearman."""
    validation_spearman: float
    validation_pearson: float
    test_spearman: float
    test_pearson: float
    epochs: tuple[EpochMetrics, ...]
    seconds: float
    """Wall time of the run."""
    peak_memory: int | None
    """Bytes: the peak allocation on CUDA, else the peak resident size of the process; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOutcome:
    """The fine-tuning runs of one layer, put together."""

    layer: int
    parameters: int
    seeds: tuple[int, ...]
    test_spearman: tuple[float, ...]
    """By seed, x 100."""
    validation_spearman: tuple[float, ...]
    """By seed, x 100."""
    mean: float
    """Of the test Spearman."""
    std: float | None
    """Of the test Spearman; None for one seed."""
    interval: tuple[float, float] | None
    """Of the mean, Student's t at the level of the confirmation; None for one seed."""

    def __post_init__(self) -> None:
        lengths = len(self.seeds), len(self.test_spearman), len(self.validation_spearman)
        if not self.seeds or len(set(lengths)) > 1:
            raise DataError(f"expected seeds with a test and a validation score each, got {lengths}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What fine-tuning says about a prediction."""

    verdict: Verdict
    """confirmed, refuted or undecided."""
    compared_layers: tuple[int, int]
    """The recommended layer and the layer it is held against."""
    effect: float
    """Mean test Spearman of the first less the second, over paired seeds, x 100."""
    interval: tuple[float, float] | None
    """Of the effect, paired Student's t; None for one seed."""
    level: float
    """Confidence level of the intervals, such as 0.95."""
    outcomes: tuple[LayerOutcome, ...]
    """By layer, ascending."""
    sentence: str
    """The verdict in plain words."""


# ---- the study ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What somebody needs to get the same numbers again."""

    layerprobe: str
    """Version."""
    created: str
    """ISO 8601, UTC."""
    command: str
    """What was asked for, as one line."""
    settings: dict[str, str]
    """Options that were not left at their default, by name."""
    task: str
    task_digest: str
    texts_digest: str
    n_texts: int
    seeds: tuple[int, ...]
    device: str
    versions: dict[str, str]
    """Of Python and the libraries that the numbers depend on."""
    notes: tuple[str, ...] = ()
    """How the data was understood."""
    warnings: tuple[str, ...] = ()
    """What the user was warned of on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The whole pipeline's result: what the report shows."""

    comparison: Comparison
    prediction: DropPrediction
    provenance: Provenance
    zero_shot: LayerScores | None = None
    """Of the model, on the test split."""
    reference_zero_shot: LayerScores | None = None
    """Of the reference, on the test split."""
    protocol: Protocol | None = None
    """How layers were fine-tuned."""
    confirmation: Confirmation | None = None
    reference_outcomes: tuple[LayerOutcome, ...] = ()
    """The reference fine-tuned at its own layers, where that was asked for."""

    def __post_init__(self) -> None:
        model, reference, found = self.comparison.model, self.comparison.reference, self.prediction
        _check_layers(found.drop_layers, model, what="drop layers")
        _check_layers((found.recommended_layer,), model, what="a recommended layer")
        _check_layers(found.evidence.plateau_layers, model, what="plateau layers")
        _check_layers(tuple(found.baselines.values()), model, what="layers of baselines")
        for scores, scored in (self.zero_shot, model), (self.reference_zero_shot, reference):
            if scores is not None and len(scores.spearman) != scored.n_layers:
                raise DataError(
                    f"expected zero-shot scores of {scored.n_layers} layers of {scored.name}, "
                    f"got {len(scores.spearman)}"
                )
        if self.confirmation is not None:
            tuned = (*self.confirmation.compared_layers, *(outcome.layer for outcome in self.confirmation.outcomes))
            _check_layers(tuned, model, what="fine-tuned layers")
        _check_layers(tuple(outcome.layer for outcome in self.reference_outcomes), reference, what="fine-tuned layers")


def _check_layers(layers: tuple[int, ...], model: ModelDescription, *, what: str) -> None:
    wrong = [layer for layer in layers if not 0 <= layer < model.n_layers]
    if wrong:
        raise DataError(f"expected {what} from 0 to {model.n_blocks} of {model.name}, got {', '.join(map(str, wrong))}")


# ---- JSON ---------------------------------------------------------------------------------------------


def to_dict(value: Any) -> Any:
    """Return `value` as what `json` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    return value


def to_json(value: Any) -> str:
    """Return `value` as JSON text that UTF-8 can encode.

    Raises:
        DataError: If a number is not finite: results never hold NaN.
    """
    return to_bytes(value).decode()


def to_bytes(value: Any) -> bytes:
    r"""Return `value` as JSON in UTF-8.

    A folder name that is no UTF-8 holds lone surrogates; they are written as JSON's escape, such as `\udc80`.

    Raises:
        DataError: If a number is not finite: results never hold NaN.
    """
    try:
        text = json.dumps(to_dict(value), indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise DataError(f"expected finite numbers in a {type(value).__name__}, got NaN or infinity") from error
    return text.encode("utf-8", "backslashreplace")


def from_json(kind: type[T], text: str) -> T:
    """Return the value of type `kind` that `to_json` wrote.

    Raises:
        DataError: If the text is not JSON, or not of that type.

    Example:
        >>> from_json(Protocol, to_json(Protocol(epochs=3))).epochs
        3
    """
    try:
        return typing.cast(T, _build(kind, json.loads(text)))
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"expected a {kind.__name__} as JSON: {error}") from error


def _build(kind: Any, data: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if data is None:
            return None
        (kind,) = (option for option in arguments if option is not type(None))
        return _build(kind, data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        values = _checked(dict, data)
        if unknown := values.keys() - hints.keys():
            raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
        needed = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory}  # neither is given
        if missing := needed - values.keys():
            raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
        return kind(**{name: _build(hints[name], item) for name, item in values.items()})
    if origin is tuple:
        items = _checked(list, data)
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else arguments
        if len(items) != len(kinds):
            raise ValueError(f"{_shown(data)} has {len(items)} items, not {len(kinds)}")
        return tuple(_build(item_kind, item) for item_kind, item in zip(kinds, items, strict=True))
    if origin is dict:
        return {key: _build(arguments[1], item) for key, item in _checked(dict, data).items()}
    if origin is Literal:
        if data not in arguments:
            raise ValueError(f"{_shown(data)} is none of {arguments}")
        return data
    if kind is float and type(data) is int and abs(data) < 2**1023:
        return float(data)
    if kind is float and not math.isfinite(_checked(float, data)):
        raise ValueError(f"{data} is not finite")
    return _checked(kind, data)


def _checked(kind: type[T], data: Any) -> T:
    # exactly that type: True is no int here
    if type(data) is not kind:
        raise TypeError(f"{_shown(data)} is no {kind.__name__}")
    return data


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."


def digest(value: Any) -> str:
    """Return the sha256 of a value's JSON form, keys sorted."""
    text = json.dumps(to_dict(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
