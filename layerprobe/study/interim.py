"""Corrects confidence levels for interim looks after each seed. Knows levels only.

An interval at the same level after every seed errs more often than the level says: 10 % instead of 5 % over three looks
at seeds alone. Here the share of error is spent over the looks, little of it early, and each interval is at the level
of its share (Bonferroni), so that all together cover the effect at the level whatever the errors of the looks have in
common: all of the items' error, which further seeds do not take away, and part of the seeds'.

Source: Lan and DeMets 1983, Biometrika 70, 659-663 (spending); Jennison and Turnbull 1989, JRSS B 51, 305-361
(repeated intervals).
"""

FIRST_LOOK = 3
"""Seeds before the first look: of two, the error over seeds has one degree of freedom and its tails settle nothing."""
SPENDING_POWER = 5
"""Error is spent as (looks' seeds / planned seeds) ** 5: two thirds of it are left for the last of five seeds."""


def looks(planned: int) -> tuple[int, ...]:
    """Return after how many seeds there is a look: each from the third on, and the last."""
    return tuple(range(FIRST_LOOK, planned + 1)) or (planned,)


def level_at_look(seeds: int, level: float, *, planned: int) -> float | None:
    """Return the level of the interval after so many seeds; None where there is no look.

    The looks after the first k of the planned seeds spend (1 - level) (k / planned)^5 of the error. A single look has
    all of it.

    Examples:
        >>> [round(level_at_look(k, 0.95, planned=5), 4) for k in (3, 4, 5)]
        [0.9961, 0.9875, 0.9664]
        >>> level_at_look(3, 0.95, planned=3), level_at_look(2, 0.95, planned=3)
        (0.95, None)
    """
    if seeds not in looks(planned):
        return None
    before = ((seeds - 1) / planned) ** SPENDING_POWER if seeds - 1 in looks(planned) else 0.0
    return 1 - (1 - level) * ((seeds / planned) ** SPENDING_POWER - before)
