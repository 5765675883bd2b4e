"""Whether a loss is within a margin: what it is at most, and how many items would settle it. Knows numbers only.

With h what one more failing item takes, the upper end is value + t^2 h / 2 + t sqrt(error^2 + t^2 h^2 / 4): that of the
interval, and of Wilson's of a number of failures of which the sample may have none. By simulation it is passed in at
most 5 % where up to 6 % of the items fail (tests/shrinking/test_coverage.py).

Source: Wilson 1927 (Journal of the American Statistical Association 22).
"""

import math

from layerprobe.metrics.names import bounded
from layerprobe.stats.values import CrossedInterval, MarginVerdict

MANY_TIMES = 1e6
"""More times the items than these are no advice."""


def upper_end(loss: float, error: CrossedInterval | None, *, failure: float, metric: str) -> float:
    """Return the upper confidence bound of a loss; infinity where its error is unknown.

    Args:
        loss: In points.
        error: Of the loss over items and seeds.
        failure: Points that one more item takes which fails as few or none of these do.
        metric: What the points are of.
    """
    if error is None or not failure:
        return math.inf if error is None else error.interval[1]
    reach = _reach(error, 1.0, error.seeds_error or 0.0, failure)
    return bounded(metric, (loss, loss + reach), difference=True)[1]


def margin_verdict(error: CrossedInterval | None, most: float, margin: float) -> MarginVerdict:
    """Return whether a loss with this upper bound is within a margin."""
    if most <= margin:
        return "within"
    return "worse" if error is not None and error.interval[0] > margin else "not shown"


def items_needed(loss: float, error: CrossedInterval, most: float, margin: float, failure: float) -> tuple[int, bool]:
    """Return how many items would show that a loss is within a margin, and whether it takes more seeds, too.

    0 items where those that there are would do with more seeds. No items and no seeds where nothing would.
    """
    room, seeds = margin - loss, error.seeds_error or 0.0
    if not error.n_items or room <= 0:
        return 0, False
    room *= _reach(error, 1.0, seeds, failure) / (most - loss)
    enough = _times(error, room, seeds, failure)
    times = enough or _times(error, room, 0.0, failure)
    return round(error.n_items * times) if times > 1 else 0, bool(times and not enough)


def _times(error: CrossedInterval, room: float, seeds: float, failure: float) -> float:
    """Return the factor of items at which the interval fits within `room`; 0 where none suffices."""
    times = 1.0
    while _reach(error, times, seeds, failure) > room:
        times *= 1.002
        if times > MANY_TIMES:
            return 0.0
    return times


def _reach(error: CrossedInterval, times: float, seeds: float, failure: float) -> float:
    """Return the half-width of the interval with `times` as many items, given the error over seeds."""
    from scipy.special import stdtrit  # takes a while to load

    of_seeds, of_items, one = seeds**2, (error.items_error or 0.0) ** 2 / times, failure / times
    share = of_seeds / (of_seeds + of_items)
    freedom = 1 / (share / max(error.n_seeds - 1, 1) + (1 - share) / ((error.n_items or 2) * times - 1))
    t = float(stdtrit(freedom, (1 + error.level) / 2))
    return t * t / 2 * one + math.hypot(t * math.sqrt(of_seeds + of_items), t * t * one / 2)
