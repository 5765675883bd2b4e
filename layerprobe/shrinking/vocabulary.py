"""Which tokens of a vocabulary some texts need, the most frequent first. Knows a resolved model and texts."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.encoders.batching import tokenize
from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.vocabulary import rules_of
from layerprobe.errors import DataError
from layerprobe.files.images import prompted
from layerprobe.shrinking.values import CORPUS


def tokens_to_keep(
    model: Resolved, texts: Sequence[str], vocabulary: int | float | Literal["corpus"]
) -> tuple[tuple[int, ...], float]:
    """Return the ids of the tokens to keep, ascending, and which share of the tokens of the texts goes, 0 to 1.

    Special tokens and those of one letter always stay; then the tokens of the texts, the most frequent first, and of
    those that no text has, the ones with the lowest ids. Of BPE, a token takes those along that it is joined of.

    Raises:
        DataError: If fewer are wanted than must stay, or no fewer than there are.
        ModelError: If the vocabulary cannot be cut.
    """
    rules = rules_of(model.tokenizer, name=model.label)
    ids, path = sorted({*rules.ids.values()}), rules.paths()
    counts = np.bincount(_read(model, texts), minlength=ids[-1] + 1)
    kept = rules.always(model.tokenizer, model.config)
    prompts = [prompt for prompt in {model.prompt, *model.recipe.prompts.values(), *model.retrieval_prompts} if prompt]
    kept |= {part for token in {*_read(model, prompts).tolist()} for part in path(token)}
    seen = [i for i in sorted(ids, key=lambda i: (-counts[i], i)) if counts[i] or vocabulary != CORPUS]
    if vocabulary == CORPUS:
        most = len(ids)
    else:
        most = round(vocabulary * len(ids)) if isinstance(vocabulary, float) else vocabulary
        if len(kept) == len(ids):
            raise DataError(
                f"expected a model with tokens that can go, got {model.label}: all of its {len(ids):,} are "
                "special ones or single letters"
            )
        if not len(kept) <= most < len(ids):
            raise DataError(
                f"expected {len(kept):,} to {len(ids) - 1:,} tokens of {model.label} to keep, of which special ones "
                f"and single letters are {len(kept):,}, got {most:,}"
            )
    for token in seen:
        with_parts = kept | path(token)
        if len(with_parts) <= most:
            kept = with_parts
        if len(kept) == most:
            break
    tokens = tuple(sorted(kept))
    return tokens, 1 - float(counts[[*tokens]].sum() / counts.sum())


def _read(model: Resolved, texts: Sequence[str]) -> NDArray[np.int32]:
    """Return the ids of the tokens that a model reads of texts, one after another."""
    length = model.max_length or DEFAULT_MAX_LENGTH
    return tokenize(model.tokenizer, prompted(model.prompt, texts), max_length=length, token_types=False).ids
