"""What two models are called in sentences and plots. Knows names only."""

from __future__ import annotations

import re


def short_names(model: str, reference: str) -> tuple[str, str]:
    """Return both names without organisation or folder, or the whole names where that would confuse the two.

    Example:
        >>> short_names("google/electra-base-discriminator", "google-bert/bert-base-cased@main")
        ('electra-base-discriminator', 'bert-base-cased@main')
        >>> short_names("old/model", "new/model")
        ('old/model', 'new/model')
    """
    first, second = (re.sub(r"^.*\w[/\\](?=\w)", "", name.rstrip("/\\")) for name in (model, reference))
    return (model, reference) if first == second else (first, second)
