"""Values to JSON and back: nothing is lost, and what is no such value is refused in one line."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe import results
from layerprobe.errors import DataError
from layerprobe.results import (
    CKACurve,
    Confirmation,
    EpochMetrics,
    FineTuningRun,
    LayerScores,
    Protocol,
    SentencePairs,
    STSTask,
    Study,
    digest,
    from_json,
    to_json,
)

KINDS = [kind for kind in vars(results).values() if dataclasses.is_dataclass(kind)]
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that results are made of."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return st.one_of([st.none() if option is type(None) else values_of(option) for option in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(TEXTS, values_of(arguments[1]), max_size=2)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if kind is Protocol:
        return st.builds(Protocol, epochs=st.integers(1, 9), learning_rate=st.floats(1e-9, 1.0))
    if kind is SentencePairs:
        pairs = st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), min_size=1, max_size=3).map(
            lambda rows: zip(*rows, strict=True)
        )
        return pairs.map(
            lambda columns: SentencePairs(**dict(zip(("first", "second", "scores"), columns, strict=True)))
        )
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in dataclasses.fields(kind)})
    return {int: st.integers(), float: NUMBERS, str: TEXTS, bool: st.booleans()}[kind]


RUN = FineTuningRun(
    layer=3,
    seed=1,
    protocol=Protocol(epochs=1),
    parameters=1000,
    best_epoch=1,
    validation_spearman=80.5,
    validation_pearson=80.0,
    test_spearman=75.25,
    test_pearson=75.0,
    epochs=(EpochMetrics(epoch=1, train_loss=0.04, validation_spearman=80.5, validation_pearson=80.0),),
    seconds=12.5,
    peak_memory=2**30,
)


def changed(**fields: Any) -> str:
    """The JSON of `RUN` with other fields."""
    return json.dumps({**json.loads(to_json(RUN)), **fields})


# ---- there and back -----------------------------------------------------------------------------------


def test_every_result_is_looked_at() -> None:
    assert {Study, STSTask, Confirmation, FineTuningRun, CKACurve} <= set(KINDS)
    assert len(KINDS) >= 17


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_json_gives_back_the_same_value(kind: type) -> None:
    @given(value=values_of(kind))
    def check(value: Any) -> None:
        text = to_json(value)
        again = from_json(kind, text)
        assert again == value
        assert type(again) is kind
        assert to_json(again) == text

    check()


def test_whole_numbers_are_read_as_floats_where_floats_are_due() -> None:
    run = from_json(FineTuningRun, changed(test_spearman=75, seconds=3))
    assert (run.test_spearman, type(run.test_spearman), type(run.seconds)) == (75.0, float, float)


def test_tuples_and_nested_values_come_back_as_such() -> None:
    run = from_json(FineTuningRun, to_json(RUN))
    assert isinstance(run.epochs, tuple)
    assert isinstance(run.epochs[0], EpochMetrics)
    assert isinstance(run.protocol, Protocol)
    hash(run)


def test_a_field_with_a_default_can_be_left_out() -> None:
    assert from_json(Protocol, "{}") == Protocol()


# ---- what is refused ----------------------------------------------------------------------------------

WRONG = {
    "no JSON": ("{", "expected a FineTuningRun as JSON: Expecting property name"),
    "nothing": ("", "Expecting value"),
    "a list": ("[]", r"\[\] is no dict"),
    "null": ("null", "None is no dict"),
    "unknown field": (changed(colour="red"), "FineTuningRun has no field colour"),
    "missing field": ('{"layer": 3}', "FineTuningRun lacks best_epoch, epochs, parameters"),
    "missing nested field": (changed(epochs=[{"epoch": 1}]), "EpochMetrics lacks train_loss"),
    "text for a number": (changed(layer="3"), "'3' is no int"),
    "float for an int": (changed(layer=3.0), "3.0 is no int"),
    "bool for an int": (changed(layer=True), "True is no int"),
    "bool for a float": (changed(seconds=True), "True is no float"),
    "null for a float": (changed(seconds=None), "None is no float"),
    "text for a tuple": (changed(epochs="abc"), "'abc' is no list"),
    "object for a tuple": (changed(epochs={"a": 1}), "is no list"),
    "list for an object": (changed(protocol=[1]), r"\[1\] is no dict"),
    "NaN": (changed(seconds=math.nan), "nan is not finite"),
    "infinity": (changed(seconds=-math.inf), "-inf is not finite"),
    "a number too large": (changed(seconds=1).replace('"seconds": 1', '"seconds": 1e999'), "inf is not finite"),
    "an integer too large": (changed(seconds=10**400), "is no float"),
    "no such choice": (
        changed(protocol={"pooling": "median"}),
        r"'median' is none of \('mean', 'cls', 'max', 'last'\)",
    ),
    "an impossible value": (changed(protocol={"epochs": 0}), "expected at least one epoch"),
    "a long wrong value": (changed(layer="x" * 1000), r"'x{56}\.\.\. is no int"),
    "deep nesting": ("[" * 100_000, "recursion"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_run_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        from_json(FineTuningRun, text)
    assert str(caught.value).startswith("expected a FineTuningRun as JSON: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_tuple_of_fixed_length_must_have_it() -> None:
    confirmation = Confirmation(
        verdict="refuted", compared_layers=(3, 4), effect=0.1, interval=None, level=0.95, outcomes=(), sentence="."
    )
    text = to_json(confirmation)
    assert from_json(Confirmation, text) == confirmation
    with pytest.raises(DataError, match=r"\[3, 4, 5\] has 3 items, not 2"):
        from_json(Confirmation, json.dumps({**json.loads(text), "compared_layers": [3, 4, 5]}))
    with pytest.raises(DataError, match="'maybe' is none of"):
        from_json(Confirmation, json.dumps({**json.loads(text), "verdict": "maybe"}))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_not_written(number: float) -> None:
    with pytest.raises(DataError, match="expected finite numbers in a FineTuningRun, got NaN or infinity"):
        to_json(dataclasses.replace(RUN, seconds=number))


# ---- digests ------------------------------------------------------------------------------------------


def test_a_digest_is_what_it_always_was() -> None:
    """Digests name stored results: another value here would orphan them all."""
    # printf '["a",1,0.5,null]' | sha256sum
    assert digest(["a", 1, 0.5, None]) == "17b71729aa9e49e8c4cf817f2f09c877237a3c996c70329bc7a823cd6f47a2d2"
    # printf '{"epoch":1,"train_loss":0.5,"validation_pearson":2.0,"validation_spearman":1.0}' | sha256sum
    metrics = EpochMetrics(epoch=1, train_loss=0.5, validation_spearman=1.0, validation_pearson=2.0)
    assert digest(metrics) == "ae67ad5178127684a274dfe2c8cbfb7437386a3ef874eea5259ac1affd81d160"


def test_the_order_of_keys_does_not_matter_and_that_of_items_does() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest([1, 2]) != digest([2, 1])


@given(st.text(), st.text())
def test_texts_are_told_apart(first: str, second: str) -> None:
    """Lone surrogates among them."""
    assert (digest([first]) == digest([second])) == (first == second)


def test_where_one_text_ends_matters() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_a_task_is_known_by_its_sentences_and_scores_alone() -> None:
    def task(**changes: Any) -> STSTask:
        fields = {"name": "a", "train": pairs("xyz"), "validation": pairs("xy"), "test": pairs("x")}
        return STSTask(**{**fields, "score_range": (0.0, 5.0), **changes})

    def pairs(letters: str, score: float = 0.5) -> SentencePairs:
        return SentencePairs(first=tuple(letters), second=tuple(letters), scores=(score,) * len(letters))

    assert task().digest == task(name="b", score_range=(0.0, 1.0), notes=("a note",)).digest
    others = [task(train=pairs("xyw")), task(test=pairs("x", 0.6)), task(validation=pairs("x"), test=pairs("xy"))]
    assert len({task().digest, *(other.digest for other in others)}) == 4


# ---- small rules --------------------------------------------------------------------------------------


def test_the_texts_of_pairs_are_distinct_in_order_of_first_appearance() -> None:
    pairs = SentencePairs(first=("b", "a", "b"), second=("c", "b", "d"), scores=(0.0, 0.5, 1.0))
    assert pairs.texts == ("b", "c", "a", "d")
    assert len(pairs) == 3


def test_pairs_of_unequal_lengths_are_refused() -> None:
    with pytest.raises(DataError, match=r"as many first as second sentences and scores, got \(2, 1, 2\)"):
        SentencePairs(first=("a", "b"), second=("c",), scores=(0.1, 0.2))


def test_the_best_layer_is_the_earlier_one_of_equals() -> None:
    scores = LayerScores(split="test", spearman=(10.0, 70.0, 70.0, 60.0), pearson=(90.0, 0.0, 0.0, 0.0))
    assert scores.best_layer == 1


BAD_PROTOCOLS: list[tuple[dict[str, Any], str]] = [
    ({"learning_rate": 0.0}, "a learning rate above 0"),
    ({"learning_rate": math.nan}, "a learning rate above 0"),
    ({"learning_rate": math.inf}, "a learning rate above 0"),
    ({"weight_decay": -0.1}, "a weight decay of 0 or more"),
    ({"epochs": 0}, "at least one epoch"),
    ({"batch_size": 0}, "at least one pair a batch"),
    ({"warmup": 1.5}, "a warm-up from 0 to 1"),
    ({"max_grad_norm": 0.0}, "a gradient norm above 0"),
    ({"max_length": 1}, "room for at least two tokens"),
    ({"pooling": "median"}, "pooling by one of"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_PROTOCOLS)
def test_an_impossible_protocol_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"expected {message}.*, got Protocol"):
        Protocol(**fields)
