"""What one would do without CKA, and what a prediction is compared with. Knows depths only."""

import math
from collections.abc import Mapping

# Three quarters of the depth: layer 9 of 12, where the paper's ELECTRA is best.
FRACTION = 0.75


def last_layer(n_blocks: int) -> int:
    """Return the whole model's layer, as everybody does by default."""
    return n_blocks


def fixed_fraction(n_blocks: int, *, fraction: float = FRACTION) -> int:
    """Return the layer at a fixed fraction of the depth, rounded half up.

    Examples:
        >>> fixed_fraction(12)
        9
    """
    return math.floor(fraction * n_blocks + 0.5)


def compared_layers(
    recommended_layer: int, *, drops: bool, baselines: Mapping[str, int], n_blocks: int
) -> tuple[int, int]:
    """Return the earlier layer and the last layer between which fine-tuning decides.

    Where a drop is predicted, the earlier one is the recommended layer; where none is, it is the best earlier layer
    that a baseline would take, `best zero-shot layer` or `fixed fraction of depth`.

    Examples:
        >>> compared_layers(12, drops=False, baselines={"fixed fraction of depth": 9}, n_blocks=12)
        (9, 12)
    """
    if drops:
        return recommended_layer, n_blocks
    names = ("best zero-shot layer", "fixed fraction of depth")
    rivals = [baselines[name] for name in names if name in baselines]
    earlier = [layer for layer in rivals if layer != n_blocks]
    return (earlier[0] if earlier else max(n_blocks - 1, 0)), n_blocks
