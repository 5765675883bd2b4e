"""Rules fitted to the zoos that come with layerprobe, as `predict` has them.

Their parameters stand in `prediction/rules.json`, which `benchmarks/fit_rules.py` writes.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

from layerprobe.errors import DataError
from layerprobe.lab.dropbench.bench import known_drops, readings_in
from layerprobe.lab.dropbench.rivals import published_rules
from layerprobe.lab.dropbench.zoo import OTHER_SEED, ZooEntry, read_zoo
from layerprobe.prediction.rule import KnownDrop, ModelCurves, Rule, fitted, nothing_to_choose, obstacle, rules_for
from layerprobe.prediction.rules import depth_rules
from layerprobe.readings.reading import CKA, cka_with

REFERENCE = cka_with(OTHER_SEED)
"""What the zoos call CKA against an MLM model that began with other weights, which is what every reference is."""
BUDGET = "converged"
"""Of the fine-tuning that rules are tuned to predict; it is nearer to the paper's than the gentle one."""


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
            make=lambda: lambda model: predict(as_read(model)),
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
    return [replace(case, model=as_read(case.model)) for case in models]


def as_read(model: ModelCurves) -> ModelCurves:
    """Return a model of a zoo as `predict` sees one: with one reference, whose CKA has no further name."""
    curves = {name.replace(REFERENCE, CKA): curve for name, curve in model.curves.items()}
    return ModelCurves(
        n_blocks=model.n_blocks,
        curves={name: curve for name, curve in curves.items() if not name.startswith(cka_with(""))},
    )
