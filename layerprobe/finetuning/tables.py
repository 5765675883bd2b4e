"""The gradients of embedding tables: as small as the words of a step, not as the vocabulary.

Knows modules and their gradients; knows no optimiser and no task.
"""

import torch
from torch import Tensor, nn


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
