"""Python takes the words of the command line: numbers, layers, seeds, shares and names as a text."""

import numpy as np
import pytest

from layerprobe.checks import check_count, check_seeds, layer_numbers, one_layer, read_numbers
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.finetuning.values import Protocol
from layerprobe.profiling.values import ProfileSettings
from layerprobe.search.values import SearchSettings
from layerprobe.tasks.formats import Format
from layerprobe.tasks.values import TaskSettings


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (layer_numbers("3,6,9-12"), [3, 6, 9, 10, 11, 12]),
        (layer_numbers("9,3,3"), [3, 9]),
        (layer_numbers(""), []),
        (layer_numbers("-1", 6), [6]),
        (layer_numbers("0,-2,5-6", 6), [0, 5, 6]),
        (layer_numbers("-3--1", 6), [4, 5, 6]),
        (layer_numbers("4--2", 6), [4, 5]),
        (layer_numbers([-1, 0, -7], 6), [6, 0, 0]),
        (layer_numbers(np.int64(-2), 6), [5]),
        (one_layer("-0", 6), 0),
        (one_layer("-1"), -1),
        (check_seeds("3"), (0, 1, 2)),
        (check_seeds("3,5,8"), (3, 5, 8)),
        (check_count("5"), 5),
        (SearchSettings(budget="15%").budget, 0.15),  # type: ignore[arg-type]
        (SearchSettings(budget="0.5").budget, 0.5),  # type: ignore[arg-type]
        (Model("a", blocks="1,5-7").blocks, (1, 5, 6, 7)),  # type: ignore[arg-type]
        (Model("a", blocks=[1, 2]).blocks, (1, 2)),  # type: ignore[arg-type]
        (TaskSettings(source="a", columns="s1, s2,score").columns, ("s1", "s2", "score")),  # type: ignore[arg-type]
        (TaskSettings(source="a", score_range="0,5").score_range, (0.0, 5.0)),  # type: ignore[arg-type]
        (ProfileSettings(lengths="16,64").lengths, (16, 64)),  # type: ignore[arg-type]
        (Protocol(lora=8, lora_modules="query,value").lora_modules, ("query", "value")),  # type: ignore[arg-type]
        (Format.fields_in("delimiter=,,decimal=.,quotes=yes"), {"delimiter": ",", "decimal": ".", "quotes": True}),
    ],
)
def test_a_text_is_what_it_says(read: object, expected: object) -> None:
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize("text", ["", "x", "3,", "-1", "1..3", "5-2", "0-99999", "9" * 30, "1.5"])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"expected .* got "):
        read_numbers(text)


@pytest.mark.parametrize("layers", [7, -8, "7", "-100", "3,-8", "-8--1", [0, 99], [-9]])
def test_a_layer_that_a_model_lacks_is_refused(layers: object) -> None:
    with pytest.raises(DataError, match=r"expected layers from 0 to 6 of electra, got (-?\d+(, )?)+"):
        layer_numbers(layers, 6, of="electra")


@pytest.mark.parametrize("text", ["-", "--1", "-1-3", "-1..3", "−1", "-1-", "3,-"])
def test_what_is_no_layer_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"expected (whole numbers|a range) such as .* got "):
        layer_numbers(text, 6)
