"""Zoos -> the parameters and records of rules, which come with layerprobe in `prediction/rules.json`.

    python benchmarks/fit_rules.py [FILE]

fits all rules to the zoos that come with layerprobe and writes that file.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import logsumexp

from layerprobe.files.atomic import write_whole
from layerprobe.files.serialisation import sealed
from layerprobe.lab.dropbench.rules import BUDGET, fittable_rules, fitted_rule, known_models
from layerprobe.lab.dropbench.zoo import TunedLayers, Zoo, ZooEntry, put_together, read_kept_out, read_zoo
from layerprobe.prediction.rule import Rule
from layerprobe.prediction.tuned import FILE, FittedParameters, FittedRule
from layerprobe.readings.registry import INFONCE, READINGS, SELF_CKA
from layerprobe.search.posterior import Array, infonce_trend, layer_steps, score_covariances
from layerprobe.search.values import Evidence, Score

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
        record=fitted_rule(rule).record,
    )


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
