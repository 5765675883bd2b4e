"""Every kind of file that is kept, damaged at one place and by a link: nothing is read in silence."""

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.attacks.bytes import Kind, Tally, Told, attack, build
from layerprobe.store import store


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Kind]]:
    """One of everything; entries of several shards."""
    rows = store.MIN_SHARD_ROWS, store.MAX_SHARD_ROWS
    try:
        yield build(tmp_path_factory.mktemp("kept").resolve())
    finally:
        store.MIN_SHARD_ROWS, store.MAX_SHARD_ROWS = rows


@pytest.mark.slow
def test_no_damage_is_read_in_silence(kinds: list[Kind], tmp_path: Path) -> None:
    tally, told = Tally(), Told()
    logging.getLogger("layerprobe").addHandler(told)
    try:
        for kind in kinds:
            attack(kind, flips=1, chance=random.Random(1), tally=tally, told=told, place=tmp_path.resolve())
    finally:
        logging.getLogger("layerprobe").removeHandler(told)
    assert tally.bad == []
    assert tally.missed == []
    assert {name for name, _ in tally.counts} == {kind.name for kind in kinds}
