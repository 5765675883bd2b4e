"""What every result must hold, whatever it is of: its words are made of its facts, and fit where they are shown."""

import re
import string
from collections.abc import Iterator
from itertools import chain

from layerprobe.results import terminal, words
from layerprobe.results.conclusion import Check, Conclusion, Fact, Step
from layerprobe.results.shown import Shown, read_result

MOST_WORDS = {"headline": 8, "sentence": 30}
"""Six and 25, and some more where a model's name or several clauses stand in them."""
UNFINISHED = re.compile(r"^[.,;: ]|  |\.\.| [.,;]|\bnan\b|\binf\b|None|\( |[,;:] ?$")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def assert_keeps_contract(result: Shown, *, extra: int = 0, long_names: bool = False, is_read: bool = True) -> None:
    """The texts of a result are short and whole, every number in one is a fact of it, and its charts have columns.

    A table may have some `extra` columns, as of several tasks; names that are long make long texts.
    """
    conclusion = result.conclusion
    allowed = set(_numbers_of(conclusion)) | set(_NUMBER.findall(" ".join(_raw(words._words()))))
    for text in texts(conclusion):
        for number in _NUMBER.findall(text):
            assert number in allowed, f"{number} in {text!r} is no fact of {type(result).__name__}"
        assert not UNFINISHED.search(text), text
    headline, sentence = words.headline(conclusion), words.sentence(conclusion)
    if not long_names:
        assert 1 <= len(headline.split()) <= MOST_WORDS["headline"], headline
        assert len(sentence.split()) <= MOST_WORDS["sentence"], sentence
    assert all(name in conclusion.facts for name in result.facts)
    assert len(conclusion.steps) <= 2
    for table in (result.table, *result.details):
        assert len({len(values) for values in table.data.values()}) <= 1, "columns are of one length"
        assert len(table.data) == sum(len(column.names) for column in table.columns), "columns have names of their own"
        for chart in table.charts:
            quantities = {(quantity.split, quantity.unit) for quantity in chart.quantities(table)}
            assert len(quantities) == 1, f"an axis has one split and unit, not {quantities}"
    assert len(result.table.first) <= 6 + extra, [column.name for column in result.table.first]
    lines = str(result).split("\n")
    commands = ("layerprobe ", "  layerprobe ")
    wide = [line for line in lines if len(line) > terminal.WIDTH and not line.lstrip().startswith(commands)]
    assert long_names or not wide, wide
    assert " ".join(lines).startswith(headline)
    assert not is_read or str(read_result(result.to_json())) == str(result), "it reads back as it was"


def texts(conclusion: Conclusion) -> Iterator[str]:
    """Yield every text that is made of a conclusion."""
    yield words.headline(conclusion)
    yield words.certainty(conclusion)
    yield words.sentence(conclusion)
    yield words.cost(conclusion)
    yield from chain.from_iterable(words.tiles(conclusion))
    yield from chain.from_iterable(words.line(check, conclusion) for check in conclusion.checks)
    yield from chain.from_iterable(words.step(step, conclusion) for step in conclusion.steps)


def _numbers_of(conclusion: Conclusion) -> Iterator[str]:
    parts: list[Conclusion | Check | Step] = [conclusion, *conclusion.checks, *conclusion.steps]
    for part in parts:
        for fact in part.facts.values():
            yield from _written(fact)
        for value in part.names.values():
            yield from _NUMBER.findall(str(value))
            yield str(len(value)) if isinstance(value, tuple) else ""
    if conclusion.choice is not None:
        yield from map(str, range(conclusion.choice.n_blocks + 1))


def _written(fact: Fact) -> Iterator[str]:
    for spec in words._PARTS:
        try:
            yield from _NUMBER.findall(words.fact_text(fact, spec))
        except KeyError:  # the fact lacks that part
            continue
    yield f"{round(fact.value):,}"


def _raw(section: object) -> Iterator[str]:
    """Yield the texts of templates between their fields."""
    if isinstance(section, str):
        yield from (text for text, *_ in string.Formatter().parse(section))
    elif isinstance(section, dict):
        yield from chain.from_iterable(map(_raw, section.values()))
    elif isinstance(section, list):
        yield from chain.from_iterable(map(_raw, section))
