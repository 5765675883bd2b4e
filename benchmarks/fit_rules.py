"""Zoos -> the parameters and records of rules, which come with layerprobe in `prediction/rules.json`.

    python benchmarks/fit_rules.py [FILE]

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
from layerprobe.files.atomic import write_whole
from layerprobe.files.serialisation import sealed
from layerprobe.lab.dropbench.bench import BUDGET, fittable_rules, known_drops, known_models, read_like_predict
from layerprobe.lab.dropbench.zoo import (
    TunedLayers,
    Zoo,
    ZooEntry,
    put_together,
    read_kept_out,
    read_searched,
    read_zoo,
)
from layerprobe.prediction.rule import (
    FILE,
    FittedParameters,
    FittedRule,
    KnownDrop,
    ModelCurves,
    Rule,
    fitted,
    leave_one_family_out,
    obstacle,
)
from layerprobe.prediction.values import RecordPart, TrackRecord, Truth
from layerprobe.readings.reading import INFONCE, READINGS, SELF_CKA, LayerCurve
from layerprobe.search.posterior import Array, _grid, _law, _seed_variances, _weighed, infonce_trend, layer_steps
from layerprobe.search.values import Evidence, Score

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
"""InfoNCE and test scores of TMFT on STSB, x 100 (research/contest.md); the last layer is best."""
SLOPES, DEVIATIONS = range(11), range(7)
"""Points of the metric x 100 for a nat."""


def fitted_anew() -> FittedParameters:
    """Return what `prediction/rules.json` holds, fitted to the zoos that come with layerprobe."""
    zoo = put_together([read_zoo(), read_kept_out()])
    slope, slope_sd, log_bayes_factor = worth_of_infonce(zoo, list(zoo.entries[0].budgets))
    return FittedParameters(
        rules=tuple(_row(rule) for rule in fittable_rules() if set(rule.curves) <= set(READINGS)),
        slope=slope,
        slope_sd=slope_sd,
        log_bayes_factor=log_bayes_factor,
    )


def _row(rule: Rule) -> FittedRule:
    return FittedRule(
        name=rule.name,
        curves=rule.curves,
        labelled=rule.labelled,
        parameters=dict(rule.choose([case for case in known_models(BUDGET) if rule.reads(case.model)])),
        record=record_of(rule),
    )


# ---- the record of a rule ------------------------------------------------------------------------------------------


def record_of(rule: Rule, *, budget: str = BUDGET) -> TrackRecord:
    """Return how a rule that is fitted to the zoos fares on models of families that it was not fitted to."""
    models = known_models(budget)
    if reason := obstacle(rule, models):
        raise DataError(f"the rule {rule.name!r} cannot be fitted to the models of DropBench: {reason}")
    judged, predict = judged_by(rule, models), fitted(rule, models)
    as_tuned = Rule(name=rule.name, curves=rule.curves, make=lambda: predict)
    read = {
        encoders: others
        for encoders, others in {OTHERS: _others(budget), REAL: _real()}.items()
        if all(rule.reads(encoder.model) for encoder in others)
    }
    further = [one for others in read.values() for one in judged_by(as_tuned, others)]
    sorts = {
        "pretrained encoders used to choose it": [encoder for encoder in models if encoder.family != RANDOM],
        "encoders with random weights used to choose it": [encoder for encoder in models if encoder.family == RANDOM],
        **read,
    }
    return TrackRecord(
        budget=budget,
        families=len({encoder.family for encoder in models}),
        median_regret=float(np.median([regret for _, _, regret in judged])),
        parts=tuple(_part(encoders, sort, [*judged, *further]) for encoders, sort in sorts.items() if sort),
        **_counts(judged),
    )


Judged = tuple[KnownDrop, bool, float]
"""An encoder, whether a rule calls a drop of it, and the regret of the rule's layer."""


def judged_by(rule: Rule, models: Sequence[KnownDrop]) -> list[Judged]:
    """Return what a rule that is fitted to the other families says of each encoder; every rule here names one layer."""
    return [
        (encoder, layer < encoder.model.n_blocks, float(encoder.regrets[layer]))
        for encoder, (layer,) in zip(models, leave_one_family_out(rule, models), strict=True)
    ]


def _part(encoders: str, models: Sequence[KnownDrop], judged: Sequence[Judged]) -> RecordPart:
    names = {encoder.name for encoder in models}
    last = float(np.mean([encoder.regrets[-1] for encoder in models]))
    counts = _counts([one for one in judged if one[0].name in names])
    return RecordPart(encoders=encoders, last_regret=last, **counts)


def _counts(judged: Sequence[Judged]) -> dict[str, Any]:
    return {
        "models": len(judged),
        "drops": sum(encoder.truth.drop for encoder, _, _ in judged),
        "caught": sum(encoder.truth.drop and called for encoder, called, _ in judged),
        "false_alarms": sum(called and not encoder.truth.drop for encoder, called, _ in judged),
        "mean_regret": float(np.mean([regret for _, _, regret in judged])),
    }


@functools.cache
def _others(budget: str) -> list[KnownDrop]:
    """Return the encoders that no rule was fitted to or chosen on."""
    models = known_drops(read_searched(unseen=True).entries, budget)
    return [replace(encoder, model=read_like_predict(encoder.model)) for encoder in models]


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


# ---- what a nat of InfoNCE is worth to a search --------------------------------------------------------------------


def worth_of_infonce(zoo: Zoo, budgets: Sequence[str]) -> tuple[float, float, float]:
    """Return what a nat of InfoNCE is worth by the curves of a zoo, all of whose models have InfoNCE and self-CKA.

    Under the model of `layerprobe.search.posterior` the scores y of a model's runs at layers with InfoNCE r, both less
    their means, are, before any is known, a mixture over the grid of scales and lengths:

        y ~ sum_g w_g N(s r, K_g + d^2 r r')

    s, the worth that is expected, and d, how far it varies between models, are the whole points that make the curves of
    all models most likely: test scores of each seed, under each budget of fine-tuning.

    Args:
        zoo: The models.
        budgets: Of their fine-tuning.

    Returns:
        s, d, and how much more likely they make the scores than InfoNCE that is worth nothing, in nats.
    """
    choices = list(product(map(float, SLOPES), map(float, DEVIATIONS)))
    curves = [(entry, entry.budgets[budget]) for entry in zoo.entries for budget in budgets]
    likelihoods = np.sum([log_likelihoods(evidence(*curve), choices) for curve in curves], axis=0)
    best = int(likelihoods.argmax())
    slope, slope_sd = choices[best]
    gain = float(likelihoods[best] - likelihoods[choices.index((0.0, 0.0))])
    return slope, slope_sd, gain


def score_covariances(evidence: Evidence) -> tuple[Array, Array]:
    """Return what is expected of finite scores of fine-tuning runs before they are known, but for what InfoNCE tells.

    Returns:
        (points, scores, scores) covariance for each point of the grid of scales and lengths, and (points,) log priors.
    """
    layers = np.array([score.layer for score in evidence.scores])
    n = len(layers)
    law = _law(evidence, layers, np.zeros((n, n)), np.zeros(n))
    grid, log_priors = _grid(nothing=1.0, claims=False)
    of_seeds = _seed_variances(grid, layers / evidence.n_blocks)
    return _weighed(law, grid) + of_seeds[:, :, None] * np.eye(n), log_priors


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
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=FILE, help="where they are written")
    write_whole(parser.parse_args().file, sealed(fitted_anew()))


if __name__ == "__main__":
    main()
