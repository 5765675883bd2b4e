"""What any result calls the best layer is chosen by validation: no page leads with the layer that is best on test."""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from layerprobe.finetuning.values import FineTuningRun, LayerOutcome
from layerprobe.results.draw import figures
from layerprobe.results.shown import Shown
from tests.report.conftest import over_seeds
from tests.results.contract import texts

from .test_shown import CASES

BEST = re.compile(
    r"layer (\d+)(?: of \d+)?,? (?:is |scores |has )?(?:the )?(?:best|highest)|best layers?(?: by validation)?:? (\d+)"
    r"|by validation(?: is)?,? layer (\d+)|(?:best|highest)[^.;]{0,20} at layer (\d+)",
    re.IGNORECASE,
)
OF_NO_TEST = re.compile("without fine-tuning|zero-shot|run of all layers|expected", re.IGNORECASE)


def turned(value: Any) -> Any:
    """Return a result whose validation scores rise with depth, and whose test scores fall."""
    if isinstance(value, LayerOutcome):
        test, validation, n = 80.0 - value.layer, 50.0 + value.layer, len(value.seeds)
        return dataclasses.replace(
            value,
            test=dict.fromkeys(value.test, (test,) * n),
            validation=dict.fromkeys(value.validation, (validation,) * n),
            error=over_seeds((test - 0.1, test + 0.1), (test - 0.2, test + 0.2)),
        )
    if isinstance(value, FineTuningRun):
        test, validation = ({"spearman": start + value.layer * step} for start, step in ENDS)
        return dataclasses.replace(value, test=test, validation=validation, epochs=())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        changed = {name: turned(getattr(value, name)) for name in fields}
        same = all(changed[name] is getattr(value, name) for name in fields)
        return value if same else dataclasses.replace(value, **changed)
    if isinstance(value, tuple):
        parts = tuple(map(turned, value))
        return value if all(one is other for one, other in zip(parts, value, strict=True)) else parts
    return value


ENDS = ((80.0, -1.0), (50.0, 1.0))
"""Of test and of validation: the score of layer 0, and what a layer adds."""


def tuned_layers(value: Any) -> Iterator[set[int]]:
    """Yield the layers of each group of outcomes."""
    if isinstance(value, tuple) and value and all(isinstance(each, LayerOutcome) for each in value):
        for _, curve in itertools.groupby(value, key=lambda each: (each.model, each.task)):
            yield {each.layer for each in curve}
    elif isinstance(value, tuple):
        for each in value:
            yield from tuned_layers(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tuned_layers(getattr(value, field.name))


def sentences(result: Shown) -> list[str]:
    """Return what is said of a result, and the captions of its figures."""
    written = [*texts(result.conclusion), *(figure.finding for figure in figures(result))]
    return [sentence for text in written for sentence in re.split(r"(?<=[.]) ", text)]


def called_best(sentence: str) -> set[int]:
    """Return the layers that a sentence about fine-tuning calls the best."""
    if OF_NO_TEST.search(sentence):
        return set()
    return {int(number) for matched in BEST.findall(sentence) for number in matched if number}


TUNED = [name for name, make in CASES.items() if max(map(len, tuned_layers(make())), default=0) > 1]


@pytest.mark.parametrize("name", TUNED)
def test_no_result_calls_the_layer_best_that_is_best_on_test(name: str) -> None:
    result = turned(CASES[name]())
    by_test = {min(layers) for layers in tuned_layers(result) if len(layers) > 1}
    by_validation = {max(layers) for layers in tuned_layers(result)}
    for sentence in sentences(result):
        assert not called_best(sentence) & (by_test - by_validation), sentence
    if name in ("runs", "scans", "several tuned"):  # others choose by a search
        flags = zip(result.table.data["layer"], result.table.marks, strict=True)
        assert {layer for layer, mark in flags if mark == "chosen"} <= by_validation


def test_the_contract_sees_what_was_wrong_once() -> None:
    assert {"runs", "scans", "several tuned", "found"} <= set(TUNED)
    for wrong in (
        "Layer 3 scores best",
        "Best layers: 3 of a and 4 of b",
        "a on stsb: layer 3 scores highest, 70.0",
        "Fine-tuned, a scores best when truncated at layer 3: 70.00",
    ):
        assert 3 in called_best(wrong)
