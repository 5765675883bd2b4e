"""Names and numbers as pages write them."""

from layerprobe.results.numbers import LABEL_LENGTH, label, labels


def test_names_that_differ_in_the_middle_stay_apart() -> None:
    start, end = "company-encoder-for-sentences", "of-2026-final-export"
    first, second = f"{start}-detector-{end}", f"{start}-masked-{end}"
    assert label(first) == label(second)
    assert labels([first, second]) == [first, second]
    assert labels([first, "short", f"another-{first}"]) == [label(first), "short", label(f"another-{first}")]
    assert len(label(first)) <= LABEL_LENGTH
    assert labels([first, first]) == [label(first)] * 2
