"""What an objective changes against its twin: by hand, and paired."""

import pytest
from scipy import stats

from layerprobe.finetuning.values import Protocol
from layerprobe.lab.dropbench.zoo import TunedLayers, ZooEntry, effects_table, objective_effects


def entry(family: str, seed: int, *, scores: tuple[float, ...], size: str = "s") -> ZooEntry:
    """Return a model whose runs of two seeds have the same scores on both splits."""
    matrix = tuple((score, score) for score in scores)
    tuned = TunedLayers(protocol=Protocol(), steps=1, seeds=(0, 1), validation=matrix, test=matrix)
    return ZooEntry(
        name=f"{size}-{family}-{seed}",
        family=family,
        size=size,
        seed=seed,
        corpus="language",
        task="toy",
        metric="spearman",
        n_blocks=len(scores) - 1,
        budgets={"long": tuned},
    )


ENTRIES = (
    entry("mlm", 0, scores=(10, 30, 29)),
    entry("mlm", 1, scores=(10, 28, 31)),
    entry("rtd", 0, scores=(10, 30, 24)),
    entry("rtd", 1, scores=(11, 31, 23)),
    entry("mlm", 0, scores=(9, 20), size="t"),
    entry("rtd", 0, scores=(22, 20), size="t"),
)


def test_drops_are_paired_by_size_and_seed() -> None:
    drops = objective_effects(ENTRIES)
    assert [each.size for each in drops] == [None, "s", "t"]
    together, small, other = drops
    assert together.values == (6, 8, 2)
    assert together.twins == (1, 0, 0)
    assert together.models == ("s-rtd-0", "s-rtd-1", "t-rtd-0")
    assert small.mean == 6.5
    # the paired t test as scipy has it
    expected = stats.ttest_rel(together.values, together.twins).confidence_interval(0.95)
    assert together.interval == pytest.approx(tuple(expected))
    assert other.interval is None


def test_an_interval_without_zero_is_marked() -> None:
    for level, mark in ((0.95, None), (0.5, "chosen")):
        assert effects_table(objective_effects(ENTRIES, level=level), level).marks[0] == mark


def test_what_has_no_twin_is_left_out() -> None:
    assert objective_effects(ENTRIES[2:4]) == ()
    assert objective_effects(ENTRIES[:2]) == ()
