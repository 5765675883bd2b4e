"""What keeps a step of fine-tuning within memory: short passes, sparse table gradients, losses by groups.

Knows modules, tensors and their gradients; knows no optimiser and no task.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from layerprobe.encoders.failures import is_out_of_memory
from layerprobe.rng import restore_rng, rng_states

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


class TableGradients:
    """Adds up the gradients of a model's embedding tables row by row, and shows them whole to the optimiser.

    A dense gradient is as large as the vocabulary, and a new one is made, filled and added for every backward
    pass: on a CPU that takes longer than the arithmetic of a small block. The sums are the same.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [module for module in model.modules() if type(module) is nn.Embedding and module.weight.requires_grad]
        for module in modules:
            module.sparse = True
        self._tables = list({id(module.weight): module.weight for module in modules}.values())
        self._dense = [torch.zeros_like(table) for table in self._tables]
        self._rows: list[Tensor | None] = [None] * len(self._tables)

    def clear(self) -> None:
        """Forget the gradients."""
        for i, (table, dense) in enumerate(zip(self._tables, self._dense, strict=True)):
            rows, self._rows[i] = self._rows[i], None
            if rows is not None:
                dense[rows] = 0
            table.grad = None

    def expand(self) -> None:
        """Make the sparse gradients that were added up dense; call it once, after the last backward pass."""
        for i, (table, dense) in enumerate(zip(self._tables, self._dense, strict=True)):
            # a table that is also used as a matrix has a dense gradient from the start
            if table.grad is not None and table.grad.is_sparse:
                summed = table.grad.coalesce()
                self._rows[i] = summed.indices()[0]
                dense[self._rows[i]] = summed.values()
                table.grad = dense


Groups = Callable[[], Iterable[list[int]]]
"""The texts of a step in groups, as often as it is called."""
Read = Callable[[Sequence[int]], list[Tensor]]
"""Texts of a group -> (text, width) embeddings of them by layer."""
StepLoss = Callable[[list[Tensor]], tuple[Tensor, Tensor]]
"""(text, width) of all groups by layer -> what is to be minimised, and what it returns besides that."""


def plain_gradients(groups: Groups, read: Read, loss: StepLoss) -> Tensor:
    """Leave the gradients of one backward pass through all groups; memory grows with the step.

    Returns:
        What the loss returns next to what is minimised.
    """
    objective, losses = loss(_joined([read(group) for group in groups()]))
    objective.backward()  # type: ignore[no-untyped-call]
    return losses


def cached_gradients(groups: Groups, read: Read, loss: StepLoss, *, device: torch.device) -> Tensor:
    """Leave the same gradients with one group in memory at a time, for a second forward pass of each.

    All groups are embedded without a graph; the loss has a gradient at the embeddings; each group is embedded again,
    with what was dropped out the first time, and that gradient goes on from its embeddings to the weights.

    Source: Gao et al. 2021 (arXiv 2101.06983), GradCache.

    Returns:
        As `plain_gradients`.
    """
    states, parts = [], []
    for group in groups():
        states.append(rng_states(device))
        with torch.no_grad():
            parts.append(read(group))
    leaves = [layer.requires_grad_() for layer in _joined(parts)]
    objective, losses = loss(leaves)
    objective.backward()  # type: ignore[no-untyped-call]
    begin = 0
    for group, state in zip(groups(), states, strict=True):
        restore_rng(state, device)
        end = begin + len(group)
        # a layer whose loss does not count has no gradient
        both = [
            (again, leaf.grad[begin:end])
            for again, leaf in zip(read(group), leaves, strict=True)
            if leaf.grad is not None
        ]
        torch.autograd.backward([again for again, _ in both], [gradient for _, gradient in both])
        begin = end
    return losses


def _joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]
