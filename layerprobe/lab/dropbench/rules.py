"""Zoos -> the parameters and records of rules, which come with layerprobe in `prediction/rules.json`.

    python -m layerprobe.lab.dropbench.rules [FILE]

fits all rules to the zoos that come with layerprobe and writes that file.
"""

import argparse
import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

from layerprobe.errors import DataError
from layerprobe.files.atomic import sha256_of, write_whole
from layerprobe.files.serialisation import sealed
from layerprobe.lab.dropbench.bench import known_drops, outcomes_of, readings_in
from layerprobe.lab.dropbench.results import RuleOutcome
from layerprobe.lab.dropbench.zoo import (
    KEPT_OUT,
    OTHER_SEED,
    SHIPPED,
    TunedLayers,
    Zoo,
    ZooEntry,
    read_searched,
    read_zoo,
)
from layerprobe.prediction.rule import Fit, HasCurves, KnownDrop, ModelCurves, Rule, fitted, obstacle, rules_for
from layerprobe.prediction.rules.simple import depth_rules
from layerprobe.prediction.tuned import FILE, FittedParameters, FittedRule, FittedTo, InfonceWorth, TunedRule
from layerprobe.prediction.values import Record, RecordPart, Truth
from layerprobe.readings.registry import CKA, INFONCE, SELF_CKA, cka_with
from layerprobe.readings.values import LayerCurve
from layerprobe.search.posterior import Array, infonce_trend, layer_steps, score_covariances
from layerprobe.search.values import Evidence, Score

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
SLOPES, DEVIATIONS = range(11), range(7)
"""Points of the metric x 100 for a nat."""


def fitted_rule(rule: Rule, *, budget: str = BUDGET) -> TunedRule:
    """Return a rule fitted to the zoos, with its record on models of families that it was not fitted to."""
    models = _models(budget)
    if reason := obstacle(rule, models):
        raise DataError(f"the rule {rule.name!r} cannot be fitted to the models of DropBench: {reason}")
    outcomes, predict = outcomes_of(rule, models), fitted(rule, models)
    as_tuned = replace(rule, fit=lambda _: predict, parameters=0)
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
    models = _models(BUDGET)

    def as_tuned(rule: Rule) -> Rule:
        predict = fitted(rule, models)
        curves = tuple(REFERENCE if name == CKA else name for name in rule.curves)
        return replace(rule, curves=curves, fit=lambda _: lambda model: predict(_as_read(model)), parameters=0)

    return [as_tuned(rule) for rule in (*depth_rules({}, []), *_rules())]


def unfitted_rules(entries: Sequence[ZooEntry]) -> list[Rule]:
    """Return parameter-free rules on readings that these models have and the tuning zoos lack."""
    tuned_on = {name for entry in read_zoo().entries for name in entry.curves}
    new = {name: reading for name, reading in readings_in(entries).items() if name not in tuned_on}
    return [rule for rule in rules_for(new) if rule.curves and not rule.parameters]


def fitted_anew() -> FittedParameters:
    """Return what `prediction/rules.json` holds, fitted to the zoos that come with layerprobe."""
    shipped, kept_out = (sorted(folder.glob("*.json")) for folder in (SHIPPED, KEPT_OUT))
    zoo = read_zoo(*shipped, *kept_out)
    return FittedParameters(
        version=1,
        fitted_to=_fitted_to(shipped, [BUDGET]),
        rules=tuple(map(_row, _rules())),
        search=worth_of_infonce(zoo, _fitted_to([*shipped, *kept_out], list(zoo.entries[0].budgets))),
    )


def _fitted_to(files: Sequence[Path], budgets: Sequence[str]) -> FittedTo:
    entries = read_zoo(*files).entries
    return FittedTo(
        zoos={file.relative_to(SHIPPED).as_posix(): sha256_of(file) for file in files},
        budgets=tuple(budgets),
        models=len(entries),
        families=len({entry.family for entry in entries}),
    )


def _row(rule: Rule) -> FittedRule:
    assert isinstance(rule.fit, Fit)  # those that come with layerprobe can be written down
    return FittedRule(
        name=rule.name,
        curves=rule.curves,
        labelled=rule.labelled,
        parameters=dict(rule.fit.choose([case for case in _models(BUDGET) if rule.reads(case.model)])),
        record=fitted_rule(rule).record,
    )


@functools.cache
def _rules() -> list[Rule]:
    """Return the rules that look at one model and one reference."""
    models = _models(BUDGET)
    readings = {name.replace(REFERENCE, CKA): reading for name, reading in readings_in(read_zoo().entries).items()}
    rules = rules_for({name: reading for name, reading in readings.items() if not name.startswith(cka_with(""))})
    return [rule for rule in rules if rule.curves and obstacle(rule, models) is None]


@functools.cache
def _models(budget: str) -> list[KnownDrop]:
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


def _as_read(model: HasCurves) -> ModelCurves:
    """Return a model of a zoo as `predict` sees one: with one reference, whose CKA has no further name."""
    curves = {name.replace(REFERENCE, CKA): curve for name, curve in model.curves.items()}
    return ModelCurves(
        n_blocks=model.n_blocks,
        curves={name: curve for name, curve in curves.items() if not name.startswith(cka_with(""))},
    )


# ---- what a nat of InfoNCE is worth to a search --------------------------------------------------------------------


def worth_of_infonce(zoo: Zoo, fitted_to: FittedTo) -> InfonceWorth:
    """Return what a nat of InfoNCE is worth by the curves of a zoo, all of whose models have InfoNCE and self-CKA.

    Under the model of `layerprobe.search.posterior` the scores y of a model's runs at layers with InfoNCE r, both less
    their means, are, before any is known, a mixture over the grid of scales and lengths:

        y ~ sum_g w_g N(s r, K_g + d^2 r r')

    s, the worth that is expected, and d, how far it varies between models, are the whole points that make the curves of
    all models most likely: test scores of each seed, under each budget of fine-tuning.

    Args:
        zoo: The models.
        fitted_to: What they are, and under which budgets.
    """
    choices = list(product(map(float, SLOPES), map(float, DEVIATIONS)))
    curves = [(entry, entry.budgets[budget]) for entry in zoo.entries for budget in fitted_to.budgets]
    likelihoods = np.sum([log_likelihoods(evidence(*curve), choices) for curve in curves], axis=0)
    best = int(likelihoods.argmax())
    slope, slope_sd = choices[best]
    gain = float(likelihoods[best] - likelihoods[choices.index((0.0, 0.0))])
    return InfonceWorth(fitted_to=fitted_to, slope=slope, slope_sd=slope_sd, log_bayes_factor=gain)


def log_likelihoods(evidence: Evidence, choices: list[tuple[float, float]]) -> Array:
    """Return how likely some expected worths and deviations make the scores of fine-tuning runs, up to a constant.

    Returns:
        (choices,) in nats.
    """
    y = np.array([score.value for score in evidence.scores])
    r = infonce_trend(evidence)[[score.layer for score in evidence.scores]]
    covariances, log_priors = score_covariances(evidence)
    root = np.linalg.cholesky(covariances)
    columns = np.stack([y - y.mean(), r - r.mean(), r], axis=1)
    white = np.linalg.solve(root, np.broadcast_to(columns, (len(root), *columns.shape)))
    products = white.transpose(0, 2, 1) @ white  # (points, 3, 3)
    log_priors = log_priors - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)

    def log_likelihood(slope: float, slope_sd: float) -> float:
        residual = np.array([1.0, -slope, 0.0])
        squares, along = residual @ products @ residual, products[:, 2] @ residual
        # the determinant and the inverse with d^2 r r' added, by Sylvester and by Sherman and Morrison
        scale = 1 + slope_sd**2 * products[:, 2, 2]
        squares = squares - slope_sd**2 * along**2 / scale
        return float(logsumexp(log_priors - squares / 2 - np.log(scale) / 2))

    return np.array([log_likelihood(*choice) for choice in choices])


def evidence(entry: ZooEntry, tuned: TunedLayers) -> Evidence:
    """Return the test scores of a model's runs, as a search would have them."""
    return Evidence(
        n_blocks=entry.n_blocks,
        scores=tuple(
            Score(layer=layer, seed=seed, value=value)
            for layer, values in enumerate(tuned.test)
            for seed, value in zip(tuned.seeds, values, strict=True)
        ),
        steps=layer_steps(entry.metrics[SELF_CKA].values[1:]),
        infonce=entry.metrics[INFONCE].values,
    )


def main() -> None:
    """Fit all rules to the zoos that come with layerprobe, and write them down."""
    parser = argparse.ArgumentParser(prog="python -m layerprobe.lab.dropbench.rules", description=main.__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=FILE, help="where they are written")
    write_whole(parser.parse_args().file, sealed(fitted_anew()))


if __name__ == "__main__":
    main()
