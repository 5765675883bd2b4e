"""What the token states of a text are like at one layer, without labels. Knows tensors only.

Source: Skean et al. 2025 (arXiv 2502.02013, Layer by Layer), who average them over texts.

How this differs from their code (OFSkean/information_flow, revisions 5dc1ca8 and 703d566): theirs subtracts the mean of
a text's token states and scales what is left to length 1; here states are taken as they are. Its prompt entropy sets
negative products of states to 0 and is divided by log min(T, features) by default; here it is in nats. Its curvature is
the angle between one state and the next in 5dc1ca8, and in 703d566 that between two steps without their direction,
0 .. pi / 2; here it is that of the paper, between two steps, 0 .. pi.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def prompt_entropy(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the von Neumann entropy of each text's tokens: how many directions they spread over.

    With unit token states u_1 .. u_T, the eigenvalues l_k of the Gram matrix u_i . u_j / T sum to 1, and

        S = - sum_k l_k log l_k.

    It is the matrix-based Renyi entropy in the limit alpha -> 1, of the Gram matrix as it is: centring would hide
    that all tokens point the same way.

    Args:
        states: (text, token, feature).
        attention_mask: (text, token), 1 for tokens and 0 for padding on either side.

    Returns:
        (text,) float32 nats, 0 .. log min(T, features) up to rounding; NaN where a state of the text is not finite.

    Source: Giraldo, Rao and Principe 2014 (arXiv 1211.2459); Skean et al. 2025, section 3.
    """
    # a matrix product would follow the forward pass into bfloat16
    with torch.autocast(states.device.type, enabled=False):
        units = normalize(_inside(states, attention_mask), dim=-1)
        broken = ~units.isfinite().all(dim=2).all(dim=1)
        units = units.masked_fill(broken[:, None, None], 0)
        few_tokens = units.shape[1] <= units.shape[2]
        gram = units @ units.mT if few_tokens else units.mT @ units
        trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        gram = gram / trace[:, None, None]
        if gram.device.type == "mps":  # it has no eigenvalues
            gram = gram.cpu()
        shares = torch.linalg.eigvalsh(gram).clamp(min=0).to(states.device)
        entropies: Tensor = torch.special.entr(shares).sum(dim=1)
        return entropies.masked_fill(broken, torch.nan)


def curvature(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return how sharply each text's path from token to token turns.

    The mean over k of the angle between the steps z_(k+1) - z_k and z_(k+2) - z_(k+1); steps of length 0 have no
    direction and are left out.

    Returns:
        (text,) float32 radians, 0 .. pi; NaN where a text has no two steps on end, or a state of it is not finite.

    Source: Hosseini and Fedorenko 2023 (arXiv 2311.04930); Skean et al. 2025, section 3.
    """
    path = _inside(states, attention_mask)
    broken = ~path.isfinite().all(dim=2).all(dim=1)
    steps = path.diff(dim=1)
    inside = attention_mask.bool()
    moves = inside[:, 1:] & inside[:, :-1] & (steps.norm(dim=-1) > 0)
    turns = moves[:, 1:] & moves[:, :-1]
    units = normalize(steps, dim=-1)
    before, after = units[:, :-1], units[:, 1:]
    # the arc cosine loses half the digits near 0 and pi
    angles = 2 * torch.atan2((after - before).norm(dim=-1), (after + before).norm(dim=-1))
    means: Tensor = angles.masked_fill(~turns, 0).sum(dim=1) / turns.sum(dim=1)
    return means.masked_fill(broken, torch.nan)


def _inside(states: Tensor, attention_mask: Tensor) -> Tensor:
    # filled, not multiplied by 0: a state at padding may be infinite or NaN
    return states.float().masked_fill(~attention_mask.bool().unsqueeze(-1), 0)
