"""Score rules on the models of a zoo, each on families that it was not tuned on: fitted rules, rivals, and `predict`'s.

Rivals are criteria of other authors for choosing a layer: recorded readings, and rules on them. Recipes do not
compute them; `benchmarks/rival_readings.py` does, except for the last three. The parameters of `predict`'s rules
are in `prediction/rules.json`, written by `benchmarks/fit_rules.py`. Knows numbers only.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.context import current
from layerprobe.errors import DataError
from layerprobe.lab.dropbench.results import Bench, BudgetScores, Row
from layerprobe.lab.dropbench.scores import Redraws, expanded, redrawn, score_strategies
from layerprobe.lab.dropbench.strategies import Recorded, Strategy, rule_strategy, training_strategies
from layerprobe.lab.dropbench.truth import cost_share, regrets, truth
from layerprobe.lab.dropbench.zoo import OTHER_SEED, Zoo, ZooEntry, read_zoo
from layerprobe.names import counted
from layerprobe.prediction.rule import (
    KnownDrop,
    ModelCurves,
    Predictor,
    ReadingPredictor,
    Rule,
    fitted,
    fixed_fraction,
    leave_one_family_out,
    nothing_to_choose,
    obstacle,
    rules_for,
)
from layerprobe.prediction.rules import CONTROL, depth_rules
from layerprobe.readings.reading import CKA, READINGS, ZERO_SHOT, Reading, cka_with, reading_of
from layerprobe.similarity.checks import Array


def _rival(description: str, direction: Literal[1, -1, None], source: str, **more: Any) -> Reading:
    return Reading(description=description, direction=direction, compute=lambda _: None, source=source, **more)


RIVALS = {
    "dataset entropy": _rival("entropy of the cosines of texts", None, "2502.02013"),
    "LiDAR": _rival("rank of texts against copies", 1, "2312.04000", needs="views"),
    "DiME": _rival("information that two copies share", 1, "2301.08164", needs="views"),
    "LOES without labels": _rival("isotropy of the principal axes", 1, "2605.23033"),
    "alpha-ReQ": _rival("how far the decay of eigenvalues is from 1", -1, "Agrawal et al. 2022"),
    "subspace displacement": _rival("distance from the first layer", 1, "2605.12714"),
    "neighbour retention": _rival("neighbours kept", 1, "2605.12714", maximum=1.0),
    "LogME": _rival("evidence of a linear model", 1, "2102.11005", needs="labels"),
    "LOES": _rival("ridge error + 1 - isotropy", -1, "2605.23033", needs="labels"),
    "KITE": _rival("CKA with targets over CKA with random features", 1, "2405.01603", needs="labels"),
    "LinMSE": _rival("minus the error of a linear model", 1, "2312.00656", needs="labels"),
    "kNN": _rival("score of the three nearest training items", 1, "2503.18528", needs="labels"),
    "contrastive loss": _rival("loss before training", -1, "2410.14578", needs="labels"),
}
"""Rival readings by name; sources are on arXiv unless stated otherwise."""


def published_rules(readings: Mapping[str, Reading]) -> list[Rule]:
    """Return the two rules of L3Prune and that of TransformerRanker; none of them selects the embedding output."""

    def lowest(half: Literal[0, 1]) -> Predictor:
        """Select the lowest loss in a half of the blocks, divided as in L3Prune's code."""

        def layers(losses: Array) -> NDArray[np.intp]:
            middle = max((losses.shape[-1] - 1) // 2, 1)
            first, stop = ((losses.shape[-1] - 1) // 2 + 1, None) if half else (1, middle + 1)
            chosen: NDArray[np.intp] = first + losses[..., first:stop].argmin(axis=-1)
            return chosen

        return ReadingPredictor(name="contrastive loss", layers=layers)

    ranked = ReadingPredictor(name="LogME", layers=lambda scores: 1 + np.round(scores[..., 1:], 4).argmax(axis=-1))
    rules = (
        ("L3Prune small", "contrastive loss", lowest(0), "Thennal, Fischer and Biemann 2025 (2410.14578)"),
        ("L3Prune large", "contrastive loss", lowest(1), "Thennal, Fischer and Biemann 2025 (2410.14578)"),
        ("TransformerRanker bestlayer", "LogME", ranked, "Garbaciauskas et al. 2024 (Findings of ACL, 757)"),
    )
    return [
        Rule(name=name, curves=(curve,), make=lambda predict=predict: predict, labelled=True, source=source)
        for name, curve, predict, source in rules
        if curve in readings
    ]


DRAWS = 2000
FEWEST_FAMILIES = 4
"""Fewest families to resample: percentiles over two or three clusters are no interval."""


def bench_predictors(
    zoo: Zoo,
    *,
    rules: Sequence[Rule] | None = None,
    strategies: Sequence[Strategy] | None = None,
    budgets: Sequence[str] = (),
    draws: int = DRAWS,
) -> Bench:
    """Score rules on a zoo under each fine-tuning budget, leave-one-family-out.

    For each family, a rule is fitted to the models of the other families and predicts those of this one.
    A rule predicts no drop for a model without its readings: all rules are scored on the same models. Intervals are
    percentiles of a bootstrap over families, whose models are similar; with fewer than four families,
    encoders are resampled, each with its entries on all tasks. Percentiles are expanded for the number of clusters, see
    `scores.expanded`. Rules are not refitted, so the intervals hold for these fitted rules.

    By default all rules that the entries allow are scored, under all budgets of the zoo, with the
    same draws. Strategies that train are replayed on the recorded runs, all by default, see `score_strategies`.

    Raises:
        DataError: If no model has the budget, or there is nothing to draw.
    """
    level = current().level
    if draws < 1:
        raise DataError(f"expected at least one draw, got {draws}")
    present = list(dict.fromkeys(name for entry in zoo.entries for name in entry.budgets))
    if unknown := [name for name in budgets if name not in present]:
        raise DataError(f"expected budgets among {', '.join(present)}, got {', '.join(unknown)}")
    if rules is None:
        readings = zoo_readings(zoo.entries)
        rules = rules_for(readings, published_rules(readings))
    strategies = training_strategies() if strategies is None else strategies
    return Bench(
        provenance=zoo.provenance,
        families=tuple(dict.fromkeys(entry.family for entry in zoo.entries)),
        level=level,
        draws=draws,
        budgets=tuple(
            _scored(zoo.entries, name, rules, strategies, level=level, draws=draws)
            for name in dict.fromkeys(budgets or present)
        ),
    )


def zoo_readings(entries: Iterable[ZooEntry]) -> dict[str, Reading]:
    """Return the readings with numbers in at least one entry, by name.

    The direction of an unregistered reading is unknown.
    """
    readings: dict[str, Reading] = {}
    for entry in entries:
        for name in entry.curves:
            if (known := _known(name)) is not None:
                readings[name] = known
            else:
                needs: Literal["labels", "embeddings"] = "labels" if name in entry.labelled else "embeddings"
                readings[name] = Reading(description=name, direction=None, needs=needs, compute=lambda source: None)
    return readings


def _known(name: str) -> Reading | None:
    return RIVALS.get(name) or (reading_of(name) if name in READINGS or cka_with("") in name else None)


def known_drops(entries: Iterable[ZooEntry], budget: str) -> list[KnownDrop]:
    """Return the models fine-tuned under a budget, with their drops and regrets, to fit and score rules on."""
    tuned = [(entry, entry.budgets[budget]) for entry in entries if budget in entry.budgets]
    return [
        KnownDrop(
            name=entry.name,
            family=entry.family,
            model=ModelCurves(n_blocks=entry.n_blocks, curves=entry.curves),
            truth=truth(layers),
            regrets=regrets(layers),
        )
        for entry, layers in tuned
    ]


def _scored(
    entries: Sequence[ZooEntry],
    budget: str,
    rules: Sequence[Rule],
    strategies: Sequence[Strategy],
    *,
    level: float,
    draws: int,
) -> BudgetScores:
    models = known_drops(entries, budget)
    present = [entry for entry in entries if budget in entry.budgets]
    clusters, clustered_by = _clusters(present)
    counts = np.vstack([np.ones(len(models)), redrawn(clusters, draws=draws, seed=0)])
    redraws = Redraws(counts=counts, level=expanded(level, len(set(clusters))))
    scored, left_out, played = [], dict[str, str](), list[Strategy]()
    for rule in rules:
        reason = obstacle(rule, models)
        if reason is None:
            layers = leave_one_family_out(rule, models)
            scored.append(_rule_scores(rule, models, layers, redraws))
            played.append(_as_strategy(rule, models, layers))
        else:
            left_out[rule.name] = reason
    recorded = [Recorded(entry=entry, tuned=entry.budgets[budget]) for entry in present]
    scored.sort(key=lambda row: (row.labelled, row.mean_regret.value))
    return BudgetScores(
        budget=budget,
        clusters=clustered_by,
        truths={model.name: model.truth for model in models},
        rules=tuple(scored),
        left_out=left_out,
        strategies=score_strategies(recorded, [*played, *strategies], redraws),
    )


def _clusters(entries: Sequence[ZooEntry]) -> tuple[list[str], str]:
    """Return each entry's resampling cluster and its name: the family, or the encoder if families are few."""
    families = [entry.family for entry in entries]
    if len(set(families)) >= FEWEST_FAMILIES:
        return families, "families"
    encoders = [entry.name.removesuffix(f"-{entry.task}") for entry in entries]
    n = len(set(encoders))
    return encoders, "models" if n == len(entries) else f"{counted(n, 'encoder')} ({len(entries)} entries)"


def _as_strategy(rule: Rule, models: Sequence[KnownDrop], layers: Sequence[tuple[int, ...]]) -> Strategy:
    """Return a rule as a strategy that trains nothing and skips models whose readings it lacks."""
    read = zip(models, layers, strict=True)
    chosen = {case.name: of if rule.reads(case.model) else () for case, of in read}
    sources = dict.fromkeys(known.source for known in map(_known, rule.curves) if known is not None)
    return rule_strategy(
        rule.name,
        chosen,
        source=rule.source or "; ".join(filter(None, sources)),
        needs="labels" if rule.labelled else "nothing" if rule.source == CONTROL else "readings",
    )


def _testing_cost(layer: int, model: ModelCurves) -> float:
    """Return the cost of testing a call by fine-tuning two layers, as a share of the full sweep.

    The layers are the predicted one and the last one. If the last one is predicted, the other is the best zero-shot
    layer, if that is known and not the last one, or else at three quarters of the depth.
    """
    n_blocks, rivals = model.n_blocks, [layer]
    if ZERO_SHOT in model.curves:
        rivals.append(int(np.argmax(model.curves[ZERO_SHOT].values)))
    rivals += [fixed_fraction(n_blocks), n_blocks - 1]
    earlier = next(rival for rival in rivals if rival < n_blocks)
    return cost_share((earlier, n_blocks), n_blocks)


def _rule_scores(rule: Rule, models: Sequence[KnownDrop], layers: Sequence[tuple[int, ...]], redraws: Redraws) -> Row:
    """Return the scores of a rule that selects one of these layers for each model, all equally likely."""

    def expected(of: Callable[[int, KnownDrop], float]) -> Array:
        """Return (models,) means over the layers."""
        return np.array(
            [fmean(of(layer, case) for layer in choice) for case, choice in zip(models, layers, strict=True)]
        )

    drops = np.array([case.truth.drop for case in models])
    called = expected(lambda layer, case: layer < case.model.n_blocks)
    regrets = expected(lambda layer, case: float(case.regrets[layer]))
    errors = expected(lambda layer, case: 0 if case.truth.onset is None else abs(layer + 1 - case.truth.onset))
    hits, n_called, n_drops = redraws.total(called * drops), redraws.total(called), redraws.total(drops)
    values = {
        "labelled": rule.labelled,
        "parameters": rule.parameters,
        "missing": sum(not rule.reads(case.model) for case in models),
        "precision": redraws.score(hits, n_called),
        "recall": redraws.score(hits, n_drops),
        "f1": redraws.score(2 * hits, n_called + n_drops),
        "onset_error": redraws.score(redraws.total(errors), n_drops),
        "mean_regret": redraws.mean(regrets),
        "median_regret": redraws.quantile(regrets),
        "cost": redraws.mean(expected(lambda layer, case: _testing_cost(layer, case.model))),
        "layers": {case.name: chosen for case, chosen in zip(models, layers, strict=True)},
    }
    return Row(kind="rule", name=rule.name, values=values)


REFERENCE = cka_with(OTHER_SEED)
"""Name of CKA with an MLM model with other initial weights in the zoos, as every reference is."""
BUDGET = "converged"
"""Budget that rules are tuned for; it is closer to the paper's than the gentle one."""


def tuned_rules() -> list[Rule]:
    """Return the rules as `predict` uses them, and controls that read nothing, with no parameters left to fit.

    `bench_predictors` then scores them on models that had no part in the tuning, in any family.
    """
    models = known_models(BUDGET)

    def fix_rule(rule: Rule) -> Rule:
        predict = fitted(rule, models)
        curves = tuple(REFERENCE if name == CKA else name for name in rule.curves)
        return replace(
            rule,
            curves=curves,
            make=lambda: lambda model: predict(read_like_predict(model)),
            choose=nothing_to_choose,
            parameters=0,
        )

    return [fix_rule(rule) for rule in (*depth_rules({}, []), *fittable_rules())]


def unfitted_rules(entries: Sequence[ZooEntry]) -> list[Rule]:
    """Return parameter-free rules on readings that these models have and the tuning zoos lack."""
    tuned_on = {name for entry in read_zoo().entries for name in entry.curves}
    new = {name: reading for name, reading in zoo_readings(entries).items() if name not in tuned_on}
    return [rule for rule in rules_for(new, published_rules(new)) if rule.curves and not rule.parameters]


@functools.cache
def fittable_rules() -> list[Rule]:
    """Return the rules that read one model and one reference."""
    models = known_models(BUDGET)
    readings = {name.replace(REFERENCE, CKA): reading for name, reading in zoo_readings(read_zoo().entries).items()}
    rules = rules_for({name: reading for name, reading in readings.items() if not name.startswith(cka_with(""))})
    return [rule for rule in rules if rule.curves and obstacle(rule, models) is None]


@functools.cache
def known_models(budget: str) -> list[KnownDrop]:
    """Return the models of layerprobe's zoos, as `predict` reads them, with their drops."""
    entries = read_zoo().entries
    models = known_drops(entries, budget)
    if not models:
        names = dict.fromkeys(name for entry in entries for name in entry.budgets)
        raise DataError(f"expected a budget among {', '.join(names)}, got {budget!r}")
    return [replace(case, model=read_like_predict(case.model)) for case in models]


def read_like_predict(model: ModelCurves) -> ModelCurves:
    """Return a zoo's model as `predict` sees one: with one reference, whose CKA has no suffix."""
    curves = {name.replace(REFERENCE, CKA): curve for name, curve in model.curves.items()}
    return ModelCurves(
        n_blocks=model.n_blocks,
        curves={name: curve for name, curve in curves.items() if not name.startswith(cka_with(""))},
    )
