"""Settings and results of domain-adaptive pretraining."""

import math
from dataclasses import dataclass
from typing import Literal

from layerprobe.encoders.values import ModelDescription
from layerprobe.results.table import Table, columns_of
from layerprobe.training.values import check_protocol, masking_in_range


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationMetrics:
    """How well masked tokens are filled in after some steps."""

    step: int
    """Steps taken; 0 is the model as it was."""
    train_loss: float | None
    """Mean cross entropy of the masked tokens since the last evaluation; None at step 0."""
    held_out_loss: float
    """Mean cross entropy, in nats, of the masked tokens of the held-out texts, always the same ones."""
    held_out_accuracy: float
    """Share of them, 0 .. 1, whose most likely word is the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """A model after continued masked-language-model pretraining on your own texts, and its losses."""

    model: ModelDescription
    """As it was before."""
    protocol: AdaptationProtocol
    seed: int
    """Of the split, order, masking, dropout and fresh weights of the head."""
    texts: str
    """Where they are from."""
    n_texts: int
    """Distinct texts that were trained on."""
    n_held_out: int
    """Distinct texts that were not."""
    n_held_out_tokens: int
    """Masked tokens in them."""
    head: Literal["own", "fresh"]
    """Whether the checkpoint had the whole head for masked language modelling."""
    steps: int
    computed_on: str
    """Kind of device and precision."""
    metrics: tuple[AdaptationMetrics, ...]
    """Before, during and after, by step."""
    seconds: float
    """Of training and evaluation, all parts of an interrupted run together."""
    fingerprint: str
    """sha256 of all that the weights depend on."""
    versions: dict[str, str]
    """Of the libraries that the numbers depend on."""
    created: str
    """ISO 8601, UTC."""
    warnings: tuple[str, ...] = ()
    """What a user of the model should know, in plain words."""

    @property
    def table(self) -> Table:
        """One row per evaluation: loss and accuracy on masked tokens; below, what the model was trained on."""
        column = columns_of(self.metrics)
        return Table(
            columns=(
                column("step"),
                column("held_out_loss", title="held-out loss", form=".4f"),
                column("perplexity", lambda step: math.exp(min(step.held_out_loss, 100)), form=".1f"),
                column("held_out_accuracy", title="accuracy", form=lambda share: f"{100 * share:.1f} %"),
                column("train_loss", title="training loss", form=".4f"),
            ),
            title=f"Adaptation to {self.texts}",
            notes=(
                f"{self.n_held_out_tokens:,} masked tokens of {self.n_held_out:,} held-out texts; "
                f"{self.n_texts:,} texts to train on, {self.seconds:.0f} s",
            ),
        )

    @property
    def sentence(self) -> str:
        """How the held-out loss changed, as a sentence."""
        first, last = self.metrics[0], self.metrics[-1]
        return f"Adaptation: {self.steps} steps, held-out loss {first.held_out_loss:.3f} to {last.held_out_loss:.3f}"
