"""What an objective changes against its twin: by hand, and paired."""

import pytest
from scipy import stats

from layerprobe.finetuning.values import Protocol
from layerprobe.lab.dropbench.zoo import OTHER_SEED, TunedLayers, ZooEntry
from layerprobe.lab.effects import objective_effects
from layerprobe.readings.values import LayerCurve


def entry(family: str, seed: int, *, scores: tuple[float, ...], cka: tuple[float, ...], size: str = "s") -> ZooEntry:
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
        cka={OTHER_SEED: LayerCurve(values=cka)},
    )


ENTRIES = (
    entry("mlm", 0, scores=(10, 30, 29), cka=(1, 0.9, 0.8)),
    entry("mlm", 1, scores=(10, 28, 31), cka=(1, 0.9, 0.9)),
    entry("rtd", 0, scores=(10, 30, 24), cka=(1, 0.7, 0.3)),
    entry("rtd", 1, scores=(11, 31, 23), cka=(1, 0.9, 0.4)),
    entry("mlm", 0, scores=(9, 20), cka=(1, 0.9), size="t"),
    entry("rtd", 0, scores=(22, 20), cka=(1, 0.9), size="t"),
)


def test_drops_are_paired_by_size_and_seed() -> None:
    drops = [each for each in objective_effects(ENTRIES) if each.measure == "drop"]
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
    assert not other.certain


def test_an_interval_without_zero_is_certain() -> None:
    (wide,) = (e for e in objective_effects(ENTRIES) if e.measure == "drop" and not e.size)
    (narrow,) = (e for e in objective_effects(ENTRIES, level=0.5) if e.measure == "drop" and not e.size)
    assert (wide.certain, narrow.certain) == (False, True)


def test_layers_are_held_against_the_same_layer_of_the_twin() -> None:
    effects = objective_effects(ENTRIES)
    scores = {(e.size, e.layer): e.mean for e in effects if e.measure == "score"}
    assert scores == {("s", 0): 0.5, ("s", 1): 1.5, ("s", 2): -6.5, ("t", 0): 13, ("t", 1): 0}
    cka = [(e.layer, pytest.approx(e.mean)) for e in effects if e.measure == "CKA" and e.size == "s"]
    assert cka == [(0, 0), (1, -0.1), (2, -0.5)]


def test_what_has_no_twin_is_left_out() -> None:
    assert objective_effects(ENTRIES[2:4]) == ()
    assert objective_effects(ENTRIES[:2]) == ()
