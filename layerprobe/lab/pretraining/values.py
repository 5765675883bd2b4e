"""Objectives, settings and results of pretraining, from scratch or of an existing model (adaptation).

Describes objectives without implementing them: nothing here imports torch, so `--help` is fast.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from layerprobe.encoders.model import ModelDescription, described
from layerprobe.errors import DataError
from layerprobe.files.serialisation import to_dict
from layerprobe.finetuning.values import check_protocol
from layerprobe.registry import Registry
from layerprobe.results.conclusion import Check, Conclusion, Fact, Verdict, counts
from layerprobe.results.shown import Shown
from layerprobe.results.table import Chart, Line, Quantity, Table, columns_of

if TYPE_CHECKING:
    from transformers import ElectraModel

    from layerprobe.lab.pretraining.masking import Masking, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The parts of an objective after some steps, each by its name and metric, such as mlm_loss.

    A loss is the mean over its positions, in nats. The held-out set also has rates, 0 .. 1: accuracy,
    and for detection of replaced tokens precision, recall and the share replaced.
    """

    step: int
    """Number of steps taken; 0 is the initial model."""
    train: dict[str, float]
    """Mean losses since the last evaluation; empty at the beginning."""
    held_out: dict[str, float | None]
    """Losses and rates of the held-out set, always with the same masks; None for a rate without counts."""


def masking_in_range(protocol: Any) -> dict[str, bool]:
    """Return the expectations of a protocol that masks tokens, and whether they hold."""
    shares = (protocol.random_share, protocol.kept_share)
    return {
        "at least one batch a step": protocol.accumulation >= 1,
        "a masking rate above 0, at most 1": 0 < protocol.masking_rate <= 1,
        "random and kept shares from 0, together at most 1": min(shares) >= 0 and sum(shares) <= 1,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingObjective:
    """A pretraining objective of a small encoder."""

    about: str
    """Description of the training, as in: It was trained to fill in masked tokens."""
    builder: str | None
    """`module:attribute` of a function from an encoder, the protocol and its masking to the `Objective`; None without
    training. Torch's generator is seeded before the call."""
    has_generator: bool = False
    """Whether a generator is trained as well."""

    def build(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> Objective:
        """Return the objective with `encoder` and a new head; ValueError if it trains nothing."""
        if self.builder is None:
            raise ValueError(f"expected an objective that trains, got one whose encoder is {self.about}")
        builder: Callable[[Any, Any, Any], Objective] = pkgutil.resolve_name(self.builder)
        return builder(encoder, protocol, masking)


MLM = PretrainingObjective(
    about="trained to fill in masked tokens (BERT)", builder=f"{__package__}.models:masked_language_modelling"
)
RTD = PretrainingObjective(
    about="trained to detect tokens replaced by samples of a small generator (ELECTRA)",
    builder=f"{__package__}.models:ReplacedTokenDetection",
    has_generator=True,
)
ELECTRA_15 = PretrainingObjective(
    about="trained like ELECTRA, with the discriminator's loss at the masked positions only",
    builder=f"{__package__}.models:masked_token_detection",
    has_generator=True,
)
REPLACE_MLM = PretrainingObjective(
    about="trained to fill in masked tokens that were replaced by samples of a small generator",
    builder=f"{__package__}.models:ReplaceMLM",
    has_generator=True,
)
ALL_TOKENS_MLM = PretrainingObjective(
    about="trained to predict every token, with a copy mechanism, from a text whose masked tokens are samples of a "
    "small generator",
    builder=f"{__package__}.models:AllTokensMLM",
    has_generator=True,
)
RANDOM = PretrainingObjective(about="not trained: its weights are random", builder=None)

OBJECTIVES = Registry(
    "layerprobe.objectives",
    PretrainingObjective,
    what="pretraining objective",
    shipped={
        "mlm": f"{__name__}:MLM",
        "rtd": f"{__name__}:RTD",
        "electra-15": f"{__name__}:ELECTRA_15",
        "replace-mlm": f"{__name__}:REPLACE_MLM",
        "all-tokens-mlm": f"{__name__}:ALL_TOKENS_MLM",
        "random": f"{__name__}:RANDOM",
    },
)


LANGUAGE = "language"
"""Name of the embedded language as a corpus or a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSize:
    """The shape of an encoder."""

    n_blocks: int
    hidden_size: int
    """Features of a layer, and of the embeddings."""
    heads: int
    """Attention heads; they divide the hidden size."""
    intermediate_size: int
    """Features between the two matrices of a feed-forward part."""

    def __post_init__(self) -> None:
        if min(self.n_blocks, self.hidden_size, self.heads, self.intermediate_size) < 1:
            raise DataError(f"expected at least one block, feature and head, got {self}")
        if self.hidden_size % self.heads:
            raise DataError(
                f"expected a hidden size that {self.heads} attention heads divide, got {self.hidden_size}: "
                "change one of the two"
            )

    def scaled(self, fraction: float) -> EncoderSize:
        """Return the size of a generator: width, heads and intermediate size times `fraction`, with the same depth.

        Examples:
            >>> EncoderSize(n_blocks=8, hidden_size=128, heads=4, intermediate_size=512).scaled(0.25)
            EncoderSize(n_blocks=8, hidden_size=32, heads=1, intermediate_size=128)
        """
        hidden = max(1, round(fraction * self.hidden_size))
        heads = max(1, round(fraction * self.heads))
        while hidden % heads:
            heads -= 1
        intermediate = max(1, round(fraction * self.intermediate_size))
        return replace(self, hidden_size=hidden, heads=heads, intermediate_size=intermediate)


# 8 blocks resolve the depth of effects; small has the shape of ELECTRA-small.
SIZES = {
    "tiny": EncoderSize(n_blocks=8, hidden_size=96, heads=4, intermediate_size=384),
    "mini": EncoderSize(n_blocks=8, hidden_size=128, heads=4, intermediate_size=512),
    "small": EncoderSize(n_blocks=12, hidden_size=256, heads=4, intermediate_size=1024),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingProtocol:
    """How a small encoder is pretrained."""

    objective: str = "mlm"
    """One of `OBJECTIVES`."""
    size: EncoderSize = SIZES["mini"]
    generator_size: float = 0.25
    """Width of the generator as a share of the encoder's, such as 0.25. Without effect where an objective has none."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss. Without effect where an objective has none."""
    steps: int = 6000
    """Optimiser steps. Without effect where the objective trains nothing."""
    batch_size: int = 64
    """Sequences a forward pass."""
    accumulation: int = 1
    """Forward passes a step."""
    learning_rate: float = 1e-3
    """Peak of AdamW's linear schedule."""
    warmup: float = 0.1
    """Share of the steps with a rising learning rate."""
    weight_decay: float = 0.01
    """Weight decay of matrices. Norms, and biases that are vectors, have none."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    dropout: float = 0.0
    """Dropout of all layers and attention weights. The papers have 0.1; small models that see a text once or twice
    underfit."""
    masking_rate: float = 0.15
    """Probability of a token to be masked."""
    random_share: float = 0.1
    """Share of those that are shown as a random token; without effect with a generator."""
    kept_share: float = 0.1
    """Share of those that are shown as they are; the rest is shown as the mask. Without effect with a generator."""
    vocab_size: int = 8000
    """Words at most of the tokenizer that is trained on the texts. The language has its own."""
    max_length: int = 128
    """Tokens a sequence at most. The encoder has as many positions."""
    packed: bool = False
    """Join texts to sequences of about max-length tokens."""
    held_out: int = 1000
    """Sequences to hold out; of texts a tenth of all where that is less."""

    def __post_init__(self) -> None:
        OBJECTIVES.check(self.objective)
        checks = {
            "a generator size above 0, at most 4": 0 < self.generator_size <= 4,
            "a discriminator weight above 0": 0 < self.discriminator_weight < math.inf,
            "at least one step": self.steps >= 1,
            "a dropout from 0, below 1": 0 <= self.dropout < 1,
            **masking_in_range(self),
            "room for at least three tokens": self.max_length >= 3,
            "at least 10 words": self.vocab_size >= 10,
            "at least one held-out sequence": self.held_out >= 1,
        }
        check_protocol(self, checks, example="sequence")

    @property
    def has_generator(self) -> bool:
        """Whether the objective trains a generator as well."""
        return OBJECTIVES[self.objective].has_generator

    @property
    def generator(self) -> EncoderSize | None:
        """The generator's size; None if the objective has none."""
        return self.size.scaled(self.generator_size) if self.has_generator else None


def _provenance(training: Pretraining | Adaptation) -> dict[str, str]:
    """Return the settings of a training, its device and its versions."""
    settings = to_dict(training.protocol).items()
    return {
        "Settings": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings),
        "Seed": str(training.seed),
        "Computed on": training.computed_on,
        "Versions": ", ".join(f"{name} {version}" for name, version in training.versions.items()),
        "Created": training.created,
    }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pretraining(Shown):
    """A pretrained small encoder: its settings and its metrics during training."""

    protocol: PretrainingProtocol
    seed: int
    """Seed of weights, split, order, masking, sampling and dropout."""
    corpus: str
    """Source of the texts."""
    corpus_digest: str
    """sha256 of the distinct texts."""
    tokenizer_digest: str
    """sha256 of the tokenizer's content."""
    vocab_size: int
    """Number of words of the tokenizer."""
    n_texts: int
    """Number of training sequences."""
    n_held_out: int
    """Number of held-out sequences."""
    n_tokens: int
    """Number of training tokens, without padding."""
    encoder_parameters: int
    """Number of parameters of the encoder."""
    trained_parameters: int
    """Number of parameters of all models with their heads, counting shared ones once."""
    computed_on: str
    """Kind of device and precision."""
    metrics: tuple[StepMetrics, ...]
    """Metrics before, during and after training, by step; empty if nothing is trained."""
    seconds: float
    """Seconds of training and evaluation, summed over all parts of an interrupted run."""
    tokens_per_second: float
    """Speed of training, without padding; 0 if nothing is trained."""
    fingerprint: str
    """sha256 of everything the weights depend on."""
    versions: dict[str, str]
    """Versions of the libraries that affect the numbers."""
    created: str
    """ISO 8601, UTC."""
    warnings: tuple[str, ...] = ()
    """Warnings for users of the model, in plain words."""

    @property
    def conclusion(self) -> Conclusion:
        """Whether the first of its losses on held-out sequences fell."""
        facts = {
            "encoder": Fact(value=self.encoder_parameters, unit="parameters"),
            **counts(tokens=self.n_tokens, rate=round(self.tokens_per_second), texts=self.n_texts),
            **counts(steps=self.protocol.steps if self.metrics else 0),
            "seconds": Fact(value=self.seconds, unit="seconds"),
        }
        losses = [loss for step in self.metrics if (loss := step.held_out.get(self.losses[0])) is not None]
        if losses:
            first, last = (Fact(value=loss, unit="number", better="lower") for loss in (losses[0], losses[-1]))
            facts = {"loss": last, "first": first} | facts
        return Conclusion(
            kind="pretrain",
            case="pretrained" if losses else "untrained",
            verdict=Verdict.FAILED if losses and losses[-1] >= losses[0] else Verdict.DECIDED,
            subject=(self.protocol.objective, self.corpus),
            facts=facts,
            names={"objective": self.protocol.objective, "about": OBJECTIVES[self.protocol.objective].about},
        )

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the losses of the held-out sequences; empty if nothing is trained."""
        return tuple(name for name in self.metrics[-1].held_out if name.endswith("loss")) if self.metrics else ()

    @property
    def sources(self) -> dict[str, str]:
        """The corpus, settings and versions."""
        return {"Corpus": f"{self.corpus} (sha256 {self.corpus_digest})"} | _provenance(self)

    @property
    def table(self) -> Table:
        """One row per evaluation: losses and rates of the held-out sequences; empty if nothing is trained."""
        column, names = columns_of(self.metrics), self.metrics[-1].held_out if self.metrics else ()
        rates = (
            column(
                name,
                lambda step, name=name: step.held_out.get(name),
                form=".4f",
                quantity=Quantity("nats, held-out sequences", best="lower") if name in self.losses else None,
                more=place > 2,
            )
            for place, name in enumerate(names)
        )
        chart = Chart(lines=tuple(map(Line, self.losses)), name="pretraining", x="step")
        return Table(columns=(column("step"), *rates), title="Pretraining", charts=(chart,) if self.losses else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationProtocol:
    """How masked-language-model pretraining is continued; the defaults are those of arXiv 2402.13130."""

    learning_rate: float = 2e-5
    """Peak of AdamW's linear schedule."""
    weight_decay: float = 0.01
    """Weight decay of matrices. Norms, and biases that are vectors, have none."""
    epochs: int = 10
    """Passes over the texts."""
    max_steps: int | None = None
    """Steps at most. By default all epochs; the schedule ends there."""
    batch_size: int = 32
    """Texts a forward pass."""
    accumulation: int = 8
    """Forward passes a step."""
    warmup: float = 0.1
    """Share of the steps with a rising learning rate."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    max_length: int = 128
    """Tokens a text at most."""
    masking_rate: float = 0.15
    """Share of the tokens to mask."""
    random_share: float = 0.1
    """Share of the masked tokens that are shown as a random one."""
    kept_share: float = 0.1
    """Share of the masked tokens that are shown as they are. The rest is shown as the mask."""
    validation_share: float = 0.02
    """Share of the texts to hold out."""

    def __post_init__(self) -> None:
        checks = {
            "at least one epoch": self.epochs >= 1,
            "room for at least two tokens": self.max_length >= 2,
            "at least one step": self.max_steps is None or self.max_steps >= 1,
            **masking_in_range(self),
            "a validation share between 0 and 1": 0 < self.validation_share < 1,
        }
        check_protocol(self, checks, example="text")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Adaptation(Shown):
    """A model after continued masked-language-model pretraining on the user's texts, with its losses."""

    model: ModelDescription
    """Description of the model before adaptation."""
    protocol: AdaptationProtocol
    seed: int
    """Seed of the split, order, masking, dropout and new weights of the head."""
    texts: str
    """Source of the texts."""
    n_texts: int
    """Number of distinct training texts."""
    n_held_out: int
    """Number of distinct held-out texts."""
    n_held_out_tokens: int
    """Number of masked tokens in the held-out texts."""
    head: Literal["own", "fresh"]
    """Whether the checkpoint had the complete head for masked language modelling."""
    steps: int
    computed_on: str
    """Kind of device and precision."""
    metrics: tuple[StepMetrics, ...]
    """Metrics before, during and after training, by step."""
    seconds: float
    """Seconds of training and evaluation, summed over all parts of an interrupted run."""
    fingerprint: str
    """sha256 of everything the weights depend on."""
    versions: dict[str, str]
    """Versions of the libraries that affect the numbers."""
    created: str
    """ISO 8601, UTC."""
    warnings: tuple[str, ...] = ()
    """Warnings for users of the model, in plain words."""

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean cross entropy, in nats, of the same masked tokens of the held-out texts, by step."""
        return tuple(loss for step in self.metrics if (loss := step.held_out["mlm_loss"]) is not None)

    @property
    def conclusion(self) -> Conclusion:
        """Whether the loss on held-out texts fell."""
        first, last = self.losses[0], self.losses[-1]
        return Conclusion(
            kind="adapt",
            case="adapted",
            verdict=Verdict.DECIDED if last < first else Verdict.FAILED,
            subject=(self.model.name, self.texts),
            facts={
                "loss": Fact(value=last, unit="number", split="held-out texts", better="lower"),
                "first": Fact(value=first, unit="number", split="held-out texts", better="lower"),
                "accuracy": Fact(value=self.metrics[-1].held_out["mlm_accuracy"] or 0.0, unit="share"),
                **counts(texts=self.n_texts, held_out=self.n_held_out, tokens=self.n_held_out_tokens, steps=self.steps),
                "seconds": Fact(value=self.seconds, unit="seconds"),
            },
            checks=(Check(name="fresh head", passed=None),) if self.head == "fresh" else (),
        )

    @property
    def sources(self) -> dict[str, str]:
        """The model, the texts, settings and versions."""
        return described(self.model) | _provenance(self) | {"Texts": self.texts}

    @property
    def table(self) -> Table:
        """One row per evaluation: loss and accuracy on masked tokens."""
        column, loss = columns_of(self.metrics), columns_of(self.losses)
        nats = Quantity("nats per masked token", best="lower")
        return Table(
            columns=(
                column("step"),
                loss("held_out_loss", float, title="held-out loss", form=".4f", quantity=nats),
                loss("perplexity", lambda loss: math.exp(min(loss, 100)), form=".1f"),
                column(
                    "held_out_accuracy",
                    lambda step: step.held_out["mlm_accuracy"],
                    title="accuracy",
                    form=lambda share: f"{100 * share:.1f} %",
                ),
                column(
                    "train_loss",
                    lambda step: step.train.get("mlm_loss"),
                    title="training loss",
                    form=".4f",
                    quantity=nats,
                ),
            ),
            title=f"Adaptation to {self.texts}",
            charts=(Chart(lines=(Line("held_out_loss"), Line("train_loss")), name="adaptation", x="step"),),
        )
