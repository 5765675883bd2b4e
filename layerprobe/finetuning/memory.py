"""Limits the tokens of a forward pass, and halves them when memory runs out.

Knows token counts and torch's errors; knows no model.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from layerprobe.encoders.failures import is_out_of_memory

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TokenLimit:
    """The most tokens of a forward pass, padding included; halved where memory runs out.

    A single text, or pair of texts, that has more goes through all the same.
    """

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        """None while there is no limit."""
        self._tried = (0, 0)

    def watched(self, batches: Iterable[list[int]], lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield `batches` of rows, whose tokens are `lengths`, and remember how large the last one was."""
        for batch in batches:
            self._tried = (len(batch), len(batch) * max(lengths[row] for row in batch))
            yield batch

    def run(self, work: Callable[[], T], doing: str, *, but: str = "") -> T:
        """Run `work`, again with half the tokens whenever memory runs out.

        It takes its batches from `watched`, within `tokens`. The warning says what was done, and what smaller passes
        change.
        """
        while True:
            self._tried = (0, 0)
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                rows, tokens = self._tried
                if not is_out_of_memory(error) or rows <= 1:
                    raise
            # out of the handler the tensors of the failed batch are free
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.tokens = tokens // 2
            logger.warning(
                "out of memory %s with %d tokens in one pass: from here on passes of at most %d on the same texts%s",
                doing,
                tokens,
                self.tokens,
                but,
            )
