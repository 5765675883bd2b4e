"""The objectives of the ELECTRA paper that have a generator.

All of them draw the same masks: of each batch 15 % of the ordinary tokens are selected, the generator reads [MASK] in
their place and is trained to fill them in, and its samples take their place in what the encoder reads. They differ in
what the encoder is asked about that corrupted text.

Knows what a batch is asked and how the answer is scored; knows no optimiser, no data and no files.

Two choices: the paper shows the generator [MASK] at all selected positions, and so do we; the code published with it
does so at 85 % of them. And in it, as here, the discriminator's loss counts all tokens but padding, so also the first
and last token of a sequence, which are never replaced.

Source: Clark et al. 2020 (arXiv 2003.10555), sections 2, 3.2 and 3.5.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerprobe.encoders.heads import MaskedLanguageModel
from layerprobe.training.objective import Answer, Flags, Masking, Objective, Question, Words

DISCRIMINATOR_WEIGHT = 50.0


class GeneratorObjective(Objective):
    """A small generator fills masked positions; what the encoder is asked is left to the children.

    No gradient flows through the sampling. The generator's embeddings (token, position, token type and their norm, as
    in the code published with the paper) are those of the encoder.
    """

    weights: Mapping[str, float] = {"generator": 1.0, "mlm": 1.0}

    def __init__(self, generator: MaskedLanguageModel, model: Any, masking: Masking) -> None:
        super().__init__(masking)
        self._generator = generator
        self.generator: Any = generator.model
        self.model = model
        self.generator.base_model.embeddings = model.base_model.embeddings
        self.generator.tie_weights()

    def forward(self, question: Question, sampling: torch.Generator) -> dict[str, Answer]:
        """Return the generator's answer and that of the encoder to the corrupted batch."""
        selected = question.masked.selected
        only_masks = {
            "input_ids": question.ids.masked_fill(selected, self.masking.mask_id),
            "attention_mask": question.attention_mask,
        }
        logits = self._generator.logits(only_masks, selected).float()
        corrupted = question.ids.clone()
        corrupted[selected] = sample(logits.detach(), sampling)
        return {"generator": Words(logits=logits, targets=question.masked.targets), **self.judge(corrupted, question)}

    @abstractmethod
    def judge(self, corrupted: Tensor, question: Question) -> dict[str, Answer]:
        """Return what the encoder says about a corrupted batch, (text, token) ids."""


class ReplacedTokenDetection(GeneratorObjective):
    """`rtd`, ELECTRA: the encoder tells of every token whether it is not the original.

    loss = generator's cross entropy + 50 x binary cross entropy over all tokens but padding

    A sample that equals the original counts as original.
    """

    def __init__(
        self, generator: MaskedLanguageModel, model: Any, masking: Masking, *, weight: float = DISCRIMINATOR_WEIGHT
    ) -> None:
        super().__init__(generator, model, masking)
        self.weights = {"generator": 1.0, "discriminator": weight}

    def counts(self, question: Question) -> dict[str, int]:
        """Return the masked positions and those of all tokens."""
        return {"generator": len(question.masked.targets), "discriminator": int(self.asked(question).sum())}

    def asked(self, question: Question) -> Tensor:
        """Return which tokens carry the discriminator's loss, (text, token) bool."""
        return question.attention_mask.bool()

    def judge(self, corrupted: Tensor, question: Question) -> dict[str, Answer]:
        """Return the discriminator's answer."""
        scores = self.model(input_ids=corrupted, attention_mask=question.attention_mask).logits.float()
        asked = self.asked(question)
        return {"discriminator": Flags(logits=scores[asked], replaced=(corrupted != question.ids)[asked])}


class MaskedTokenDetection(ReplacedTokenDetection):
    """`electra-15`: as `rtd`, but the discriminator's loss is the mean over the masked positions alone."""

    def asked(self, question: Question) -> Tensor:
        """Return the masked positions."""
        return question.masked.selected


class ReplaceMLM(GeneratorObjective):
    """`replace-mlm`: masked language modelling that never sees [MASK], but the generator's samples.

    loss = generator's cross entropy + cross entropy of the original tokens at the masked positions
    """

    def __init__(self, generator: MaskedLanguageModel, head: MaskedLanguageModel, masking: Masking) -> None:
        super().__init__(generator, head.model, masking)
        self._head = head

    def counts(self, question: Question) -> dict[str, int]:
        """Return the masked positions, twice."""
        n = len(question.masked.targets)
        return {"generator": n, "mlm": n}

    def judge(self, corrupted: Tensor, question: Question) -> dict[str, Answer]:
        """Return the scores of all words at the masked positions."""
        batch = {"input_ids": corrupted, "attention_mask": question.attention_mask}
        logits = self._head.logits(batch, question.masked.selected).float()
        return {"mlm": Words(logits=logits, targets=question.masked.targets)}


class AllTokensMLM(GeneratorObjective):
    """`all-tokens-mlm`: as `replace-mlm`, but every token but padding is predicted, with a copy mechanism.

    p(x | t) = D(t) x 1[x is the token that is read at t] + (1 - D(t)) x softmax(t)[x]
    loss     = generator's cross entropy + mean over all tokens of -log p(original | t)

    D(t) is a sigmoid of the last layer's state. The paper gives the second term no weight, so it has 1 here.
    """

    def __init__(self, generator: MaskedLanguageModel, model: Any, masking: Masking) -> None:
        super().__init__(generator, model, masking)
        self.copy = nn.Linear(model.config.hidden_size, 1)

    def counts(self, question: Question) -> dict[str, int]:
        """Return the masked positions and those of all tokens."""
        return {"generator": len(question.masked.targets), "mlm": question.n_tokens}

    def judge(self, corrupted: Tensor, question: Question) -> dict[str, Answer]:
        """Return the copy score and the scores of all words at every token."""
        real = question.attention_mask.bool()
        batch = {"input_ids": corrupted, "attention_mask": question.attention_mask}
        states = self.model.base_model(**batch).last_hidden_state[real]
        logits = self.model.generator_lm_head(self.model.generator_predictions(states))
        return {
            "mlm": CopiedWords(
                copy=self.copy(states).squeeze(1).float(),
                logits=logits.float(),
                read=corrupted[real],
                targets=question.ids[real],
                masked=question.masked.selected[real],
            )
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopiedWords:
    """Scores of all words at every token, mixed with a copy of the token that is read."""

    copy: Tensor
    """(position,): its sigmoid is the weight of the copy."""
    logits: Tensor
    """(position, word)."""
    read: Tensor
    """(position,): the tokens of the corrupted text."""
    targets: Tensor
    """(position,): the original ones."""
    masked: Tensor
    """(position,) bool: where a sample of the generator is read."""

    def log_likelihood(self) -> Tensor:
        """Return log p(original) at every position."""
        predicted = F.logsigmoid(-self.copy) - F.cross_entropy(self.logits, self.targets, reduction="none")
        same = self.read == self.targets
        return torch.where(same, torch.logaddexp(F.logsigmoid(self.copy), predicted), predicted)

    def loss(self) -> Tensor:
        """Return the summed negative log likelihood."""
        return -self.log_likelihood().sum()

    def tallies(self) -> dict[str, Tensor]:
        """Return the positions and the hits, of all tokens and of the masked ones."""
        shares = self.copy.sigmoid().unsqueeze(1)
        mixed = (1 - shares) * self.logits.softmax(dim=1)
        mixed.scatter_add_(1, self.read.unsqueeze(1), shares)
        hits = mixed.argmax(dim=1) == self.targets
        return {
            "n": torch.tensor(len(self.targets)),
            "hits": hits.sum(),
            "masked": self.masked.sum(),
            "masked_hits": (hits & self.masked).sum(),
        }


@torch.no_grad()
def sample(logits: Tensor, rng: torch.Generator) -> Tensor:
    """Return one word a row, drawn from the softmax: the largest of the logits with Gumbel noise.

    Args:
        logits: (position, word).
        rng: Source of chance, on the device of the logits.
    """
    return (logits - torch.empty_like(logits).exponential_(generator=rng).log()).argmax(dim=-1)
