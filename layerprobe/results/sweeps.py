"""What a sweep is made of, and what it left: runs over layers, seeds, tasks and models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A fine-tuning run that cannot be finished; the same versions would fail again."""

    layer: int
    seed: int
    message: str
    """Why, in one line."""
    step: int | None
    """The step at which it failed, from 1; None where it is not known."""
    versions: dict[str, str]
    """Of Python and the libraries that it failed with."""
