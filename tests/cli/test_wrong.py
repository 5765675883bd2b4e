"""A wrong call is answered in one line, which says what was expected and what came, with exit code 2, or 1 for data."""

from pathlib import Path

import pytest

from .wrong import SNAPSHOT, snapshot


def test_every_wrong_call_is_answered_as_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    assert snapshot(tmp_path) == SNAPSHOT.read_text()
