"""At equal size: the blocks of an encoder that can be kept in place of the first ones. Knows a model and a task."""

import contextlib

from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.loading import ModelLike, resolve
from layerprobe.encoders.stack import check_blocks
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import distinct_texts
from layerprobe.shrinking.order import evenly_spaced, kept_order
from layerprobe.shrinking.values import Size, read_size
from layerprobe.tasks.values import Task

Blocks = tuple[int, ...]


def candidates(model: ModelLike, task: Task, size: Size) -> dict[Blocks, list[str]]:
    """Return blocks of one number, the first ones first, and what chose them, for `finetune`, which compares them.

    The others are those that agreement keeps, of untrained embeddings with the whole model's as in `shrink`, evenly
    spaced ones, and given ones.

    Args:
        model: A whole model.
        task: Whose training texts it reads.
        size: How many blocks, or which: these are compared with as many first ones, too.

    Raises:
        DataError: If there are no other blocks of this number.
        ModelError: If the model has no such blocks.
        UnsupportedArchitectureError: If its blocks cannot be taken out.
    """
    checkpoint = resolve(model, items=task.readable)
    n_blocks, name, parsed = count_blocks(checkpoint.config), checkpoint.label, None
    with contextlib.suppress(DataError):  # it names shares and speeds, which are no choice here
        parsed = read_size(size)
    given_blocks = tuple(block for block in parsed if isinstance(block, int)) if isinstance(parsed, tuple) else None
    count = parsed if isinstance(parsed, int) else len(given_blocks or ())
    if checkpoint.asked.blocks is not None or not 1 <= count < n_blocks:
        raise DataError(
            f"expected 1 to {n_blocks - 1} blocks of a whole model to compare, or which, got {size} of {name}"
        )
    if given_blocks is not None:
        check_blocks(checkpoint.config, given_blocks, name=name)
    order = kept_order(SharedModel(checkpoint), distinct_texts(task.texts("train")))
    agree = next((removal.kept for removal in order if len(removal.kept) == count), None)
    first, evenly = tuple(range(1, count + 1)), evenly_spaced(n_blocks, count)
    chosen_by: dict[Blocks, list[str]] = {}
    for how, blocks in (("first", first), ("agreement", agree), ("evenly spaced", evenly), ("given", given_blocks)):
        if blocks is not None:
            chosen_by.setdefault(blocks, []).append(how)
    return chosen_by
