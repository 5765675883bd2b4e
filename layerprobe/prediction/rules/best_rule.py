"""The rule that takes the best of the other rules, chosen on the other families."""

from collections.abc import Mapping, Sequence

import numpy as np

from layerprobe.prediction.rule import (
    KnownDrop,
    Predictor,
    Rule,
    check_some,
    fitted,
    leave_one_family_out,
    loss,
    obstacle,
)
from layerprobe.readings.reading import Reading


def rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return the best of those without labels, and where there are labels the best of all."""
    best = [best_rule([rule for rule in others if not rule.labelled])]
    if any(reading.labelled for reading in readings.values()):
        best.append(best_rule(others, labelled=True))
    return best


def best_rule(rules: Sequence[Rule], *, labelled: bool = False) -> Rule:
    """Return the rule that takes the one of some rules with the lowest mean loss on known models, the first of equals.

    Each is scored leave-one-family-out among the known models. Of many rules the best one's own score is too good to
    be true; that of this rule is what somebody gets who chooses among them.
    """
    name = f"best rule of the other families{', with labels' if labelled else ''}"

    def mean_loss(rule: Rule, models: Sequence[KnownDrop]) -> float:
        calls_of = zip(leave_one_family_out(rule, models), models, strict=True)
        return float(np.mean([np.mean([loss(call, case) for call in calls]) for calls, case in calls_of]))

    def fit(models: Sequence[KnownDrop]) -> Predictor:
        candidates = [rule for rule in rules if obstacle(rule, models) is None]
        check_some(candidates, name)
        return fitted(min(candidates, key=lambda rule: mean_loss(rule, models)), models)

    return Rule(name=name, curves=(), fit=fit, parameters=1, labelled=labelled)
