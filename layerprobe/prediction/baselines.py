"""What one would do without CKA. Knows depths only."""

from __future__ import annotations

import math

# Three quarters of the depth: layer 9 of 12, where the paper's ELECTRA is best.
FRACTION = 0.75


def last_layer(n_blocks: int) -> int:
    """Return the whole model's layer, as everybody does by default."""
    return n_blocks


def fixed_fraction(n_blocks: int, *, fraction: float = FRACTION) -> int:
    """Return the layer at a fixed fraction of the depth, rounded half up.

    Example:
        >>> fixed_fraction(12)
        9
    """
    return math.floor(fraction * n_blocks + 0.5)
