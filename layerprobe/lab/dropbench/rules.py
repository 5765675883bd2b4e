"""Rules fitted to the zoos that come with layerprobe, with their records, as `predict` has them.

The parameters of those that come with layerprobe stand in `prediction/rules.json`, which `benchmarks/fit_rules.py`
writes; a rule of another package is fitted where it is first used.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from layerprobe.errors import DataError
from layerprobe.lab.dropbench.bench import known_drops, outcomes_of, readings_in
from layerprobe.lab.dropbench.results import RuleOutcome
from layerprobe.lab.dropbench.rivals import published_rules
from layerprobe.lab.dropbench.zoo import (
    OTHER_SEED,
    ZooEntry,
    read_searched,
    read_zoo,
)
from layerprobe.prediction.rule import KnownDrop, ModelCurves, Rule, fitted, nothing_to_choose, obstacle, rules_for
from layerprobe.prediction.rules.simple import depth_rules
from layerprobe.prediction.tuned import TunedRule
from layerprobe.prediction.values import Record, RecordPart, Truth
from layerprobe.readings.registry import CKA, INFONCE, cka_with
from layerprobe.readings.values import LayerCurve

REFERENCE = cka_with(OTHER_SEED)
"""What the zoos call CKA against an MLM model that began with other weights, which is what every reference is."""
BUDGET = "converged"
"""Of the fine-tuning that rules are tuned to predict; it is nearer to the paper's than the gentle one."""
RANDOM = "random"
"""The family of encoders that were not pretrained."""
OTHERS = "other pretrained encoders"
REAL = "sentence encoders of the Hub (all-MiniLM-L6-v2 and all-mpnet-base-v2)"
REAL_ENCODERS = {
    "all-MiniLM-L6-v2": ((3.99, 2.76, 2.73, 3.02, 3.07, 3.06, 5.34), (56.4, 58.9, 58.6, 67.9, 69.0, 75.6, 84.9)),
    "all-mpnet-base-v2": (
        (5.29, 4.44, 4.21, 4.13, 4.06, 3.91, 3.69, 3.63, 3.84, 3.89, 4.18, 4.40, 5.26),
        (66.7, 67.0, 67.3, 69.7, 70.4, 72.0, 74.6, 75.2, 79.3, 80.7, 82.5, 84.5, 86.2),
    ),
}
"""InfoNCE and test scores of TMFT on STSB, x 100 (docs/results/dropbench-further.md); the last layer is best."""


def fitted_rule(rule: Rule, *, budget: str = BUDGET) -> TunedRule:
    """Return a rule fitted to the zoos, with its record on models of families that it was not fitted to."""
    models = known_models(budget)
    if reason := obstacle(rule, models):
        raise DataError(f"the rule {rule.name!r} cannot be fitted to the models of DropBench: {reason}")
    outcomes, predict = outcomes_of(rule, models), fitted(rule, models)
    as_tuned = Rule(name=rule.name, curves=rule.curves, make=lambda: predict)
    read = {
        encoders: others
        for encoders, others in {OTHERS: _others(budget), REAL: _real()}.items()
        if all(rule.reads(encoder.model) for encoder in others)
    }
    judged = [*outcomes, *(outcome for others in read.values() for outcome in outcomes_of(as_tuned, others))]
    sorts = {
        "pretrained encoders used to choose it": [encoder for encoder in models if encoder.family != RANDOM],
        "encoders with random weights used to choose it": [encoder for encoder in models if encoder.family == RANDOM],
        **read,
    }
    record = Record(
        budget=budget,
        families=len({outcome.family for outcome in outcomes}),
        median_regret=float(np.median([outcome.regret for outcome in outcomes])),
        parts=tuple(_part(encoders, sort, judged) for encoders, sort in sorts.items() if sort),
        **_counts(outcomes),
    )
    return TunedRule(rule=rule, predict=predict, record=record)


def _part(encoders: str, models: Sequence[KnownDrop], judged: Sequence[RuleOutcome]) -> RecordPart:
    names = {encoder.name for encoder in models}
    last = float(np.mean([encoder.regrets[-1] for encoder in models]))
    counts = _counts([outcome for outcome in judged if outcome.model in names])
    return RecordPart(encoders=encoders, last_regret=last, **counts)


def _counts(outcomes: Sequence[RuleOutcome]) -> dict[str, Any]:
    return {
        "models": len(outcomes),
        "drops": sum(outcome.drop for outcome in outcomes),
        "caught": sum(outcome.drop and outcome.called > 0 for outcome in outcomes),
        "false_alarms": sum(not outcome.drop and outcome.called > 0 for outcome in outcomes),
        "mean_regret": float(np.mean([outcome.regret for outcome in outcomes])),
    }


def tuned_rules() -> list[Rule]:
    """Return the rules as `predict` uses them, and controls that read nothing, with no parameters left to fit.

    So `bench_predictors` scores them on models that had no part in the tuning, of whatever family.
    """
    models = known_models(BUDGET)

    def as_tuned(rule: Rule) -> Rule:
        predict = fitted(rule, models)
        curves = tuple(REFERENCE if name == CKA else name for name in rule.curves)
        return replace(
            rule,
            curves=curves,
            make=lambda: lambda model: predict(_as_read(model)),
            choose=nothing_to_choose,
            parameters=0,
        )

    return [as_tuned(rule) for rule in (*depth_rules({}, []), *fittable_rules())]


def unfitted_rules(entries: Sequence[ZooEntry]) -> list[Rule]:
    """Return parameter-free rules on readings that these models have and the tuning zoos lack."""
    tuned_on = {name for entry in read_zoo().entries for name in entry.curves}
    new = {name: reading for name, reading in readings_in(entries).items() if name not in tuned_on}
    return [rule for rule in rules_for(new, published_rules(new)) if rule.curves and not rule.parameters]


@functools.cache
def fittable_rules() -> list[Rule]:
    """Return the rules that look at one model and one reference."""
    models = known_models(BUDGET)
    readings = {name.replace(REFERENCE, CKA): reading for name, reading in readings_in(read_zoo().entries).items()}
    rules = rules_for({name: reading for name, reading in readings.items() if not name.startswith(cka_with(""))})
    return [rule for rule in rules if rule.curves and obstacle(rule, models) is None]


@functools.cache
def known_models(budget: str) -> list[KnownDrop]:
    """Return the models of the zoos that come with layerprobe, as `predict` reads them, with their drops."""
    entries = read_zoo().entries
    models = known_drops(entries, budget)
    if not models:
        names = dict.fromkeys(name for entry in entries for name in entry.budgets)
        raise DataError(f"expected a budget among {', '.join(names)}, got {budget!r}")
    return [replace(case, model=_as_read(case.model)) for case in models]


@functools.cache
def _others(budget: str) -> list[KnownDrop]:
    """Return the encoders that no rule was fitted to or chosen on."""
    models = known_drops(read_searched(unseen=True).entries, budget)
    return [replace(encoder, model=_as_read(encoder.model)) for encoder in models]


@functools.cache
def _real() -> list[KnownDrop]:
    """Return encoders of the Hub of which only InfoNCE and test scores are recorded."""
    return [
        KnownDrop(
            name=name,
            family="contrastive",
            model=ModelCurves(n_blocks=len(scores) - 1, curves={INFONCE: LayerCurve(values=infonce)}),
            truth=Truth(
                drop=False, effect=0.0, threshold=0.5, standard_error=None, best_layer=len(scores) - 1, onset=None
            ),
            regrets=max(scores) - np.array(scores),
        )
        for name, (infonce, scores) in REAL_ENCODERS.items()
    ]


def _as_read(model: ModelCurves) -> ModelCurves:
    """Return a model of a zoo as `predict` sees one: with one reference, whose CKA has no further name."""
    curves = {name.replace(REFERENCE, CKA): curve for name, curve in model.curves.items()}
    return ModelCurves(
        n_blocks=model.n_blocks,
        curves={name: curve for name, curve in curves.items() if not name.startswith(cka_with(""))},
    )
