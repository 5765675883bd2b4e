"""In which order blocks go: the one without which the embeddings of some texts agree most with the whole model's.

Knows a resolved model and texts; trains nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from layerprobe.context import part, report
from layerprobe.encoders.batching import Batch, Prepared, collate, read_by_model
from layerprobe.encoders.encoder import float32_attention
from layerprobe.encoders.stack import of_blocks
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.files.serialisation import digest
from layerprobe.lazy import cached_property
from layerprobe.names import short_name
from layerprobe.shrinking.embedding import Vectors, embedded, tokenized, vectors
from layerprobe.shrinking.teacher import agreement
from layerprobe.shrinking.values import Removal
from layerprobe.store.store import Store
from layerprobe.versions import REMOVALS_VERSION

N_TEXTS = 400
"""On which agreement is measured, at most."""


@dataclass(frozen=True, eq=False)
class Subsets:
    """The embeddings that models of some blocks have of the same texts, by forward passes alone."""

    whole: SharedModel
    texts: Sequence[str]

    @cached_property
    def tokens(self) -> Prepared:
        """The texts as the whole model reads them."""
        return tokenized(self.whole, self.texts)

    def embeddings(self, blocks: Sequence[int]) -> Vectors:
        """Return the (text, width) embeddings by the model of some blocks."""
        encoder, how, tokens = self.whole.encoder, self.whole.checkpoint, self.tokens
        model = encoder.model
        if len(blocks) < encoder.description.n_blocks:
            probe = collate(tokens, range(min(2, len(tokens.lengths))), encoder.device)
            with float32_attention(encoder.model) as attention:
                model = of_blocks(model, blocks, probe, name=encoder.description.name)
            if model.config._attn_implementation != attention:
                model.set_attn_implementation(attention)

        def one(batch: Batch) -> Vectors:
            with encoder.precision():
                states = model(**read_by_model(batch)).last_hidden_state
            return vectors(states, batch, how.pooling)

        return embedded(encoder, tokens, one, how.asked.batch_tokens)

    def agreement(self, blocks: Sequence[int], whole: Vectors) -> float | None:
        """Return the agreement x 100 of the model of some blocks with the whole one; None if it cannot be made."""
        try:
            return 100 * agreement(self.embeddings(blocks), whole)
        except UnsupportedArchitectureError:
            return None


def kept_order(whole: SharedModel, texts: Sequence[str]) -> tuple[Removal, ...]:
    """Return the order in which blocks are removed, by some of the texts; from the store if it was computed before."""
    model, texts = whole.checkpoint, tuple(texts[:N_TEXTS])
    store = Store(model.asked.cache_dir)
    read = [model.pooling, model.prompt, model.max_length, model.dtype]
    key = digest([REMOVALS_VERSION, model.identity, *read, texts])
    removals = store.load_result("removals", key, cast(Any, tuple[Removal, ...]))
    if removals is None:
        with part(start=0, share=1, whole=10):
            removals = removal_order(Subsets(whole, texts))
        store.save_result("removals", key, removals)
    return cast(tuple[Removal, ...], removals)


def removal_order(subsets: Subsets) -> tuple[Removal, ...]:
    """Take blocks out one after another, each time the one without which agreement is highest, until one is left.

    With N blocks these are N (N + 1) / 2 - 1 passes over the texts, by ever fewer blocks. A block without which there
    is no model, such as the first one of T5, stays.
    """
    description = subsets.whole.encoder.description
    n_blocks, name = description.n_blocks, description.name
    whole, left = subsets.embeddings(range(1, n_blocks + 1)), tuple(range(1, n_blocks + 1))
    done, total = 0, n_blocks * (n_blocks + 1) // 2 - 1
    removals: list[Removal] = []
    while len(left) > 1:
        agreements: dict[int, float] = {}
        for block in left:
            value = subsets.agreement(tuple(b for b in left if b != block), whole)
            if value is not None:
                agreements[block] = value
            done += 1
            report(f"choosing blocks of {short_name(name)}", done, total)
        if not agreements:
            break
        gone = max(agreements, key=agreements.__getitem__)
        left = tuple(block for block in left if block != gone)
        size = len(left)
        removals.append(
            Removal(
                block=gone,
                kept=left,
                agreement=agreements[gone],
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
