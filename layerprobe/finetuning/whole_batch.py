"""The gradients of a loss in which every example of a step counts for all others, from groups of its texts.

Knows tensors; knows no task, no optimiser and no tokens.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from layerprobe.rng import restore_rng, rng_states

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
