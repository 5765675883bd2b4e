"""Evidence -> which layer to keep, how certain that is, and what is uncertain. Knows numbers; trains nothing."""

import math

import numpy as np
from scipy.special import ndtri

from layerprobe.search.plan import next_run
from layerprobe.search.posterior import Array, Posterior, posterior
from layerprobe.search.values import Decision, Doubt, Evidence, LayerBelief, SearchAnswer, SearchSettings


def answer(
    evidence: Evidence, settings: SearchSettings | None = None, decision: Decision | None = None
) -> SearchAnswer:
    """Say which layer to keep by the evidence so far, whether or not the search is over.

    The decision is the next of this model alone, unless another is given, such as one of several models.
    """
    settings = settings or SearchSettings()
    beliefs, claimed = posterior(evidence), posterior(evidence, claims=True)
    best, within = beliefs.best_layer, claimed.chances_within(settings.tolerance)
    sufficient = [layer for layer in claimed.tested.tolist() if within[layer] >= settings.level]
    candidates, worse = claimed.statement(settings.tolerance, settings.level)
    return SearchAnswer(
        best_layer=best,
        chance=float(claimed.chances[best]),
        candidates=tuple(sorted({*candidates, best})),
        smallest_sufficient=sufficient[0] if sufficient else None,
        layers=_beliefs(evidence, beliefs.means, claimed, settings),
        settings=settings,
        spent=evidence.spent,
        full_sweep=settings.full_sweep(evidence.n_blocks),
        decision=decision or next_run(evidence, settings),
        doubt=_doubt(evidence, beliefs, settings),
        sentence="",
        first_layer=evidence.first_layer,
        worse=tuple(layer for layer in worse if layer != best),
    ).worded


def _beliefs(
    evidence: Evidence, expected: Array, claimed: Posterior, settings: SearchSettings
) -> tuple[LayerBelief, ...]:
    tail = (1 - settings.level) / 2
    ends = np.quantile(claimed.draws, (tail, 1 - tail), axis=0)
    lows, highs = np.minimum(ends[0], expected).tolist(), np.maximum(ends[1], expected).tolist()
    means, chances = expected.tolist(), claimed.chances.tolist()
    within, behind = claimed.chances_within(settings.tolerance).tolist(), claimed.behind(settings.level).tolist()
    return tuple(
        LayerBelief(
            layer=layer,
            mean=means[layer],
            interval=(lows[layer], highs[layer]),
            chance_best=chances[layer],
            chance_within=within[layer],
            behind=behind[layer],
            runs=_runs(evidence, layer),
            failed=len(evidence.runs_at(layer)) - _runs(evidence, layer),
        )
        for layer in range(evidence.n_blocks + 1)
    )


def _doubt(evidence: Evidence, beliefs: Posterior, settings: SearchSettings) -> Doubt:
    best, chances = beliefs.best_layer, beliefs.chances
    others = [layer for layer in evidence.contenders if layer != best] or [best]
    rival = max(others, key=lambda layer: (chances[layer], -layer))
    contrast = np.zeros(len(chances))
    contrast[[best, rival]] = 1.0, -1.0
    item_error = math.sqrt(max(float(contrast @ beliefs.items @ contrast), 0.0))
    runs = [_runs(evidence, layer) for layer in (best, rival)]
    needed = None
    if evidence.n_items is not None and settings.tolerance > 0 and item_error > 1e-9:
        reach = float(ndtri((1 + settings.level) / 2)) * item_error
        needed = math.ceil(evidence.n_items * (reach / settings.tolerance) ** 2)
    return Doubt(
        rival=rival,
        difference=float(contrast @ beliefs.means),
        item_error=item_error if item_error > 1e-9 else 0.0,
        seed_error=math.sqrt(beliefs.run_variance[best] * sum(1 / n for n in runs)) if all(runs) else None,
        items_needed=needed,
    )


def _runs(evidence: Evidence, layer: int) -> int:
    return sum(score.value is not None for score in evidence.runs_at(layer))
