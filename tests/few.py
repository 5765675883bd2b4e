"""A few cases of a long table in `make test`, and all of them in `make test-slow`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

USUAL_ARCHITECTURES = ("bert", "deberta-v3", "albert", "modernbert", "gpt2", "t5", "convbert")
"""One of each way in which architectures differ here."""


def few(cases: Iterable[Any], kept: Callable[[Any], bool]) -> list[Any]:
    """Return every case; those that are not kept are marked slow.

    Args:
        cases: Values of one parameter, or tuples of several.
        kept: Whether a case is run by `make test`.
    """
    found = [case if kept(case) else pytest.param(*_values(case), marks=pytest.mark.slow) for case in cases]
    assert any(not hasattr(case, "marks") for case in found), "expected a case that is kept"
    return found


def few_architectures(names: Iterable[str]) -> list[Any]:
    """Return all architectures; `make test` runs those that differ most."""
    return few(names, lambda name: name in USUAL_ARCHITECTURES)


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
