"""Token states of a text -> one embedding. Knows tensors only."""

import torch
from torch import Tensor

from layerprobe.encoders.batching import TOKEN
from layerprobe.encoders.values import Pooling


def pool(states: Tensor, attention_mask: Tensor, how: Pooling) -> Tensor:
    """Return one embedding a text, in float32 whatever the states' dtype.

    Args:
        states: (text, token, feature).
        attention_mask: (text, token), 1 for tokens and 0 for padding on either side; of an image 1 for patches and 2
            for the tokens before them.
        how: mean over the tokens, cls (the first token), max over the tokens, or the last token. Of an image, mean and
            max are over its patches.

    Returns:
        (text, feature) float32.
    """
    states = states.float()
    inside = attention_mask.bool() if how in ("cls", "last") else attention_mask == TOKEN
    # filled, not multiplied by 0: a state at padding may be infinite or NaN
    if how == "mean":
        return states.masked_fill(~inside.unsqueeze(-1), 0).sum(dim=1) / inside.sum(dim=1, keepdim=True)
    if how == "max":
        return states.masked_fill(~inside.unsqueeze(-1), -torch.inf).amax(dim=1)
    width = attention_mask.shape[1]
    positions = torch.arange(width, device=states.device).expand_as(attention_mask)
    if how == "cls":
        index = positions.masked_fill(~inside, width).amin(dim=1)
    else:
        index = positions.masked_fill(~inside, -1).amax(dim=1)
    # not len(states), which is the number of one batch for ever where a graph is made of this
    return states[torch.arange(states.shape[0], device=states.device), index]
