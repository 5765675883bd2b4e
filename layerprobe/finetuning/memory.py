"""Memory limits of a fine-tuning step: short passes, sparse table gradients, losses by groups.

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
    """The largest number of tokens of a forward pass, padding included; halved when memory runs out.

    A single text, or pair of texts, with more tokens goes through nevertheless.
    """

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        """The limit; None while there is none."""
        self._tried = (0, 0)

    def watched(self, batches: Iterable[list[int]], lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield `batches` of rows with token counts `lengths`, and remember the size of the last one."""
        for batch in batches:
            self._tried = (len(batch), len(batch) * max(lengths[row] for row in batch))
            yield batch

    def run(self, work: Callable[[], T], doing: str, *, but: str = "") -> T:
        """Run `work`, and repeat it with half the tokens whenever memory runs out.

        `work` takes its batches from `watched`, within `tokens`. The warning says what was done (`doing`), and the
        effect of smaller passes (`but`).
        """
        while True:
            self._tried = (0, 0)
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                rows, tokens = self._tried
                if not is_out_of_memory(error) or rows <= 1:
                    raise
            # outside the handler the tensors of the failed batch are free
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.tokens = tokens // 2
            logger.warning(
                "out of memory %s with %d tokens in one pass: continuing with passes of at most %d on the same texts%s",
                doing,
                tokens,
                self.tokens,
                but,
            )


class TableGradients:
    """Sums of the sparse gradients of a model's embedding tables, made dense for the optimiser.

    A dense gradient is as large as the vocabulary, and a new one is made, filled and added in every backward
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
        """Make the summed sparse gradients dense; call it once, after the last backward pass."""
        for i, (table, dense) in enumerate(zip(self._tables, self._dense, strict=True)):
            # a table that is also used as a matrix has a dense gradient from the start
            if table.grad is not None and table.grad.is_sparse:
                summed = table.grad.coalesce()
                self._rows[i] = summed.indices()[0]
                dense[self._rows[i]] = summed.values()
                table.grad = dense


Groups = Callable[[], Iterable[list[int]]]
"""Function that returns the texts of a step in groups."""
Read = Callable[[Sequence[int]], list[Tensor]]
"""Function from the texts of a group to their (text, width) embeddings by layer."""
StepLoss = Callable[[list[Tensor]], tuple[Tensor, Tensor]]
"""Function from (text, width) of all groups by layer to the objective and a second value."""


def plain_gradients(groups: Groups, read: Read, loss: StepLoss) -> Tensor:
    """Compute gradients in one backward pass through all groups; memory grows with the step.

    Returns:
        The second value of the loss.
    """
    objective, losses = loss(_joined([read(group) for group in groups()]))
    objective.backward()  # type: ignore[no-untyped-call]
    return losses


def cached_gradients(groups: Groups, read: Read, loss: StepLoss, *, device: torch.device) -> Tensor:
    """Compute the same gradients with one group in memory at a time, at the cost of a second forward pass.

    All groups are embedded without a graph; the loss gives gradients at the embeddings; each group is embedded again,
    with the same dropout, to propagate these gradients from its embeddings to the weights.

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
