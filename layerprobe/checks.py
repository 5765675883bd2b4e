"""Checks of arguments at the public boundary. Knows no stage."""

import dataclasses
import importlib.util
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from numbers import Real
from operator import index
from typing import Any

from layerprobe.errors import DataError, MissingPackageError
from layerprobe.names import some

S = typing.TypeVar("S")
MOST_NUMBERS, MOST_SEEDS = 10_000, 1000
"""Largest number of entries of a range, and of seeds that are requested by count in a text."""
LEVEL = 0.95
"""Confidence level of intervals, bands and verdicts, unless another is given."""


def check_choice(value: object, kind: object, *, name: str) -> None:
    """Raise unless `value` is one of the strings of the Literal `kind`."""
    choices = typing.get_args(kind)
    if value not in choices:
        raise DataError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def settings_or_default(value: S | None, kind: type[S]) -> S:
    """Return settings, by default those of their class; raise DataError if they are something else.

    Examples:
        >>> settings_or_default(None, dict)
        {}
    """
    if value is not None and not isinstance(value, kind):
        raise DataError(f"expected settings as {kind.__name__}(...), got {value!r}")
    return kind() if value is None else value


def check_fields(value: Any, expected: Mapping[str, object]) -> None:
    """Raise DataError unless all expectations of a dataclass hold; names those that fail and the fields given.

    Examples:
        >>> from layerprobe.finetuning.values import Protocol
        >>> check_fields(Protocol(lora=8), {"no adapters": False})
        Traceback (most recent call last):
        layerprobe.errors.DataError: expected no adapters, got Protocol(lora=8)
    """
    if wrong := [what for what, holds in expected.items() if not holds]:
        changed = [
            f"{field.name}={getattr(value, field.name)!r}"
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != field.default
        ]
        raise DataError(f"expected {' and '.join(wrong)}, got {type(value).__name__}({', '.join(changed)})")


def read_numbers(text: str, *, last: int | None = None) -> tuple[int, ...]:
    """Return the whole numbers of a list such as 3,6,9-12, in its order; raise DataError if it is none.

    Numbers below 0 need a `last` one, which is -1; numbers below `-last - 1` are returned unchanged.

    Examples:
        >>> read_numbers("3,6,9-12")
        (3, 6, 9, 10, 11, 12)
        >>> read_numbers("-1,1,-3--2", last=6)
        (6, 1, 4, 5)
    """
    numbers: list[int] = []
    number = r"\d{1,19}" if last is None else r"-?\d{1,19}"
    size = (last or 0) + 1
    for part in (part.strip() for part in text.split(",")):
        if ".." in part:
            raise DataError(f"expected a range such as 6-8, got {part!r}: give {re.sub(r'[.]+', '-', part)}")
        ends = re.fullmatch(rf"({number})(?:-({number}))?", part)
        if ends is None:
            raise DataError(f"expected whole numbers such as 3 or 1,5,6 or 2-5, got {text!r}")
        first, final = (end + size * (-size <= end < 0) for end in (int(ends[1]), int(ends[2] or ends[1])))
        if first > final:
            raise DataError(f"expected a range such as 2-5, the lower number first, got {part!r}")
        if final - first > MOST_NUMBERS:
            raise DataError(f"expected a range of {MOST_NUMBERS:,} numbers at most, got {part!r}")
        numbers.extend(range(first, final + 1))
    return tuple(numbers)


def read_share(text: str) -> float:
    """Return the share named by 15% or 0.15; raise DataError unless it is from 1 % to 100 %."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0.01 <= share <= 1:
        raise DataError(f"expected a share from 1 % to 100 %, such as 15% or 0.15, got {text!r}")
    return share


def _numbers(value: object) -> tuple[int, ...]:
    return read_numbers(value) if isinstance(value, str) else tuple(map(index, value))  # type: ignore[call-overload]


def _names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    return tuple(stripped for name in names if (stripped := str(name).strip()))


def _two_numbers(value: Any) -> tuple[float, float]:
    first, second = value.split(",") if isinstance(value, str) else value
    return float(first), float(second)


_MADE: dict[Any, tuple[Any, str]] = {
    int: (index, "a whole number"),
    float: (float, "a number"),
    str: (str.__str__, "a text"),  # which takes no other
    tuple[int, ...]: (_numbers, "whole numbers such as 3 or 1,5,6"),
    tuple[str, ...]: (_names, "names"),
    tuple[float, float]: (_two_numbers, "two numbers such as 0,5"),
}


def convert_fields(value: Any) -> None:
    """Convert the fields of a frozen dataclass that are declared as numbers, texts or names, or as None.

    NumPy's numbers become Python's; numbers and names can be a text such as 1,5,6, as on the command line. Call it
    before the fields are used.

    Examples:
        >>> from layerprobe.finetuning.values import Protocol
        >>> Protocol(lora=8, lora_modules="query,value").lora_modules
        ('query', 'value')
        >>> Protocol(epochs="3")
        Traceback (most recent call last):
        layerprobe.errors.DataError: expected epochs as a whole number such as 10, got '3'
    """
    for field in dataclasses.fields(value):
        kinds = typing.get_args(field.type) if isinstance(field.type, types.UnionType) else (field.type,)
        kind = next((kind for kind in kinds if kind in _MADE), None)
        content = getattr(value, field.name)
        if kind is None or (content is None and types.NoneType in kinds):
            continue
        make, what = _MADE[kind]
        try:
            object.__setattr__(value, field.name, make(content))
        except (TypeError, ValueError):
            such = f" such as {field.default!r}" if kind in (int, float, str) and field.default else ""
            raise DataError(f"expected {field.name} as {what}{such}, got {content!r}") from None


def check_level(level: float) -> None:
    """Raise unless a confidence level lies between 0 and 1."""
    if not isinstance(level, Real) or not 0 < level < 1:
        raise DataError(f"expected a confidence level between 0 and 1, such as 0.95, got {level}")


def check_tolerance(tolerance: float) -> None:
    """Raise unless a tolerance is a number of points, 0 or more."""
    if not isinstance(tolerance, Real) or not 0 <= tolerance < math.inf:
        raise DataError(f"expected a tolerance of at least 0 points, got {tolerance!r}")


def check_present(labels: Any, *, name: str) -> None:
    """Raise unless every row of a NumPy array has a label: not None, NaN or pandas' NA."""
    for row, label in enumerate(labels.tolist() if labels.dtype.kind in "Of" else ()):
        try:
            present = label is not None and bool(label == label)
        except TypeError:  # raised by pandas' NA
            present = False
        if not present:
            raise DataError(f"expected {name} for every row, got {label} in row {row}: add a label or remove the row")


EXTRAS = {
    "openvino": ("openvino",),
    "onnx": ("onnxruntime", "onnx", "onnxscript"),
    "ray": ("ray",),
    "lora": ("peft",),
    "tokens": ("seqeval",),
    "summaries": ("rouge_score",),
    "images": ("PIL",),
    "figures": ("kaleido",),
    "trainer": ("sentence_transformers", "accelerate"),
}
"""Packages of each extra, by import name."""


def check_extra(extra: str, *, needed_by: str) -> None:
    """Raise MissingPackageError unless the packages of an extra are installed; imports none of them."""
    if missing := [package for package in EXTRAS[extra] if importlib.util.find_spec(package) is None]:
        needs = f"{needed_by} needs {missing[0]}, which is not installed"
        raise MissingPackageError(f"{needs}: pip install 'layerprobe[{extra}]'")


Seeds = int | str | Iterable[int]
"""Number of seeds, counted from 0, or the seeds themselves; as a text, `5` or `3,5,8`."""


def check_seeds(seeds: Seeds) -> tuple[int, ...]:
    """Return the seeds, NumPy's as Python's; raise DataError if there is none, or one that no generator takes."""
    if isinstance(seeds, str):
        try:
            numbers = read_numbers(seeds)
        except DataError:
            raise DataError(f"expected a number of seeds, such as 5, or a list such as 3,5,8, got {seeds!r}") from None
        if seeds.strip().isdecimal() and numbers[0] > MOST_SEEDS:
            raise DataError(f"expected at most {MOST_SEEDS} seeds, or a list such as 3,5,8, got {seeds!r}")
        seeds = numbers[0] if seeds.strip().isdecimal() else numbers
    try:
        listed = seeds if isinstance(seeds, Iterable) else range(index(seeds))
        numbers = tuple(index(seed) for seed in listed)
    except TypeError as error:
        raise DataError(f"expected seeds as whole numbers, got {seeds!r}") from error
    if not numbers or not all(0 <= seed < 2**63 for seed in numbers):
        raise DataError(f"expected seeds from 0 to 2^63 - 1, at least one, got {list(numbers)}")
    return numbers


def check_count(seeds: Seeds) -> int:
    """Return the number of seeds; raise DataError unless they are 0, 1, 2 and so on, or a number."""
    if isinstance(seeds, int):
        return seeds
    numbers = check_seeds(seeds)
    if numbers != tuple(range(len(numbers))):
        raise DataError(f"expected a number of seeds such as 5, or range(5): a search takes 0, 1, 2 ..., got {seeds!r}")
    return len(numbers)


def layer_numbers(layers: object, n_blocks: int | None = None, *, of: str = "the model") -> list[int]:
    """Return layers given as numbers, as a text such as 3,6,9-12 or -1, or as results that choose one.

    Negative layers count from the last one, -1, of a model with `n_blocks`; without `n_blocks` they stay negative.

    Raises:
        DataError: If the input names no layers, or the model has no such layer.
    """
    numbers = _unchecked_layers(layers, -1 if n_blocks is None else n_blocks)
    if n_blocks is None:
        return numbers
    size = n_blocks + 1
    if wrong := [number for number in numbers if not -size <= number < size]:
        raise DataError(f"expected layers from 0 to {n_blocks} of {of}, got {some(wrong)}")
    return [number % size for number in numbers]


def _unchecked_layers(layers: object, last: int) -> list[int]:
    if isinstance(layers, str):
        return sorted(set(read_numbers(layers, last=last))) if layers else []
    for name in ("kept_layer", "best_layer", "recommended_layer"):
        if hasattr(layers, name):
            return [getattr(layers, name)]
    try:
        if isinstance(layers, Iterable):
            return [number for item in layers for number in _unchecked_layers(item, last)]
        return [index(layers)]  # type: ignore[arg-type]
    except TypeError:
        raise DataError(f"expected layers as whole numbers, or a result that chooses one, got {layers!r}") from None


def one_layer(layer: object, n_blocks: int | None = None, *, of: str = "the model") -> int:
    """Return the layer given as a number or as a result that chooses it, as `layer_numbers` does.

    Raises:
        DataError: If there are several layers, or the model has no such layer.
    """
    layers = layer_numbers(layer, n_blocks, of=of)
    if len(layers) != 1:
        raise DataError(f"expected one layer, got {layers}")
    return layers[0]
