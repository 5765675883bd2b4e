"""All sentences are as they were last read: `python -m tests.stats.sentences` writes them anew."""

import re

import pytest

from tests.stats.sentences import PARTS, SNAPSHOT, snapshot


def test_every_sentence_is_as_it_was_read() -> None:
    assert snapshot() == SNAPSHOT.read_text()


@pytest.mark.parametrize("part", PARTS)
def test_sentences_are_sentences(part: str) -> None:
    """Nothing is called tied, no number is unfinished, and no two spaces or stops stand together."""
    for _, line in PARTS[part]():
        assert not re.search(r"\btied\b|\bnan\b|\binf\b|  |\.\.|None|\( ", line), line
