"""Which examples share texts, and the sums over linked pairs against all pairs by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.kinds.triplets import Triplets
from layerprobe.stats.crossed import Links, crossed
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.values import Examples

TEXTS = st.sampled_from("abcdefgh")


def examples_of(first: str, second: str | None) -> Examples:
    return Examples(
        first=tuple(first), second=None if second is None else tuple(second), targets=tuple(0.0 for _ in first)
    )


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=20), st.integers(1, 3))
def test_sums_are_those_over_all_pairs_of_items_that_share_a_text(
    items: list[tuple[str, str, str]], n_sides: int
) -> None:
    first, second, third = (tuple(side) for side in zip(*items, strict=True))
    triplets = Triplets(anchors=first, positives=second, negatives=third)
    examples = triplets if n_sides == 3 else examples_of("".join(first), "".join(second) if n_sides == 2 else None)
    named = [set(item[:n_sides]) for item in items]
    linked = np.array([[float(bool(one & other)) for other in named] for one in named])
    links = links_of(examples)
    psi = np.random.default_rng(len(items)).normal(size=(3, len(items)))
    found = psi @ psi.T if links is None else links.products(psi)
    np.testing.assert_allclose(found, psi @ linked @ psi.T, atol=1e-12)
    assert (links is None) == (linked.sum() == len(items))


def test_units_are_texts_of_equal_weight() -> None:
    assert Links(sides=(np.arange(10) // 2,)).units == pytest.approx(5)
    assert Links(sides=(np.arange(10), np.arange(10, 20))).units == 10
    # two contexts of 40 questions are two, however many questions differ; a negative of all triplets is one
    assert Links(sides=(np.arange(2, 42), np.arange(40) // 20)).units == pytest.approx(2)
    assert Links(sides=(np.arange(9), np.arange(9, 18), np.full(9, 18))).units == pytest.approx(1)
    # all pairs of m texts are worth m texts or somewhat fewer
    every = np.array(list(itertools.combinations(range(20), 2))).T
    assert 13 < Links(sides=tuple(every)).units <= 20


def test_errors_of_questions_about_few_contexts_cover_their_mean() -> None:
    rng, n_contexts, n_each = np.random.default_rng(0), 4, 10
    contexts = np.repeat(np.arange(n_contexts), n_each)
    links = Links(sides=(np.arange(n_contexts, n_contexts + len(contexts)), contexts))
    covered = 0
    for _ in range(400):
        scores = 50 + 20 * (rng.normal(size=n_contexts)[contexts] + rng.normal(size=len(contexts)))
        found = crossed([scores.mean()], [scores - scores.mean()], links=links)
        assert found is not None
        covered += found.interval[0] <= 50 <= found.interval[1]
    assert covered / 400 > 0.92  # 0.85 where questions count as contexts, too
