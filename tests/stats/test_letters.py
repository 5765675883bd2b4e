"""Which scores differ, over all pairs at once, and letters that say it."""

import itertools
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.metrics.influence import correlation_influences, mean_influences
from layerprobe.stats.best import compact_letters, differing
from layerprobe.stats.links import Links


def apart(names: str, *pairs: str) -> NDArray[np.bool_]:
    """(m, m) which differ, of pairs such as `ac`."""
    different = np.zeros((len(names), len(names)), dtype=bool)
    for first, second in pairs:
        i, j = names.index(first), names.index(second)
        different[i, j] = different[j, i] = True
    return different


def by_group(letters: tuple[str, ...]) -> set[frozenset[int]]:
    """The members of each letter: displays that only name letters otherwise are the same."""
    return {frozenset(i for i, own in enumerate(letters) if letter in own) for letter in set("".join(letters))}


@pytest.mark.parametrize(
    ("names", "pairs", "expected"),
    [
        # the documentation of R's multcompView, multcompLetters, examples 1 and 2
        ("abc", ("bc",), ("ab", "a", "b")),
        ("abcd", ("ab", "ac", "bd"), ("a", "b", "bc", "ac")),
        # the documentation of R's cld: pairwise Wilcoxon tests of chickwts, casein to sunflower
        ("chlmsf", ("ch", "cl", "cs", "hm", "hs", "hf", "lf", "sf"), ("a", "b", "bc", "ac", "c", "a")),
        ("abc", (), ("a", "a", "a")),
        ("abc", ("ab", "ac", "bc"), ("a", "b", "c")),
    ],
)
def test_known_displays(names: str, pairs: tuple[str, ...], expected: tuple[str, ...]) -> None:
    values = [float(-i) for i in range(len(names))]
    assert by_group(compact_letters(apart(names, *pairs), values)) == by_group(expected)


@given(
    st.integers(1, 9).flatmap(
        lambda m: st.tuples(
            st.just(m),
            st.sets(
                st.sampled_from([pair for pair in itertools.combinations(range(9), 2) if pair[1] < m] or [(-1, -1)])
            ),
        )
    ),
    st.randoms(),
)
def test_two_share_a_letter_if_and_only_if_they_do_not_differ(
    drawn: tuple[int, set[tuple[int, int]]], random: object
) -> None:
    m, pairs = drawn
    different = np.zeros((m, m), dtype=bool)
    for i, j in pairs - {(-1, -1)}:
        different[i, j] = different[j, i] = True
    values = [float(place) for place in range(m)]
    random.shuffle(values)  # type: ignore[attr-defined]
    letters = compact_letters(different, values)
    for i, j in itertools.product(range(m), repeat=2):
        assert bool(set(letters[i]) & set(letters[j])) == (not different[i, j])
    groups = by_group(letters)
    assert not any(one < other for one in groups for other in groups), "a group inside another one says nothing"
    assert "a" in letters[int(np.argmax(values))]
    # named without a gap, and the same whatever the order of the scores
    assert set("".join(letters)) == set(string.ascii_letters[: len(groups)])
    order = np.argsort(values)
    turned = compact_letters(different[np.ix_(order, order)], [values[i] for i in order])
    assert [letters[i] for i in order] == list(turned)


def test_more_groups_than_letters_have_numbers() -> None:
    letters = compact_letters(~np.eye(60, dtype=bool), [float(-i) for i in range(60)])
    assert letters[:2] + letters[51:54] == ("a", "b", "Z", "a1", "b1")
    assert len(set(letters)) == 60


def test_there_are_not_as_many_letters_as_largest_groups() -> None:
    """Eight pairs of equals, each pair apart from nobody but itself: by inserting and absorbing 2^8 groups."""
    different = np.kron(np.eye(8), 1 - np.eye(2)).astype(bool)
    letters = compact_letters(different, [float(-i) for i in range(16)])
    for i, j in itertools.combinations(range(16), 2):
        assert bool(set(letters[i]) & set(letters[j])) == (not different[i, j])
    assert len(set("".join(letters))) <= 40


def test_pairs_are_compared_and_not_single_scores() -> None:
    rng = np.random.default_rng(0)
    shared, noise = 30 * rng.standard_normal(400), rng.standard_normal((2, 400))
    scores = np.stack([shared + noise[0], shared + noise[1] + 2, shared + noise[1] * 0 + 30 * rng.standard_normal(400)])
    different = differing(scores.mean(axis=1).tolist(), [mean_influences(each) for each in scores])
    # the first two move together: 2 points apart are seen with an error of 0.07, of which one item in 400 is the least
    assert different.tolist() == [[False, True, False], [True, False, False], [False, False, False]]


def test_the_order_of_scores_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws belong to a score wherever it stands, so that a pair at the edge is not on either side of it."""
    monkeypatch.setattr("layerprobe.stats.best.DRAWS", 100)  # the fewer, the more pairs are at the edge
    rng = np.random.default_rng(0)
    for _ in range(5):
        scores, order = 10 * rng.random((6, 1)) + 30 * rng.standard_normal((6, 80)), rng.permutation(6)
        for level in np.linspace(0.05, 0.95, 19):
            whole, turned = (
                differing(each.mean(axis=1).tolist(), [mean_influences(row) for row in each], level=level)
                for each in (scores, scores[order])
            )
            np.testing.assert_array_equal(turned, whole[np.ix_(order, order)])


def test_nothing_differs_by_less_than_an_item() -> None:
    same = [mean_influences([0.0, 100.0] * 10)] * 2
    assert not differing([50.0, 54.0], same).any()
    assert differing([50.0, 80.0], same).any()
    linked = Links(sides=(np.repeat(np.arange(4), 5),))
    assert not differing([50.0, 80.0], same, links=linked).any(), "four texts are worth four items"


def test_one_item_has_no_error() -> None:
    with pytest.raises(DataError, match="expected at least two items"):
        differing([50.0, 60.0], [[0.0], [0.0]], links=Links(sides=(np.zeros(1, dtype=np.intp),)))


def flat_world(rng: np.random.Generator, m: int, n: int, metric: str) -> bool:
    """Whether any two of m models differ that are equally good: noisy readings of one truth, alike within groups."""
    truth = rng.standard_normal(n)
    shared = rng.standard_normal((3, n))[np.arange(m) % 3]  # layers of three models
    outputs = truth + 0.8 * shared + 0.4 * rng.standard_normal((m, n))
    if metric == "accuracy":
        right = 100.0 * (outputs > 0)
        return bool(differing(right.mean(axis=1).tolist(), [mean_influences(each) for each in right]).any())
    gold = truth + rng.standard_normal(n)
    found = [100 * correlation_influences(each, gold)["spearman"] for each in outputs]
    from layerprobe.metrics.correlation import spearman

    return bool(differing([100 * spearman(each, gold) for each in outputs], found).any())


@pytest.mark.parametrize(("metric", "n"), [("accuracy", 200), ("spearman", 200)])
def test_in_a_flat_world_no_two_differ(metric: str, n: int) -> None:
    rng, worlds = np.random.default_rng(7), 40
    false = sum(flat_world(rng, 9, n, metric) for _ in range(worlds))
    assert false <= 6, "P(more of 40 at 5 %) is 0.003"


@pytest.mark.slow
@pytest.mark.parametrize("n", [60, 300])
@pytest.mark.parametrize("m", [2, 12, 40])
@pytest.mark.parametrize("metric", ["accuracy", "spearman"])
def test_letters_keep_their_level(metric: str, m: int, n: int) -> None:
    rng, worlds = np.random.default_rng(m * n), 400
    false = sum(flat_world(rng, m, n, metric) for _ in range(worlds))
    print(metric, m, n, false / worlds)
    assert false / worlds <= 0.05 + 2.6 * (0.05 * 0.95 / worlds) ** 0.5


def test_true_differences_are_seen() -> None:
    rng = np.random.default_rng(1)
    right = 100.0 * (rng.random((4, 1000)) < np.array([0.9, 0.9, 0.7, 0.5])[:, None])
    different = differing(right.mean(axis=1).tolist(), [mean_influences(each) for each in right])
    letters = compact_letters(different, right.mean(axis=1).tolist())
    assert letters == ("a", "a", "b", "c")
