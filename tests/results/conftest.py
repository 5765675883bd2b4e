"""Words of the results of `made`."""

import pytest

from layerprobe.results import words

from .made import TEMPLATES


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let results that are made by hand have words of their own."""
    every = words._words()
    every = every | {name: every.get(name, {}) | section for name, section in TEMPLATES.items()}
    monkeypatch.setattr(words, "_words", lambda: every)
