"""The words of every result: templates of `words.toml`, filled with facts; numbers as text. Knows no result, no HTML.

A template is a text or a list of clauses; a clause with a fact that the result lacks is left out. `{gain}` is the
number in its unit; a format after a colon selects a part of it, see `_PARTS`. `{gain shown}` exists only if the
interval excludes 0 (1 for a ratio), `{gain open}` only if it does not; `{gain open:if}` is empty. A noun counts:
`{runs:run}` is 1 run or 8 runs, `{left_out:layer}` is layer 2 or layers 2 and 5. A key of `by_sign` gives one of its
two words.
"""

import functools
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from layerprobe.context import duration
from layerprobe.errors import one_line
from layerprobe.names import MANY_TIMES, format_distinct, listed, percentage, plural
from layerprobe.results.conclusion import Check, Conclusion, Fact, Step
from layerprobe.results.table import millions, probability

Template = str | Sequence[str]
_FIELD = re.compile(r"\{([^{}:]+):?([^{}]*)\}")


@functools.cache
def _words() -> dict[str, Any]:
    return tomllib.loads((files("layerprobe.results") / "assets" / "words.toml").read_text(encoding="utf-8"))


def title(conclusion: Conclusion) -> str:
    """Return the kind of result, such as `the layer to keep`."""
    return str(_words()[conclusion.kind]["title"])


def subject(conclusion: Conclusion) -> str:
    """Return the kind of result with its models and data.

    Examples:
        >>> from layerprobe.results.conclusion import Verdict
        >>> subject(Conclusion(kind="find", case="cut", verdict=Verdict.DECIDED, subject=("rtd", "pairs.csv")))
        'the layer to keep · rtd · pairs.csv'
    """
    return one_line(" · ".join((title(conclusion), *filter(None, conclusion.subject))))


def headline(conclusion: Conclusion) -> str:
    """Return the answer in about six words."""
    return _case_text(conclusion, "headline")


def certainty(conclusion: Conclusion) -> str:
    """Return the certainty of the answer, the text of a pill."""
    return _case_text(conclusion, "certainty")


def sentence(conclusion: Conclusion) -> str:
    """Return the answer as a sentence."""
    return _case_text(conclusion, "sentence")


def cost(conclusion: Conclusion) -> str:
    """Return the cost of the result, such as `8 runs, 7 min, 19 % of a sweep`; empty if it cost nothing."""
    return _filled(_words()[conclusion.kind].get("cost", ""), _values(conclusion)).lstrip(", ")


def account(conclusion: Conclusion) -> str:
    """Return how the model was made and measured, for a model card."""
    return _filled(_words()[conclusion.kind]["account"], _values(conclusion))


def tiles(conclusion: Conclusion) -> list[tuple[str, str]]:
    """Return the first four facts, each as a number and its meaning."""
    rows = _words()["tiles"] | _words()[conclusion.kind].get("tiles", {})
    values = _values(conclusion)
    names = [name for name in conclusion.facts if name in rows]
    written = [(_filled(rows[name][0], values), _filled(rows[name][1:], values)) for name in names]
    return [tile for tile in written if tile[0]][:4]


def line(check: Check, conclusion: Conclusion) -> tuple[str, str]:
    """Return a check as a line, and its small print."""
    by_outcome = _words()["checks"][check.name]
    template = by_outcome[{True: "passed", False: "failed", None: "open"}[check.passed]]
    values = _values(conclusion) | _values(check)
    first, *rest = [template] if isinstance(template, str) else template
    return capitalised(_filled(first, values)), capitalised(_filled(rest, values).lstrip(",;: "))


def step(next_step: Step, conclusion: Conclusion) -> tuple[str, str]:
    """Return the title of a next step, and a description with its cost."""
    words = _words()["steps"][next_step.name]
    values = _values(conclusion) | _values(next_step)
    return words["title"], _filled(words["text"], values)


def _case_text(conclusion: Conclusion, part: str) -> str:
    """Return the text of a part, taken from the case or its kind, for the verdict."""
    kind_words = _words()[conclusion.kind]
    case = conclusion.case
    template = (kind_words.get(case) or _words()["any"][case]).get(part, kind_words.get(part, ""))
    if isinstance(template, Mapping):
        template = template.get(conclusion.verdict, template.get("else", ""))
    text = _filled(template, _values(conclusion)).lstrip(".,; ")
    first = template if isinstance(template, str) else next(iter(template), "")
    name = conclusion.names.get(first.partition("}")[0].removeprefix("{"))
    return text if isinstance(name, str) else capitalised(text)


def _filled(template: Template, values: Mapping[str, Any]) -> str:
    clauses = []
    for clause in [template] if isinstance(template, str) else template:
        try:
            clauses.append(_FIELD.sub(lambda field: _written(values[field[1]], field[2]), clause))
        except KeyError:  # a fact that the result lacks, or an interval that the fact lacks
            continue
    return one_line("".join(clauses))


def _values(of: Conclusion | Check | Step) -> dict[str, Any]:
    values: dict[str, Any] = {**of.facts}
    for name, fact in of.facts.items():
        is_shown = fact.interval is None or _excludes(fact, 1.0 if fact.unit == "times" else 0.0)
        values[f"{name} {'shown' if is_shown else 'open'}"] = fact
    values |= {name: value for name, value in of.names.items() if value != ""}
    if isinstance(of, Conclusion) and (choice := of.choice) is not None:
        values |= {"kept": len(choice.blocks), "blocks": choice.n_blocks, "which": choice.blocks}
        values["left"] = choice.n_blocks - len(choice.blocks)
        if choice.candidates:
            values["candidates"] = choice.candidates
    return values


def _written(value: Any, spec: str) -> str:
    """Return a fact, layers, names or a text as a template with such a format writes it."""
    if isinstance(value, Fact):
        return fact_text(value, spec)
    return _items_text(value, spec) if isinstance(value, tuple) else format(value, spec)


def _items_text(items: tuple[Any, ...], spec: str) -> str:
    """Return layers or names: `4 to 7`, `4, 5 or 8`; with a noun `layers 4 to 7`."""
    if not items:  # leave out the clause
        raise KeyError(spec)
    if spec == "n":
        return f"{len(items):,}"
    parts = spans(items) if all(isinstance(item, int) for item in items) else [*map(str, items)]
    if spec in ("", "or", "and"):
        return listed(parts, spec or "or")
    return f"{spec if len(items) == 1 else plural(spec)} {listed(parts)}"


def spans(layers: Sequence[int]) -> list[str]:
    """Return ascending layers, with three or more adjacent ones as a range.

    Examples:
        >>> spans([0, 1, 2, 3, 6, 7])
        ['0 to 3', '6', '7']
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(layer) for layer in run] for run in runs)
    return [name for names in parts for name in names]


def fact_text(fact: Fact, spec: str) -> str:
    """Return a part of a fact (see `_PARTS`), one of two words by its sign, or its number with a noun."""
    if spec in _PARTS:
        return _PARTS[spec](fact)
    if spec in (signs := _words()["by_sign"]):
        return str(signs[spec][fact.value < 0])
    number = text(fact)
    return f"{number} {spec if number == '1' else plural(spec)}"


def text(fact: Fact, value: float | None = None, *, sign: str = "") -> str:
    """Return a number in the unit of a fact, with the digits of that fact.

    Examples:
        >>> text(Fact(value=9.04, interval=(3.9, 14.1))), text(Fact(value=-0.29, unit="share"), sign="+")
        ('9.0', '-29 %')
        >>> text(Fact(value=1.53, unit="times", interval=(1.2, 1.8))), text(Fact(value=0.999, unit="chance"))
        ('1.5×', '>99 %')
    """
    number = fact.value if value is None else value
    if not math.isfinite(number):  # leave out the clause
        raise KeyError(number)
    return _UNITS.get(fact.unit, _significant)(fact, number, sign)


def _digits(fact: Fact, digits: int) -> int:
    """Return the number of decimals: `digits`, or more if the interval is narrower than the last one."""
    if fact.interval is None or not math.isfinite(wide := fact.interval[1] - fact.interval[0]) or wide <= 0:
        return digits
    return min(max(digits, math.ceil(-math.log10(wide / 2))), digits + 2)


def _decimal(digits: int) -> Callable[[Fact, float, str], str]:
    def written(fact: Fact, number: float, sign: str) -> str:
        all_of_it = 100.0 if fact.unit == "score" else 0.0 if _excludes(fact, 0.0) else None
        least = all_of_it if fact.least is None else fact.least
        return format_distinct(number, number if least is None else least, _digits(fact, digits), sign)

    return written


def _excludes(fact: Fact, number: float) -> bool:
    """Return whether the interval excludes a number: texts then say on which side it is."""
    low, high = fact.interval or (number, number)
    return low > number or high < number


def _share(_: Fact, number: float, sign: str) -> str:
    """Return percent with enough digits to differ from 0 and from 100."""
    digits = 0 if abs(number) >= 0.1 or number == round(number, 2) else 1
    return f"{format_distinct(100 * number, 100.0 * round(number), digits, sign)} %"


def _times(fact: Fact, number: float, sign: str) -> str:
    low, high = fact.interval or (number, number)
    digits = 0 if high - low >= 2 and low >= 1 else 1 if high - low >= 0.1 or low == high else 2
    written = format_distinct(number, 1.0 if _excludes(fact, 1.0) else number, digits, sign)
    return f">{MANY_TIMES:.0f}×" if number > MANY_TIMES else f"{written}×"


def _significant(_: Fact, number: float, sign: str) -> str:
    return f"{number:{sign}z,.{max(2 - math.floor(math.log10(abs(number))), 0) if number else 0}f}"


_UNITS: dict[str, Callable[[Fact, float, str], str]] = {
    "tolerance": lambda _, number, __: f"{number:g}",
    "points": _decimal(1),
    "score": _decimal(1),
    "similarity": _decimal(2),
    "share": _share,
    "level": lambda _, number, __: percentage(number),
    "chance": lambda _, number, __: probability(number),
    "times": _times,
    "parameters": lambda _, number, __: millions(round(number)),
    "count": lambda _, number, sign: f"{round(number):{sign},}",
    "layer": lambda _, number, __: f"{number:.0f}",
    "seconds": lambda _, number, __: "<1 s" if 0 < number < 0.5 else duration(number),
    "milliseconds": lambda fact, number, sign: f"{_significant(fact, number, sign)} ms",
    "bytes": lambda _, number, __: f"{number / 1e6:,.1f} MB" if number >= 1e6 else f"{number / 1e3:,.0f} kB",
}


def _ends(fact: Fact) -> tuple[float, float]:
    if fact.interval is None:
        raise KeyError("interval")
    return fact.interval


def _named(value: str) -> str:
    if not value:
        raise KeyError
    return value


_PARTS: dict[str, Callable[[Fact], str]] = {
    "": text,
    "if": lambda _: "",
    "+": lambda fact: text(fact, sign="+"),
    "abs": lambda fact: text(fact, abs(fact.value)),
    "low": lambda fact: text(fact, _ends(fact)[0]),
    "high": lambda fact: text(fact, _ends(fact)[1]),
    "ends": lambda fact: " to ".join(dict.fromkeys(text(fact, end) for end in _ends(fact))),
    "half": lambda fact: text(fact, (_ends(fact)[1] - _ends(fact)[0]) / 2),
    "level": lambda fact: _named("" if fact.level is None else percentage(fact.level)),
    "split": lambda fact: _named("" if fact.split == "all" else fact.split),
    "over": lambda fact: _named(listed(fact.over) if fact.over else ""),
}


LABEL_LENGTH = 30
"""Longest model name in a plot; longer ones are cut."""


def number(value: float, digits: int = 2) -> str:
    """Return a number with a true minus sign; what rounds to 0 has none."""
    return f"{value:z.{digits}f}".replace("-", "−")


def typeset(cell: str) -> str:
    r"""Return a cell of a table with true minus signs and non-breaking units; an empty cell becomes a dash.

    Examples:
        >>> typeset("-0.50"), typeset("12 %"), typeset("")
        ('−0.50', '12\xa0%', '–')
    """
    return re.sub(r"(?<=\d) (?=M\b)", "\u00a0", typeset_text(cell)) or "–"


def typeset_text(plain: str) -> str:
    r"""Return a sentence with true minus signs, non-breaking percent signs, and × 100.

    Examples:
        >>> typeset_text("R2 x 100 is -0.5 (95 % -1.0 to 0.0) of all-MiniLM-L6-v2")
        'R2 × 100 is −0.5 (95\xa0% −1.0 to 0.0) of all-MiniLM-L6-v2'
    """
    signs = re.sub(r"(?<![\w.\-])-(?=[\d.])", "−", plain)
    return re.sub(r"\bx 100\b", "× 100", re.sub(r"(?<=\d) ?%(?![\w{(])", "\u00a0%", signs))


def percent(share: float) -> str:
    """Return a share of 0 .. 1 in percent, with a non-breaking space."""
    return f"{number(100 * share, 1).removesuffix('.0')}\u00a0%"


def label(name: str) -> str:
    """Return a name that fits into a plot; a long name loses its middle."""
    half = LABEL_LENGTH // 2
    return name if len(name) <= LABEL_LENGTH else f"{name[:half]}…{name[-half + 1 :]}"


def labels(names: Iterable[str]) -> list[str]:
    """Return names that fit into a plot; names that would become equal are not cut."""
    names = list(names)
    cut = [label(name) for name in names]
    same = {
        shortened
        for shortened in cut
        if len({name for name, one in zip(names, cut, strict=True) if one == shortened}) > 1
    }
    return [name if shortened in same else shortened for name, shortened in zip(names, cut, strict=True)]


def capitalised(plain: str) -> str:
    """Return a text with its first letter capitalised."""
    return plain[:1].upper() + plain[1:]
