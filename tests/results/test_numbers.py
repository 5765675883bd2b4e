"""Names and numbers as pages write them."""

import math

import pytest

from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Unit, Verdict
from layerprobe.results.words import LABEL_LENGTH, label, labels

WIDE, ABOVE, BELOW = (-5e5, 5e5), (0.02, 14.1), (-14.1, -0.02)


def test_names_that_differ_in_the_middle_stay_apart() -> None:
    start, end = "company-encoder-for-sentences", "of-2026-final-export"
    first, second = f"{start}-detector-{end}", f"{start}-masked-{end}"
    assert label(first) == label(second)
    assert labels([first, second]) == [first, second]
    assert labels([first, "short", f"another-{first}"]) == [label(first), "short", label(f"another-{first}")]
    assert len(label(first)) <= LABEL_LENGTH
    assert labels([first, first]) == [label(first)] * 2


@pytest.mark.parametrize(
    ("unit", "value", "interval", "number", "ends"),
    [
        ("points", 7.0, ABOVE, "+7.0", "0.02 to 14.1"),  # what excludes 0 is seen to
        ("points", -7.0, BELOW, "-7.0", "-14.1 to -0.02"),
        ("points", 0.04, ABOVE, "+0.04", "0.02 to 14.1"),
        ("points", -0.04, WIDE, "+0.0", "-500000.0 to 500000.0"),
        ("points", 0.0, (0.0, 0.0), "+0.0", "0.0"),
        ("score", 99.99, (96.7, 100.0), "+99.99", "96.7 to 100.0"),
        ("share", 0.996, None, "+99.6 %", None),  # not all
        ("share", -0.9996, None, "-99.96 %", None),
        ("share", 1.0, None, "+100 %", None),
        ("share", 1.5, None, "+150 %", None),
        ("share", 3e-05, None, "+0.003 %", None),  # not nothing
        ("times", 0.98, (0.4, 3.0), "+1.0×", "0.4× to 3.0×"),
        ("times", 1.004, (1.002, 1.04), "+1.004×", "1.002× to 1.04×"),
        ("times", 250.0, (60.0, 300.0), ">40×", ">40×"),
        ("parameters", 10.0, None, "10", None),
        ("parameters", 7e9, None, "7,000.0 M", None),
        ("seconds", 0.4, None, "<1 s", None),
        ("seconds", 0.0, None, "0 s", None),
        ("number", 90_000.0, None, "+90,000", None),
    ],
)
def test_numbers_are_not_rounded_to_what_is_not_true(
    unit: Unit, value: float, interval: tuple[float, float] | None, number: str, ends: str | None
) -> None:
    fact = Fact(value=value, unit=unit, interval=interval)

    assert words.fact_text(fact, "+") == number
    assert ends is None or words.fact_text(fact, "ends") == ends


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_as_if_it_were_not_there(value: float) -> None:
    facts = {"gain": Fact(value=3.0, interval=(-value, value), level=0.95), "behind": Fact(value=value)}
    conclusion = Conclusion(kind="find", case="cut", verdict=Verdict.UNDECIDED, facts=facts, names={"layer": 5})

    assert words.tiles(conclusion) == [("+3.0", "points, no significant gain")]
    assert words.sentence(conclusion) == ""
