"""Values to JSON and back: nothing is lost, and what is no such value is refused in one line."""

import dataclasses
import json
import math
import types
import typing
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE, digest, from_json, to_bytes, to_json
from layerprobe.finetuning.values import EpochMetrics, FineTuningRun, Protocol
from layerprobe.interval import Interval
from layerprobe.scoring.values import LayerScores
from layerprobe.similarity.measures import CKA
from layerprobe.tasks.values import Examples, Task

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everything:
    """A field of every type that results are made of."""

    whole: int
    number: float
    text: str
    flag: bool
    choice: Literal["mean", "cls"]
    pair: tuple[int, float]
    rows: tuple[tuple[float | None, ...], ...]
    by_name: dict[str, tuple[float, ...]]
    part: EpochMetrics
    parts: tuple[EpochMetrics, ...]
    measure: CKA
    maybe: float | None = None
    maybe_part: EpochMetrics | None = dataclasses.field(default=None, metadata=RARE)


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
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if origin is Literal:
        return st.sampled_from(arguments)
    if kind is CKA:
        return st.builds(CKA, kernel=st.just("rbf"), bandwidth_multiplier=st.floats(0.1, 9))
    if dataclasses.is_dataclass(kind):
        return st.builds(
            typing.cast(Any, kind), **{name: values_of(hint) for name, hint in typing.get_type_hints(kind).items()}
        )
    return {int: st.integers(), float: NUMBERS, str: TEXTS, bool: st.booleans()}[kind]


RUN = FineTuningRun(
    layer=3,
    seed=1,
    protocol=Protocol(epochs=1),
    parameters=1000,
    best_epoch=1,
    primary="spearman",
    validation={"spearman": 80.5, "pearson": 80.0},
    test={"spearman": 75.25, "pearson": 75.0},
    epochs=(EpochMetrics(epoch=1, train_loss=0.04, validation={"spearman": 80.5, "pearson": 80.0}),),
    seconds=12.5,
    peak_memory=2**30,
)


def changed(**fields: Any) -> str:
    """The JSON of `RUN` with other fields."""
    return json.dumps({**json.loads(to_json(RUN)), **fields})


@given(values_of(Everything))
def test_json_gives_back_the_same_value(value: Everything) -> None:
    text = to_json(value)
    again = from_json(Everything, text)
    assert again == value
    assert to_json(again) == text


def test_a_field_with_a_default_can_be_left_out() -> None:
    assert from_json(Protocol, "{}") == Protocol()


WRONG = {
    "no JSON": ("{", "expected a FineTuningRun as JSON: Expecting property name"),
    "a list": ("[]", r"expected a table, got \[\]"),
    "unknown field": (changed(colour="red"), "unknown key colour, expected layer, seed, protocol"),
    "missing field": ('{"layer": 3}', "expected seed, a whole number, got none"),
    "missing nested field": (changed(epochs=[{"epoch": 1}]), r"expected epochs\[0\]\.train_loss, a number, got none"),
    "text for a number": (changed(layer="3"), 'expected layer to be a whole number, got "3"'),
    "float for an int": (changed(layer=3.0), "expected layer to be a whole number, got 3.0"),
    "bool for an int": (changed(layer=True), "expected layer to be a whole number, got true"),
    "bool for a float": (changed(seconds=True), "expected seconds to be a number, got true"),
    "text for a tuple": (changed(epochs="abc"), 'expected epochs to be a list of tables, got "abc"'),
    "list for an object": (changed(protocol=[1]), r"expected protocol to be a table, got \[1\]"),
    "NaN": (changed(seconds=math.nan), "expected a finite number or null, got NaN"),
    "infinity": (changed(seconds=-math.inf), "expected a finite number or null, got -Infinity"),
    "a number too large": (
        changed(seconds=1).replace('"seconds": 1', '"seconds": 1e999'),
        "expected seconds to be a number, got Infinity",
    ),
    "an integer too large": (changed(seconds=10**400), "expected seconds to be a number, got 10000"),
    "no such choice": (
        changed(protocol={"pooling": "median"}),
        'expected protocol.pooling to be one of mean, cls, max, last, got "median"',
    ),
    "an impossible value": (changed(protocol={"epochs": 0}), "expected at least one epoch"),
    "a long wrong value": (changed(layer="x" * 1000), r'expected layer to be a whole number, got "x{56}\.\.\.'),
    "deep nesting": ("[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_run_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        from_json(FineTuningRun, text)
    assert str(caught.value).startswith("expected a FineTuningRun as JSON: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_tuple_of_fixed_length_must_have_it() -> None:
    interval = Interval(value=1.0, standard_error=0.5, interval=(0.0, 2.0), level=0.95, freedom=9)
    text = to_json(interval)
    assert from_json(Interval, text) == interval
    with pytest.raises(DataError, match=r"expected interval to be two numbers in a list, got \[3, 4, 5\]"):
        from_json(Interval, json.dumps({**json.loads(text), "interval": [3, 4, 5]}))
    with pytest.raises(DataError, match=r'expected weighting to be one of .*, got "maybe"'):
        from_json(FineTuningRun, changed(weighting="maybe"))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_not_written(number: float) -> None:
    with pytest.raises(DataError, match="expected finite numbers in a FineTuningRun, got NaN or infinity"):
        to_json(dataclasses.replace(RUN, seconds=number))


def spearman_of(*scores: float, split: str = "test") -> LayerScores:
    metrics = {"spearman": scores, "pearson": tuple(-score for score in scores)}
    return LayerScores(split=split, method="cosine", primary="spearman", metrics=metrics)


def test_a_name_that_is_no_utf8_is_written_and_read() -> None:
    scores = spearman_of(1.0, split="caf\udce9 ü 비")
    data = to_bytes(scores)
    assert "caf\\udce9 ü 비" in data.decode()
    assert to_json(scores).encode() == data
    assert from_json(LayerScores, data.decode()) == scores


def test_a_digest_is_what_it_always_was() -> None:
    """Digests name stored results: another value here would orphan them all."""
    # printf '["a",1,0.5,null]' | sha256sum
    assert digest(["a", 1, 0.5, None]) == "17b71729aa9e49e8c4cf817f2f09c877237a3c996c70329bc7a823cd6f47a2d2"
    # printf '{"epoch":1,"train_loss":0.5,"validation":{"pearson":2.0,"spearman":1.0}}' | sha256sum
    metrics = EpochMetrics(epoch=1, train_loss=0.5, validation={"spearman": 1.0, "pearson": 2.0})
    assert digest(metrics) == "597487f94c8d37c98ead724a11c5e8cf1fa5bbba140a94c21a3c6765b88cfa9c"


@given(st.text(), st.text())
def test_texts_are_told_apart(first: str, second: str) -> None:
    """Lone surrogates among them."""
    assert (digest([first]) == digest([second])) == (first == second)


def test_where_one_text_ends_matters() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_a_task_is_known_by_its_sentences_and_scores_alone() -> None:
    def task(**changes: Any) -> Task:
        fields = {"name": "a", "kind": "sts", "train": pairs("xyz"), "validation": pairs("xy"), "test": pairs("x")}
        return Task(**{**fields, "score_range": (0.0, 5.0), **changes})

    def pairs(letters: str, score: float = 0.5) -> Examples:
        return Examples(first=tuple(letters), second=tuple(letters), targets=(score,) * len(letters))

    assert task().digest == task(name="b", score_range=(0.0, 1.0), notes=("a note",)).digest
    others = [task(train=pairs("xyw")), task(test=pairs("x", 0.6)), task(validation=pairs("x"), test=pairs("xy"))]
    assert len({task().digest, *(other.digest for other in others)}) == 4


def test_the_texts_of_pairs_are_distinct_in_order_of_first_appearance() -> None:
    pairs = Examples(first=("b", "a", "b"), second=("c", "b", "d"), targets=(0.0, 0.5, 1.0))
    assert pairs.texts == ("b", "c", "a", "d")
    assert len(pairs) == 3


def test_the_best_layer_is_the_earlier_one_of_equals() -> None:
    scores = spearman_of(10.0, 70.0, 70.0, 60.0)
    assert scores.best_layer == 1


BAD_PROTOCOLS: list[tuple[dict[str, Any], str]] = [
    ({"learning_rate": 0.0}, "a finite learning rate above 0"),
    ({"learning_rate": math.nan}, "a finite learning rate above 0"),
    ({"learning_rate": math.inf}, "a finite learning rate above 0"),
    ({"weight_decay": -0.1}, "a finite weight decay of 0 or more"),
    ({"epochs": 0}, "at least one epoch"),
    ({"batch_size": 0}, "at least one example a batch"),
    ({"warmup": 1.5}, "a warm-up from 0 to 1"),
    ({"max_grad_norm": 0.0}, "a finite gradient norm above 0"),
    ({"max_length": 1}, "room for at least two tokens"),
    ({"pooling": "median"}, "pooling by one of"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_PROTOCOLS)
def test_an_impossible_protocol_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"expected {message}.*, got Protocol"):
        Protocol(**fields)
