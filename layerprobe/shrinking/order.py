"""In which order blocks go: the one without which the embeddings of some texts agree most with the whole model's.

Knows a loaded encoder and texts; trains nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.context import report
from layerprobe.encoders.batching import collate, read_by_model, token_batches
from layerprobe.encoders.blocks import of_blocks
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.pooling import pool
from layerprobe.encoders.values import Pooling
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.extraction.embed import budget_of
from layerprobe.files.images import prompted
from layerprobe.names import short_name
from layerprobe.shrinking.teacher import agreement
from layerprobe.shrinking.values import Removal

N_TEXTS = 400
"""On which agreement is measured, at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subsets:
    """The embeddings that models of some blocks have of the same texts, by forward passes alone."""

    encoder: Encoder
    """The whole model."""
    texts: Sequence[str]
    pooling: Pooling
    prompt: str = ""
    max_length: int | None = None
    batch_tokens: int | None = None

    @torch.inference_mode()
    def embeddings(self, blocks: Sequence[int]) -> NDArray[np.float32]:
        """Return (text, width) of the model of some blocks.

        Raises:
            UnsupportedArchitectureError: If no model can be made of them.
        """
        encoder, name = self.encoder, self.encoder.description.name
        tokens = encoder.tokenize(prompted(self.prompt, self.texts), max_length=self.max_length)
        model = encoder.model
        if len(blocks) < encoder.description.n_blocks:
            probe = collate(tokens, range(min(2, len(tokens.lengths))), encoder.device)
            model = of_blocks(model, blocks, probe, name=name)
        kept = np.empty((len(self.texts), encoder.description.hidden_size), dtype=np.float32)
        budget, same_length = budget_of(encoder, self.batch_tokens), not encoder.padding_invariant
        for rows in token_batches(tokens.lengths, budget=budget, same_length=same_length):
            batch = collate(tokens, rows, encoder.device)
            with encoder.precision():
                states = model(**read_by_model(batch)).last_hidden_state
            kept[rows] = pool(states, batch["attention_mask"], self.pooling).float().cpu().numpy()
        return kept

    def agreement(self, blocks: Sequence[int], whole: NDArray[np.float32]) -> float | None:
        """Return by how much the model of some blocks agrees with the whole one, x 100; None where there is none."""
        try:
            return 100 * agreement(self.embeddings(blocks), whole)
        except UnsupportedArchitectureError:
            return None


def removal_order(subsets: Subsets) -> tuple[Removal, ...]:
    """Take blocks out one after another, each time the one without which agreement is highest, until one is left.

    With N blocks these are N (N + 1) / 2 - 1 passes over the texts, by ever fewer blocks. A block without which there
    is no model, such as the first one of T5, stays.

    Raises:
        UnsupportedArchitectureError: If no block can be taken out.
        ModelError: If the model's own code fails.
    """
    n_blocks, name = subsets.encoder.description.n_blocks, subsets.encoder.description.name
    whole, kept = subsets.embeddings(range(1, n_blocks + 1)), tuple(range(1, n_blocks + 1))
    done, total = 0, n_blocks * (n_blocks + 1) // 2 - 1
    removals: list[Removal] = []
    while len(kept) > 1:
        found: dict[int, float] = {}
        for block in kept:
            value = subsets.agreement(tuple(b for b in kept if b != block), whole)
            if value is not None:
                found[block] = value
            done += 1
            report(f"choosing blocks of {short_name(name)}", done, total)
        if not found:
            break
        gone = max(found, key=found.__getitem__)
        kept = tuple(block for block in kept if block != gone)
        size = len(kept)
        removals.append(
            Removal(
                block=gone,
                kept=kept,
                agreement=found[gone],
                evenly=subsets.agreement(evenly_spaced(n_blocks, size), whole),
                first=subsets.agreement(range(1, size + 1), whole),
            )
        )
    if not removals:
        # says why
        subsets.embeddings(tuple(range(2, n_blocks + 1)))
    return tuple(removals)


def evenly_spaced(n_blocks: int, size: int) -> tuple[int, ...]:
    """Return blocks at equal distances, the last one among them.

    Examples:
        >>> evenly_spaced(6, 3), evenly_spaced(12, 5)
        ((2, 4, 6), (2, 5, 7, 10, 12))
    """
    return tuple(round((i + 1) * n_blocks / size) for i in range(size))
