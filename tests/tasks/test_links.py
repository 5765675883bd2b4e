"""Which examples share texts, and the sums over linked pairs against all pairs by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DataError
from layerprobe.metrics.links import Links
from layerprobe.tasks.links import links_of
from layerprobe.tasks.values import Examples

TEXTS = st.sampled_from("abcdefgh")


def examples_of(first: str, second: str | None) -> Examples:
    return Examples(
        first=tuple(first), second=None if second is None else tuple(second), targets=tuple(0.0 for _ in first)
    )


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20), st.booleans(), st.data())
def test_sums_are_those_over_all_pairs_of_items_that_share_a_text(
    items: list[tuple[str, str]], pairs: bool, data: st.DataObject
) -> None:
    examples = examples_of("".join(a for a, _ in items), "".join(b for _, b in items) if pairs else None)
    documents = {"a": "one", "b": "one", "c": "d"} if data.draw(st.booleans()) else {}
    named = [{documents.get(text, f"own {text}") for text in (item if pairs else item[:1])} for item in items]
    linked = np.array([[float(bool(one & other)) for other in named] for one in named])
    links = links_of(examples, documents)
    psi = np.random.default_rng(len(items)).normal(size=(3, len(items)))
    found = psi @ psi.T if links is None else links.products(psi)
    np.testing.assert_allclose(found, psi @ linked @ psi.T, atol=1e-12)
    assert (links is None) == (linked.sum() == len(items))


def test_a_document_counts_as_one_text() -> None:
    examples = examples_of("abcd", "efgh")
    assert links_of(examples) is None
    links = links_of(examples, {"a": "novel", "g": "novel"})
    assert links is not None
    assert links.products(np.eye(4))[0].tolist() == [1, 0, 1, 0]


def test_a_text_with_the_name_of_a_document_is_not_in_it() -> None:
    assert links_of(examples_of("ab", None), {"a": "b"}) is None


def test_units_are_texts_of_equal_weight() -> None:
    assert Links(first=np.arange(10) // 2).units == pytest.approx(5)
    assert Links(first=np.arange(10), second=np.arange(10, 20)).units == 10
    # one text in all of n pairs, n texts in one each: (2 n)^2 / (n^2 + n)
    assert Links(first=np.zeros(99, dtype=int), second=np.arange(1, 100)).units == pytest.approx(4 * 99 / 100)


def test_sides_of_other_lengths_are_an_error() -> None:
    with pytest.raises(DataError, match="expected as many second as first texts, got 3 and 2"):
        Links(first=np.arange(2), second=np.arange(3))
