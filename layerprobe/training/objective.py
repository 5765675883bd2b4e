"""What a model is trained for: outputs for a masked batch, and their loss; and heads that fill in masked tokens.

Knows no optimiser, no data and no schedule.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import model_errors
from layerprobe.encoders.loading import Resolved, load_weights, one_line_errors
from layerprobe.errors import ModelError
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import drawing
from layerprobe.training.corpus import MaskedBatch, Masking


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedLanguageModel:
    """An encoder with a head that fills in masked tokens."""

    model: PreTrainedModel
    """Encoder and head; its encoder is the module that the `Encoder` holds."""
    fresh: tuple[str, ...]
    """Weights of the head that the checkpoint lacks; they are random."""

    def logits(self, batch: Batch, selected: Tensor) -> Tensor:
        """Return the logits of all tokens of the vocabulary at the selected positions only, (selected, vocabulary).

        The head is most of the work where the vocabulary is large, so it never sees the other positions.

        Args:
            batch: What the encoder reads.
            selected: (text, token) bool.
        """

        def keep_selected(module: Any, inputs: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state[selected].unsqueeze(0)
            return output

        hook = self.model.base_model.register_forward_hook(keep_selected)
        try:
            with model_errors(self.model.config.model_type, "a forward pass under a head"):
                logits: Tensor = self.model(**batch, return_dict=True).logits
        finally:
            hook.remove()
        return logits.squeeze(0)


def check_masked_lm(checkpoint: Resolved) -> None:
    """Refuse models that cannot fill in masked tokens."""
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    reason = None
    if checkpoint.loaded is not None:
        reason = "it was given loaded, without its head; save it and give the folder"
    elif checkpoint.asked.blocks is not None or checkpoint.asked.tokens is not None:
        taken = "blocks" if checkpoint.asked.blocks is not None else "tokens"
        reason = f"some of its {taken} are taken out; export it and give the folder"
    elif type(config).__module__.startswith("transformers_modules"):
        reason = "it needs code of its own, which the folder that is written does not hold"
    elif type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        reason = f"transformers has no head of that kind for {config.model_type}"
    elif tokenizer.mask_token_id is None:
        reason = "its tokenizer has no mask token"
    elif tokenizer.mask_token_id >= getattr(config, "vocab_size", 0):
        reason = f"it knows {config.vocab_size} tokens and the mask is number {tokenizer.mask_token_id}"
    if reason is not None:
        raise ModelError(
            f"{checkpoint.label} cannot be trained by masked language modelling: {reason}; expected an encoder with "
            "a mask token, such as BERT, ELECTRA or ModernBERT"
        )


def with_masked_lm_head(checkpoint: Resolved, encoder: Encoder, *, seed: int) -> MaskedLanguageModel:
    """Put the checkpoint's head for masked language modelling on a loaded encoder.

    What the checkpoint lacks of the head is drawn at random from `seed`; where the architecture ties the head to the
    input embeddings, it is tied to those of `encoder`.
    """
    check_masked_lm(checkpoint)
    config = copy.deepcopy(checkpoint.config)
    config._attn_implementation = encoder.model.config._attn_implementation
    with drawing(seed), one_line_errors(checkpoint.name):
        model, fresh = (
            _random_head(config) if checkpoint.asked.random_init is not None else _load_head(checkpoint, config)
        )
    setattr(model, model.base_model_prefix, encoder.model)
    model.tie_weights()
    model.to(encoder.device)
    return MaskedLanguageModel(model=model.train(False), fresh=fresh)


def _random_head(config: PreTrainedConfig) -> tuple[PreTrainedModel, tuple[str, ...]]:
    auto_class: Any = AutoModelForMaskedLM
    with MAKING_MODELS:
        model: PreTrainedModel = auto_class.from_config(config, dtype=torch.float32)
    return model, _names_of_head(model, [name for name, _ in model.named_parameters()])


def _load_head(checkpoint: Resolved, config: PreTrainedConfig) -> tuple[PreTrainedModel, tuple[str, ...]]:
    model, info = load_weights(AutoModelForMaskedLM, checkpoint, config)
    if getattr(config, "legacy", False) and any(key.startswith("lm_predictions.") for key in info["unexpected_keys"]):
        # the heads that Microsoft published for DeBERTa are those of `legacy=False`; their configurations lack it
        config.legacy = False
        model, info = load_weights(AutoModelForMaskedLM, checkpoint, config)
    fresh = _names_of_head(model, [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
    if fresh:
        # from_pretrained of transformers 5.23 leaves a bias of FNet's head as whatever was in the memory
        drawn = dict(_random_head(config)[0].named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, weight in model.named_parameters(remove_duplicate=False):
                if name in fresh:
                    weight.copy_(drawn[name])
    return model, fresh


def _names_of_head(model: PreTrainedModel, names: list[str]) -> tuple[str, ...]:
    """Return those of the weights that are not the encoder's."""
    return tuple(sorted(name for name in names if not name.startswith(f"{model.base_model_prefix}.")))


class PartOutput(Protocol):
    """The model output of one part of an objective."""

    def loss(self) -> Tensor:
        """Return the loss, summed over the positions that carry it."""

    def tallies(self) -> dict[str, Tensor]:
        """Return what rates are made of, `n` among it: the positions that carry loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLogits:
    """Logits of all tokens of the vocabulary at some positions: cross entropy of the original."""

    logits: Tensor
    """(position, vocabulary), float32."""
    targets: Tensor
    """(position,): the original ids."""

    def loss(self) -> Tensor:
        """Return the summed cross entropy."""
        return F.cross_entropy(self.logits, self.targets, reduction="sum")

    def tallies(self) -> dict[str, Tensor]:
        """Return the positions and the hits: those whose most likely token is the original."""
        hits = (self.logits.argmax(dim=1) == self.targets).sum()
        return {"n": torch.tensor(len(self.targets)), "hits": hits}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplacedLogits:
    """One logit a token: binary cross entropy of whether it was replaced."""

    logits: Tensor
    """(position,), float32: above 0 says replaced."""
    replaced: Tensor
    """(position,) bool."""

    def loss(self) -> Tensor:
        """Return the summed binary cross entropy."""
        return F.binary_cross_entropy_with_logits(self.logits, self.replaced.float(), reduction="sum")

    def tallies(self) -> dict[str, Tensor]:
        """Return the positions, the hits, and how many are flagged, replaced, and both."""
        flagged = self.logits > 0
        return {
            "n": torch.tensor(len(self.replaced)),
            "hits": (flagged == self.replaced).sum(),
            "flagged": flagged.sum(),
            "replaced": self.replaced.sum(),
            "caught": (flagged & self.replaced).sum(),
        }


# a rate of the held-out set -> the tallies that it is the ratio of
RATES = {
    "accuracy": ("hits", "n"),
    "masked_accuracy": ("masked_hits", "masked"),
    "precision": ("caught", "flagged"),
    "recall": ("caught", "replaced"),
    "replaced": ("replaced", "n"),
}


def rates_of(tallies: Mapping[str, float]) -> dict[str, float | None]:
    """Return the rates, 0 .. 1, that the tallies of a part allow; None where nothing can be counted.

    Examples:
        >>> rates_of({"n": 8, "hits": 6})
        {'accuracy': 0.75}
    """
    return {
        name: tallies[part] / tallies[whole] if tallies[whole] else None
        for name, (part, whole) in RATES.items()
        if {part, whole} <= tallies.keys()
    }


class Objective(nn.Module, ABC):
    """Models with what they are trained for: a weighted sum of parts, each the mean over its positions.

    loss = sum over parts of weight x (summed loss of the part / positions that carry it)
    """

    weights: Mapping[str, float]
    """Of every part."""
    model: Any
    """The encoder under its head, as transformers has it; a `generator` beside it is saved, too."""

    def __init__(self, masking: Masking) -> None:
        super().__init__()
        self.masking = masking

    @abstractmethod
    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return how many positions of the batch carry loss, by part."""

    @abstractmethod
    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, PartOutput]:
        """Return the output of every part; batch, and `rng` of a generator's samples, are on the models' device."""


class MaskedLanguageModelling(Objective):
    """Fill in the masked tokens: the loss is the cross entropy of the original tokens at the selected positions.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1.
    """

    weights: Mapping[str, float] = {"mlm": 1.0}

    def __init__(self, head: MaskedLanguageModel, masking: Masking) -> None:
        super().__init__(masking)
        self.head = head
        self.model = head.model

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the number of selected positions."""
        return {"mlm": len(batch.targets)}

    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, PartOutput]:
        """Return the logits of all tokens at the selected positions."""
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        logits = self.head.logits(inputs, batch.selected).float()
        return {"mlm": TokenLogits(logits=logits, targets=batch.targets)}
