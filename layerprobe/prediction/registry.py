"""The families of rules, and the rules that they make of some readings. Knows names and numbers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from layerprobe.prediction.rule import Rule
from layerprobe.readings.reading import Reading
from layerprobe.registry import Registry


@runtime_checkable
class RuleFamily(Protocol):
    """A function that makes rules of the readings there are."""

    def __call__(self, readings: Mapping[str, Reading], others: Sequence[Rule], /) -> Iterable[Rule]:
        """Return rules that read some of the readings, or choose among the rules of the families before it."""


LAST = "best rule"
"""Chooses among the rules of all others."""
RULES = Registry(
    "layerprobe.rules",
    RuleFamily,  # type: ignore[type-abstract]  # a function is one
    what="family of rules",
    shipped={
        "depth": "layerprobe.prediction.rules.depth:rules",
        "plateau": "layerprobe.prediction.rules.plateau:rules",
        "best layer": "layerprobe.prediction.rules.best_layer:rules",
        "published": "layerprobe.prediction.rules.published:rules",
        "fall": "layerprobe.prediction.rules.fall:rules",
        "logistic": "layerprobe.prediction.rules.logistic:rules",
        LAST: "layerprobe.prediction.rules.best_rule:rules",
    },
)
"""A new one is a function in a module of its own and a row here, or an entry point of another package."""


def rules_for(readings: Mapping[str, Reading]) -> list[Rule]:
    """Return every rule that reads no more than these readings: those of no reading, of one each, and of several.

    The best of all these, chosen on other families, come last.
    """
    order = {name: number for number, name in enumerate(readings)}
    rules: list[Rule] = []
    for name, family in RULES.usable().items():
        if name != LAST:
            rules += [rule for rule in family(readings, rules) if set(rule.curves) <= readings.keys()]
    rules.sort(key=lambda rule: (min(len(rule.curves), 2), order[rule.curves[0]] if len(rule.curves) == 1 else 0))
    return [*rules, *RULES[LAST](readings, rules)]
