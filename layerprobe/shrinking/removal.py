"""Choose the blocks and tokens of a smaller model: keep blocks that change embeddings most, and tokens in the texts.

Each removed block is the one without which the embeddings of some texts agree most with the whole model's. Knows a
resolved model and texts; trains nothing.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from layerprobe.context import report
from layerprobe.encoders.architecture import check_blocks, count_blocks, model_with_blocks
from layerprobe.encoders.batching import Batch, ModelInputs, collate, read_by_model, tokenize
from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH, float32_attention
from layerprobe.encoders.identity import ModelLike, Resolved, resolve
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.vocabulary import tokenizer_rules
from layerprobe.errors import DataError, UnsupportedArchitectureError
from layerprobe.extraction.embeddings import distinct_texts
from layerprobe.files.images import prompted
from layerprobe.files.serialisation import digest
from layerprobe.names import short_name
from layerprobe.shrinking.teacher import Vectors, agreement, embedded, tokenized, vectors
from layerprobe.shrinking.values import CORPUS, Removal, Size, read_size
from layerprobe.store.store import Store
from layerprobe.tasks.values import Task
from layerprobe.versions import REMOVALS_VERSION

N_TEXTS = 400
"""Most texts for measuring agreement."""


def block_embeddings(whole: SharedModel, tokens: ModelInputs, blocks: Sequence[int]) -> Vectors:
    """Return the (text, width) embeddings of tokenised texts by the model of some blocks, from forward passes."""
    encoder, how = whole.encoder, whole.checkpoint
    model = encoder.model
    if len(blocks) < encoder.description.n_blocks:
        probe = collate(tokens, range(min(2, len(tokens.lengths))), encoder.device)
        with float32_attention(encoder.model) as attention:
            model = model_with_blocks(model, blocks, probe, name=encoder.description.name)
        if model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)

    def one(batch: Batch) -> Vectors:
        with encoder.precision():
            states = model(**read_by_model(batch)).last_hidden_state
        return vectors(states, batch, how.pooling)

    return embedded(encoder, tokens, one, how.asked.batch_tokens)


def kept_order(whole: SharedModel, texts: Sequence[str]) -> tuple[Removal, ...]:
    """Return the order in which blocks are removed, for some of the texts; from the store if it was computed before."""
    model, texts = whole.checkpoint, tuple(texts[:N_TEXTS])
    store = Store(model.asked.cache_dir)
    read = [model.pooling, model.prompt, model.max_length, model.dtype]
    key = digest([REMOVALS_VERSION, model.identity, *read, texts])
    removals = store.load_result("removals", key, cast(Any, tuple[Removal, ...]))
    if removals is None:
        removals = removal_order(whole, texts)
        store.save_result("removals", key, removals)
    return cast(tuple[Removal, ...], removals)


def removal_order(whole: SharedModel, texts: Sequence[str]) -> tuple[Removal, ...]:
    """Remove blocks one after another, each time the one without which agreement is highest, until one is left.

    With N blocks this takes N (N + 1) / 2 - 1 passes over the texts, by ever fewer blocks. A block that no model can
    miss, such as the first one of T5, stays.
    """
    tokens, n_blocks = tokenized(whole, texts), whole.encoder.description.n_blocks
    left = tuple(range(1, n_blocks + 1))
    of_whole = block_embeddings(whole, tokens, left)

    def agreed(blocks: Sequence[int]) -> float | None:
        """Return the agreement x 100 of the model of some blocks with the whole one; None if it cannot be made."""
        with contextlib.suppress(UnsupportedArchitectureError):
            return 100 * agreement(block_embeddings(whole, tokens, blocks), of_whole)
        return None

    done, total = 0, n_blocks * (n_blocks + 1) // 2 - 1
    removals: list[Removal] = []
    while len(left) > 1:
        agreements: dict[int, float] = {}
        for block in left:
            value = agreed(tuple(b for b in left if b != block))
            if value is not None:
                agreements[block] = value
            done += 1
            report(f"choosing blocks of {short_name(whole.encoder.description.name)}", done, total)
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
                evenly=agreed(evenly_spaced(n_blocks, size)),
                first=agreed(range(1, size + 1)),
            )
        )
    if not removals:
        # logs the reason
        block_embeddings(whole, tokens, range(2, n_blocks + 1))
    return tuple(removals)


def evenly_spaced(n_blocks: int, size: int) -> tuple[int, ...]:
    """Return evenly spaced blocks, including the last one.

    Examples:
        >>> evenly_spaced(6, 3), evenly_spaced(12, 5)
        ((2, 4, 6), (2, 5, 7, 10, 12))
    """
    return tuple(round((i + 1) * n_blocks / size) for i in range(size))


def candidates(model: ModelLike, task: Task, size: Size) -> list[tuple[int, ...]]:
    """Return blocks of one size, the first blocks first, for comparison by `finetune`.

    The others are the blocks chosen by the agreement of untrained embeddings, as in `shrink`, evenly spaced blocks,
    and given ones.

    Args:
        model: A whole model.
        task: Task with the training texts to read.
        size: Number of blocks, or the blocks to compare with as many first ones.

    Raises:
        DataError: If there are no other blocks of this number.
        ModelError: If the model has no such blocks.
        UnsupportedArchitectureError: If its blocks cannot be removed.
    """
    checkpoint = resolve(model, items=task.readable)
    n_blocks, name, parsed = count_blocks(checkpoint.config), checkpoint.label, None
    with contextlib.suppress(DataError):  # its message offers shares and speeds, which are invalid here
        parsed = read_size(size)
    given_blocks = tuple(block for block in parsed if isinstance(block, int)) if isinstance(parsed, tuple) else None
    count = parsed if isinstance(parsed, int) else len(given_blocks or ())
    if checkpoint.asked.blocks is not None or not 1 <= count < n_blocks:
        raise DataError(
            f"expected 1 to {n_blocks - 1} blocks to compare, or the blocks themselves, got {size} of {name}"
        )
    if given_blocks is not None:
        check_blocks(checkpoint.config, given_blocks, name=name)
    order = kept_order(SharedModel(checkpoint), distinct_texts(task.texts("train")))
    agree = next((removal.kept for removal in order if len(removal.kept) == count), None)
    first, evenly = tuple(range(1, count + 1)), evenly_spaced(n_blocks, count)
    return list(dict.fromkeys(blocks for blocks in (first, agree, evenly, given_blocks) if blocks is not None))


def tokens_to_keep(
    model: Resolved, texts: Sequence[str], vocabulary: int | float | Literal["corpus"]
) -> tuple[tuple[int, ...], float]:
    """Return the ids of the tokens to keep, ascending, and the share of removed tokens in the texts, 0 to 1.

    Special tokens and single letters are always kept; then the texts' tokens, the most frequent first; then unused
    tokens with the lowest ids. For BPE, a token also keeps the tokens it is merged from.

    Raises:
        DataError: If fewer are requested than must be kept, or not fewer than all.
        ModelError: If the vocabulary cannot be reduced.
    """
    rules = tokenizer_rules(model.tokenizer, name=model.label)
    ids, path = sorted({*rules.ids.values()}), rules.paths()
    counts = np.bincount(_read(model, texts), minlength=ids[-1] + 1)
    chosen = rules.always(model.tokenizer, model.config)
    prompts = [prompt for prompt in {model.prompt, *model.recipe.prompts.values(), *model.retrieval_prompts} if prompt]
    chosen |= {part for token in {*_read(model, prompts).tolist()} for part in path(token)}
    seen = [i for i in sorted(ids, key=lambda i: (-counts[i], i)) if counts[i] or vocabulary != CORPUS]
    if vocabulary == CORPUS:
        most = len(ids)
    else:
        most = round(vocabulary * len(ids)) if isinstance(vocabulary, float) else vocabulary
        if len(chosen) == len(ids):
            raise DataError(
                f"no tokens of {model.label} can be removed: all of its {len(ids):,} are special ones or single letters"
            )
        if not len(chosen) <= most < len(ids):
            raise DataError(
                f"expected {len(chosen):,} to {len(ids) - 1:,} tokens of {model.label} to keep (special ones "
                f"and single letters: {len(chosen):,}), got {most:,}"
            )
    for token in seen:
        with_parts = chosen | path(token)
        if len(with_parts) <= most:
            chosen = with_parts
        if len(chosen) == most:
            break
    tokens = tuple(sorted(chosen))
    return tokens, 1 - float(counts[[*tokens]].sum() / counts.sum())


def _read(model: Resolved, texts: Sequence[str]) -> NDArray[np.int32]:
    """Return the ids of all tokens in texts, concatenated."""
    length = model.max_length or DEFAULT_MAX_LENGTH
    return tokenize(model.tokenizer, prompted(model.prompt, texts), max_length=length, token_types=False).ids
