"""Electric: an energy for every token, trained by noise-contrastive estimation against a two-tower cloze model.

    pip install ./benchmarks/electric     # then it is an objective of `layerprobe lab pretrain` and of recipes

The encoder gives every token the energy E of its being where it is; without a normaliser, which is taken to be 1,
p^(token | its context) = exp(-E). Of a text of n tokens k are replaced by noise from q, and the encoder tells noise
from data by the odds that follow from p^, q and the counts:

    log P(noise) / P(data) = log k q / ((n - k) p^) = E + log q + log k / (n - k)

The loss is the cross entropy of it. It is least where p^ is the true conditional probability, which is why its sum
over the vocabulary comes out as 1 without being asked to. It differs from replaced token detection by the terms of q
and k alone, and in that a sample that equals the original still counts as noise.

q is trained by maximum likelihood at every position. As it must be known at every position, replaced or not, given all
other tokens, no [MASK] will do: one tower reads from the left to the token before, one from the right to the token
after. As in the code published with the paper, the embeddings are those of the encoder, no gradient of the encoder's
loss reaches q, k / (n - k) is the masking rate's odds, all k samples of a text are read at once (the paper's
approximation), and the encoder's loss is weighted as ELECTRA's. A departure from it: tokens that are never replaced,
[CLS] and [SEP], carry no loss, as of them there is no noise to tell from.

Source: Clark et al. 2020, Pre-Training Transformers as Energy-Based Cloze Models (arXiv 2012.08561), section 2.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ElectraModel

from layerprobe.errors import DataError
from layerprobe.lab.pretraining.masking import MaskedBatch, Masking, Objective, Sums, replaced_sums, token_sums
from layerprobe.lab.pretraining.models import generator_config, sample, with_detection_head
from layerprobe.lab.pretraining.values import PretrainingObjective, PretrainingProtocol

ELECTRIC = PretrainingObjective(
    about="trained to tell tokens from samples of a small two-tower model by an energy for each token (Electric)",
    builder=f"{__name__}:EnergyBasedCloze",
    has_generator=True,
)


class EnergyBasedCloze(Objective):
    """The encoder tells tokens from noise by an energy for each; a two-tower cloze model, `noise`, is what it tells
    them from.

    loss = cross entropy of the generator at every token + 50 x binary cross entropy of noise or not

    Both are means over the tokens that could have been selected.
    """

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(masking)
        if protocol.masking_rate >= 1:
            raise DataError("expected a masking rate below 1 for electric, which tells the tokens that stay from noise")
        self.model = with_detection_head(encoder)
        self.noise = TwoTowerCloze(encoder, protocol)
        self.weights = {"generator": 1.0, "discriminator": protocol.discriminator_weight}

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the tokens that could have been selected, twice."""
        return dict.fromkeys(("generator", "discriminator"), int(self.positions(batch).sum()))

    def positions(self, batch: MaskedBatch) -> Tensor:
        """Return which tokens could have been selected, (text, token) bool."""
        special = torch.tensor(self.masking.special_ids, dtype=batch.ids.dtype, device=batch.ids.device)
        return batch.attention_mask.bool() & ~torch.isin(batch.ids, special)

    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, Sums]:
        """Return the sums of the generator, and of the log odds that each token is one of its samples."""
        positions = self.positions(batch)
        logits = self.noise(batch.ids, batch.attention_mask, positions).float()
        log_noise, replaced = logits.detach().log_softmax(dim=1), batch.selected[positions]
        corrupted = batch.ids.clone()
        corrupted[batch.selected] = sample(log_noise[replaced], rng)
        energies = self.model(input_ids=corrupted, attention_mask=batch.attention_mask).logits.float()[positions]
        log_noise = log_noise.gather(1, corrupted[positions].unsqueeze(1)).squeeze(1)
        log_odds = noise_log_odds(energies, log_noise, rate=self.masking.rate)
        return {
            "generator": token_sums(logits, batch.ids[positions]),
            "discriminator": replaced_sums(log_odds, replaced),
        }


def noise_log_odds(energies: Tensor, log_noise: Tensor, *, rate: float) -> Tensor:
    """Return log k q / ((n - k) p^), the log odds of noise, where p^ = exp(-energy) and k = rate x n.

    Args:
        energies: Of the tokens, of any shape.
        log_noise: log q of the same tokens.
        rate: Share of the tokens that are noise, above 0 and below 1.

    Examples:
        A token that noise and model give the same probability is noise as often as any.

        >>> noise_log_odds(torch.tensor(2.0), torch.tensor(-2.0), rate=0.2).sigmoid().item()  # doctest: +ELLIPSIS
        0.2...
    """
    return energies + log_noise + math.log(rate / (1 - rate))


class TwoTowerCloze(nn.Module):
    """Logits of every token given all others: one tower reads what is before it, one what is after it.

    softmax(head([left tower's state at t - 1, right tower's state at t + 1]))

    Towers are as deep as the encoder and have the generator's width; a state that there is not is 0. The words that are
    scored are those that are read.

    Source: Clark et al. 2020 (arXiv 2012.08561), section 2.
    """

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol) -> None:
        super().__init__()
        config: Any = generator_config(encoder, protocol)
        self.left, self.right = ElectraModel(config), ElectraModel(config)
        self.embeddings = self.left.embeddings = self.right.embeddings = encoder.embeddings
        width = config.embedding_size
        self.head = nn.Sequential(nn.Linear(2 * config.hidden_size, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        """Return (position, vocabulary) logits at `positions`, (text, token) bool, for (text, token) ids."""
        before = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        itself = torch.eye(len(before), dtype=torch.bool, device=ids.device)  # padding must read something
        real = attention_mask.bool()

        def states(tower: ElectraModel, within: Tensor) -> Tensor:
            mask = (within & real[:, None, None]) | itself
            last: Tensor = tower(input_ids=ids, attention_mask=mask).last_hidden_state
            return last.masked_fill(~real[:, :, None], 0)

        left, right = states(self.left, before), states(self.right, before.T)
        around = torch.cat([F.pad(left[:, :-1], (0, 0, 1, 0)), F.pad(right[:, 1:], (0, 0, 0, 1))], dim=2)
        return F.linear(self.head(around[positions]), self.embeddings.word_embeddings.weight, self.bias)
