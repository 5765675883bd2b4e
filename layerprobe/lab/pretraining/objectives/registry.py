"""The pretraining objectives by name. Knows what each is, not how: nothing here imports torch, so --help is quick."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layerprobe.registry import Registry

if TYPE_CHECKING:
    from transformers import ElectraModel

    from layerprobe.lab.pretraining.values import PretrainingProtocol
    from layerprobe.training.corpus import Masking
    from layerprobe.training.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingObjective:
    """What a small encoder is pretrained for."""

    about: str
    """What an encoder was trained for, as in: It was trained to fill in masked tokens."""
    builder: str | None
    """`module:attribute` from a fresh encoder, the protocol and its masking to the `Objective`; None for no training.
    Torch's generator is seeded before it is called."""
    has_generator: bool = False
    """Whether a generator is trained besides the encoder."""
    generator_kept: bool = True
    """Whether it is a checkpoint of its own, kept in `generator/`; without effect where there is none."""

    def build(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> Objective:
        """Return the objective with `encoder` under a fresh head; ValueError if it trains nothing."""
        if self.builder is None:
            raise ValueError(f"expected an objective that trains, got one whose encoder is {self.about}")
        builder: Callable[[Any, Any, Any], Objective] = pkgutil.resolve_name(self.builder)
        return builder(encoder, protocol, masking)


_PACKAGE = __name__.rpartition(".")[0]

MLM = PretrainingObjective(
    about="trained to fill in masked tokens (BERT)", builder=f"{_PACKAGE}.electra:masked_language_modelling"
)
RTD = PretrainingObjective(
    about="trained to tell which tokens are not the original but samples of a small generator (ELECTRA)",
    builder=f"{_PACKAGE}.electra:ReplacedTokenDetection",
    has_generator=True,
)
ELECTRA_15 = PretrainingObjective(
    about="trained as ELECTRA, with the discriminator's loss at the masked positions alone",
    builder=f"{_PACKAGE}.electra:masked_token_detection",
    has_generator=True,
)
REPLACE_MLM = PretrainingObjective(
    about="trained to fill in masked tokens in whose place it read samples of a small generator",
    builder=f"{_PACKAGE}.electra:ReplaceMLM",
    has_generator=True,
)
ALL_TOKENS_MLM = PretrainingObjective(
    about="trained to predict every token, with a copy mechanism, from a text in which masked tokens are samples of a "
    "small generator",
    builder=f"{_PACKAGE}.electra:AllTokensMLM",
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
