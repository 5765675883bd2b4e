"""What is wrong with a TOML file is said in one line, which names the file."""

from pathlib import Path

import pytest

from tests.mistakes import SNAPSHOT, snapshot


def test_each_mistake_is_answered_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers = snapshot()
    assert answers == SNAPSHOT.read_text(), "read what changed, then write it with python -m tests.mistakes"
