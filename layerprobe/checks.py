"""What arguments must be, checked at the public boundary. Knows no stage."""

import typing
from collections.abc import Iterable
from operator import index

from layerprobe.errors import DataError

LEVEL = 0.95
"""Confidence level of intervals, bands and verdicts, unless another is asked for."""


def check_choice(value: object, kind: object, *, name: str) -> None:
    """Raise unless `value` is one of the strings of the Literal `kind`.

    Raises:
        DataError: Naming the choices.
    """
    choices = typing.get_args(kind)
    if value not in choices:
        raise DataError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def check_level(level: float) -> None:
    """Raise unless a confidence level lies between 0 and 1.

    Raises:
        DataError: If it does not.
    """
    if not 0 < level < 1:
        raise DataError(f"expected a confidence level between 0 and 1, such as 0.95, got {level}")


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds, NumPy's as Python's; raise DataError if there is none, or one that no generator takes."""
    try:
        numbers = tuple(index(seed) for seed in seeds)
    except TypeError as error:
        raise DataError(f"expected seeds as whole numbers, got {seeds!r}") from error
    if not numbers or not all(0 <= seed < 2**63 for seed in numbers):
        raise DataError(f"expected seeds from 0 to 2^63 - 1, at least one, got {list(numbers)}")
    return numbers
