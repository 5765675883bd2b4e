"""The most informative next run, or why the search is over; and the layer to keep, from the evidence so far.

Pure functions: the same evidence gives the same run and the same answer.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtr, ndtri

from layerprobe.errors import DataError
from layerprobe.interval import Interval
from layerprobe.names import plural
from layerprobe.search.posterior import Array, Posterior, posterior, side_by_side, standard_normal
from layerprobe.search.values import (
    FAILURES,
    SWEPT_BLOCKS,
    Decision,
    Doubt,
    Evidence,
    LayerBelief,
    PlannedRun,
    Score,
    SearchAnswer,
    SearchSettings,
    StopReason,
)
from layerprobe.stats.crossed import square_root
from layerprobe.stats.values import best_of

LEAST_RUN_GAIN = 0.001
"""Smallest expected gain of a single run, in points: a cheap run that cannot matter is not made."""
LEAST_GAIN = 0.02
"""Smallest expected gain of infinitely many further seeds together, in points of the metric x 100."""
GIVEN_UP = 3
"""Number of runs without any score after which one of several models is left out."""
LAST_RUNS, LAST_SHARE = 2, 0.2
"""Number of scores of the last layer for which part of the budget is reserved, and the largest such share."""
ROUNDING = 1e-9
"""Block-steps added to the budget, so that rounding does not exclude a run that costs all that is left."""
CHOOSING = 0.0
"""Prior chance that InfoNCE is uninformative when choosing runs: readings guide the search, not its statements."""


def next_run(
    evidence: Evidence | Sequence[Evidence],
    settings: SearchSettings | None = None,
    pending: Sequence[PlannedRun] = (),
) -> Decision:
    """Decide on the next step, given the pending runs, whose scores are still unknown.

    1. Models of up to 4 blocks: every layer once.
    2. Other models: the start layer.
    3. The layer that seems best, if it has had no run, and the first block, if that is layer 0.
    4. The run with the largest expected rise of the highest posterior mean per cost, the first of equals. With pending
       runs, it is at a layer without a run, if there is one, and its gain is counted in addition to theirs.
       Only for these gains is InfoNCE assumed to be informative.
    5. When that is over: the last layer of the model to keep, unless it is the layer to keep, until it has two scores
       or the interval of the difference is above the tolerance. Up to a fifth of the budget is reserved for it.

    Several models share one budget, a share of the total cost of their full sweeps. Each starts as it would alone; the
    next run is then the one with the largest expected rise of the highest posterior mean of all models per cost, see
    `side_by_side`: a model that is far behind gets no further run.

    Step 4 is over when the best layer is within the tolerance at the level; when infinitely many seeds would not
    improve the choice by 0.02 points; when all layers that may be the best have all their seeds; or when the next run
    exceeds the budget without the reserve.

    Source: the knowledge gradient for correlated beliefs, Frazier, Powell and Dayanik 2009 (INFORMS Journal on
    Computing 21, 599-613), per unit of cost.
    """
    settings = settings or SearchSettings()
    models = {model.model: model for model in ([evidence] if isinstance(evidence, Evidence) else evidence)}
    left = sum(model.block_cost * (settings.block_steps(model.n_blocks) - model.spent) for model in models.values())
    left += ROUNDING - sum(_cost(run, models) for run in pending)
    contending = [
        model for model in models.values() if len(models) == 1 or len(model.scores) < GIVEN_UP or model.scored
    ]
    beginnings = [_opening(model, settings, pending) for model in contending]
    runs = [begun.run for begun in beginnings if begun is not None and begun.run is not None]
    if not runs:
        return _next_by_gain(models, settings, left, pending)
    if not pending and not any(model.scores for model in models.values()):
        _check_budget(sum(_cost(run, models) for run in runs), left, models, settings)
    begun = next(begun for begun in beginnings if begun is not None)
    return begun if _cost(runs[0], models) <= left else _over("budget", settings, models)


def gain_of_run(beliefs: Posterior, layer: int, beside: Sequence[int] = ()) -> float:
    """Return the expected rise of the highest posterior mean by one more run at a layer, in points, at least 0.

    With parallel runs at the layers `beside`, it is the rise in addition to theirs.
    """
    means, (cross, seen) = beliefs.means[beliefs.choices], beliefs.run
    cross = cross[beliefs.choices]
    if not beside:
        moves = cross[:, layer] / np.sqrt(seen[layer, layer] + beliefs.run_variance[layer])
        return max(_expected_maximum(means, moves) - float(means.max()), 0.0)
    layers = [*beside, layer]
    seen = seen[np.ix_(layers, layers)] + beliefs.run_variance[layers] * np.eye(len(layers))
    moves = np.linalg.solve(np.linalg.cholesky(seen), cross[:, layers].T)
    drawn = standard_normal(len(beliefs.draws), len(layers))
    without = means + drawn[:, :-1] @ moves[:-1]
    gained = (without + np.outer(drawn[:, -1], moves[-1])).max(axis=1) - without.max(axis=1)
    return max(float(gained.mean()), 0.0)


def gain_of_seeds(beliefs: Posterior) -> float:
    """Return the same for infinitely many runs at every layer, on all available items."""
    cross, seen = beliefs.endless
    explained = cross @ np.linalg.pinv(seen, rcond=1e-9, hermitian=True) @ cross.T
    moves = standard_normal(len(beliefs.draws), len(beliefs.means)) @ square_root(explained)
    means, moves = beliefs.means[beliefs.choices], moves[:, beliefs.choices]
    return max(float((means + moves).max(axis=1).mean() - means.max()), 0.0)


def _opening(evidence: Evidence, settings: SearchSettings, pending: Sequence[PlannedRun]) -> Decision | None:
    """Return the decision before gains are compared; None if they can be."""
    pending = [run for run in pending if run.model == evidence.model]
    n_blocks, layers = evidence.n_blocks, evidence.choices
    fresh = [layer for layer in layers if _is_open(evidence, layer, pending)]
    fresh.sort(key=lambda layer: _seeds(evidence, layer, pending))  # failed ones come last
    if n_blocks <= SWEPT_BLOCKS and fresh:
        return _planned(evidence, fresh[0], f"with up to {SWEPT_BLOCKS} blocks, every layer is fine-tuned", pending)
    if pending or evidence.scored:
        return None
    start = evidence.n_blocks // 2 if evidence.infonce is None else 1 + best_of(evidence.infonce[1:])
    start = start if evidence.start is None else evidence.start
    layer = min(layers, key=lambda layer: (len(evidence.runs_at(layer)), abs(layer - start), layer))
    return _planned(evidence, layer, "the search starts here", pending)


def _next_by_gain(
    models: Mapping[int, Evidence], settings: SearchSettings, left: float, pending: Sequence[PlannedRun]
) -> Decision:
    begun = _begun(models, pending)
    if not begun:
        return _over("budget", settings, models)
    beliefs = side_by_side([posterior(model) for model in begun])
    places = [(models[model.model], layer) for model in begun for layer in range(model.n_blocks + 1)]
    model, layer = places[beliefs.best_layer]
    last, whole = model.n_blocks, sum(m.block_cost * settings.block_steps(m.n_blocks) for m in models.values())
    lacking, cost = _lacking_at_last(model, layer, settings, pending), model.block_cost * (last + 1)
    free = left - cost * min(lacking, int(LAST_SHARE * whole / cost))

    def affords(layer: int) -> bool:
        return model.block_cost * (layer + 1) <= free

    if _is_open(model, layer, pending) and affords(layer):
        return _planned(model, layer, "this layer looks best and has no score of its own yet", pending)
    if layer == 0 and not _seeds(model, 1, pending) and affords(1):
        why = "layer 0 looks best, and runs at other layers say little about the first block"
        return _planned(model, 1, why, pending)
    decision = _most_promising(models, begun, beliefs, places, settings, free, pending)
    if decision.run is None and lacking and cost <= left:
        why = "the whole model is compared with the layer that looks best"
        folds = {model.fold(score.seed) for score in model.runs_at(layer)}
        return _planned(model, last, why, pending, folds)
    return decision


def _lacking_at_last(evidence: Evidence, best: int, settings: SearchSettings, pending: Sequence[PlannedRun]) -> int:
    """Return how many scores the last layer still needs, besides pending runs; 0 if it is best, or clearly worse."""
    last, scores = evidence.n_blocks, _scored_runs(evidence, evidence.n_blocks)
    n_seeds = _seeds(evidence, last, pending)
    lacking = LAST_RUNS - scores - (n_seeds - len(evidence.runs_at(last)))
    if best == last or lacking <= 0 or last not in evidence.contenders or n_seeds >= settings.seeds:
        return 0
    whole = gain_over_whole(posterior(evidence), posterior(evidence, claims=True), best, settings) if scores else None
    return 0 if whole is not None and whole.interval[0] > settings.tolerance else lacking


def _most_promising(
    models: Mapping[int, Evidence],
    begun: Sequence[Evidence],
    beliefs: Posterior,
    places: Sequence[tuple[Evidence, int]],
    settings: SearchSettings,
    left: float,
    pending: Sequence[PlannedRun],
) -> Decision:
    """Return the run with the largest expected gain per cost, or why none is worth it.

    `places` are the models and layers of the beliefs.
    """
    scored = len(begun) == sum(model.scored for model in models.values())
    hoped = side_by_side([posterior(model, nothing=CHOOSING) for model in begun])
    n_seeds = [_seeds(model, layer, pending) for model, layer in places]
    costs = [model.block_cost * (layer + 1) for model, layer in places]
    names = [(model.model, layer) for model, layer in places]
    best, likely = beliefs.best_layer, beliefs.candidates(settings.level)
    open_places = [i for i in beliefs.choices.tolist() if n_seeds[i] < settings.seeds]
    if scored and beliefs.chances_within(settings.tolerance)[best] >= settings.level:
        claimed = side_by_side([posterior(model, claims=True) for model in begun])
        if claimed.chances_within(settings.tolerance)[best] >= settings.level:
            return _over("settled", settings, models)
    if not open_places or (scored and not set(likely) & set(open_places)):
        return _over("seeds", settings, models)
    if scored and gain_of_seeds(beliefs) < LEAST_GAIN:
        return _over("gain", settings, models)
    beside = [names.index((run.model, run.layer)) for run in pending]
    contending = {names[i][0] for i in likely}
    fresh = [i for i in open_places if beside and not n_seeds[i] and names[i][0] in contending]
    gains = {i: gain_of_run(hoped, i, beside) for i in fresh or open_places if costs[i] <= left}
    if len(gains) < len(open_places) and max(gains.values(), default=0.0) < LEAST_RUN_GAIN:
        return _over("budget", settings, models)
    rates = {i: round(gain / costs[i], 9) for i, gain in gains.items()}
    model, layer = places[min(rates, key=lambda i: (-rates[i], i))]
    return _planned(model, layer, "another seed at this layer has the largest expected gain for its cost", pending)


def _cost(run: PlannedRun, models: Mapping[int, Evidence]) -> float:
    return models[run.model].block_cost * run.cost


def _check_budget(cost: float, left: float, models: Mapping[int, Evidence], settings: SearchSettings) -> None:
    """Raise DataError if the first runs exceed the budget."""
    full = sum(model.block_cost * settings.full_sweep(model.n_blocks) for model in models.values())
    least, sweeps, runs = "one run", "a full sweep", "the first run costs"
    if len(models) > 1:
        least, sweeps = "one run of each model", "all full sweeps"
        runs = "the first runs together cost"
    if cost > left:
        raise DataError(
            f"expected a budget for at least {least}, got {100 * left / full:.1f} % of {sweeps}: {runs} "
            f"{100 * cost / full:.1f} %, so give at least {math.ceil(1000 * cost / full) / 10}%"
        )


def _begun(models: Mapping[int, Evidence], pending: Sequence[PlannedRun]) -> list[Evidence]:
    """Return the models with a score, or with a pending run, which is assumed to reach the highest score so far.

    A single score says nothing about differences between layers.
    """
    highest = max((s.value for model in models.values() for s in model.scores if s.value is not None), default=0.0)
    begun = []
    for number, model in models.items():
        runs = [run for run in pending if run.model == number]
        if not model.scored and runs:
            score = Score(layer=runs[0].layer, seed=runs[0].seed, value=highest)
            model = replace(model, scores=(score,), item_covariance=())
        if model.scored:
            begun.append(model)
    return begun


def _seeds(evidence: Evidence, layer: int, pending: Sequence[PlannedRun]) -> int:
    """Return the number of runs of a layer, including pending ones."""
    runs = (run for run in pending if run.model == evidence.model)
    return len(evidence.runs_at(layer)) + sum(run.layer == layer for run in runs)


def _is_open(evidence: Evidence, layer: int, pending: Sequence[PlannedRun]) -> bool:
    """Return whether a layer has neither a score nor a pending run, and did not fail too often."""
    failed = len(evidence.runs_at(layer))
    return not _scored_runs(evidence, layer) and failed < FAILURES and _seeds(evidence, layer, pending) == failed


def _over(stop: StopReason, settings: SearchSettings, models: Mapping[int, Evidence]) -> Decision:
    """Return the end of a search over one or several models, with its reason in words."""
    model = " of any model" if len(models) > 1 else ""
    tolerance = f"{settings.tolerance:g} point{'' if settings.tolerance == 1 else 's'}"
    reasons: dict[StopReason, str] = {
        "settled": f"no other layer{model} is likely to be more than {tolerance} better",
        "gain": "more seeds would not improve the choice",
        "seeds": f"every layer that may be the best has all {settings.seeds} seeds",
        "budget": "the next run would exceed the budget",
    }
    return Decision(run=None, stop=stop, why=reasons[stop])


def _planned(
    evidence: Evidence, layer: int, why: str, pending: Sequence[PlannedRun], folds: Collection[int] = ()
) -> Decision:
    """Return a run with the first unused seed of a layer, on one of the given folds, if any."""
    seed = evidence.next_seed(layer, pending, folds)
    run = PlannedRun(layer=layer, seed=seed, cost=layer + 1, model=evidence.model)
    return Decision(run=run, stop=None, why=why)


def _expected_maximum(means: Array, moves: Array) -> float:
    """Return E max_i (means_i + moves_i Z) for a standard normal Z, exactly: each line where it is the highest."""
    above, steeper = means[:, None] - means, moves[:, None] - moves
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -above / steeper
    low = np.where(steeper > 0, crossing, -np.inf).max(axis=1)
    high = np.where(steeper < 0, crossing, np.inf).min(axis=1)
    first = np.arange(len(means))
    doubled = ((steeper == 0) & ((above < 0) | ((above == 0) & (first[:, None] > first)))).any(axis=1)
    top = (low < high) & ~doubled
    low, high, means, moves = low[top], high[top], means[top], moves[top]
    density = np.exp(-(np.stack([low, high]) ** 2) / 2) / math.sqrt(2 * math.pi)
    return float(means @ (ndtr(high) - ndtr(low)) + moves @ (density[0] - density[1]))


def answer(
    evidence: Evidence, settings: SearchSettings | None = None, decision: Decision | None = None
) -> SearchAnswer:
    """Return the layer to keep by the evidence so far, whether or not the search is over.

    By default the decision is the next one for this model alone; with several models, give theirs.
    """
    settings = settings or SearchSettings()
    beliefs, claimed = posterior(evidence), posterior(evidence, claims=True)
    best, within = beliefs.best_layer, claimed.chances_within(settings.tolerance)
    sufficient = [layer for layer in claimed.tested.tolist() if within[layer] >= settings.level]
    candidates, below = claimed.statement(settings.tolerance, settings.level)
    whole = gain_over_whole(beliefs, claimed, best, settings)
    worse = {*below, *([evidence.n_blocks] if whole and whole.shown else [])} - {best}
    return SearchAnswer(
        best_layer=best,
        chance=float(claimed.chances[best]),
        candidates=tuple(sorted({*candidates, best} - worse)),
        smallest_sufficient=sufficient[0] if sufficient else None,
        layers=_beliefs(evidence, beliefs.means, claimed, settings),
        settings=settings,
        spent=evidence.spent,
        full_sweep=settings.full_sweep(evidence.n_blocks),
        decision=decision or next_run(evidence, settings),
        doubt=_doubt(evidence, beliefs, settings),
        first_layer=evidence.first_layer,
        worse=tuple(sorted(worse)),
        whole=whole,
    )


def gain_over_whole(beliefs: Posterior, claimed: Posterior, best: int, settings: SearchSettings) -> Interval | None:
    """Return the quality of a layer minus that of the last one; None if it is the last one, or that has no score."""
    last, tail = len(beliefs.means) - 1, (1 - settings.level) / 2
    if best == last or last not in claimed.tested:
        return None
    differences = claimed.draws[:, best] - claimed.draws[:, last]
    value = float(beliefs.means[best] - beliefs.means[last])
    low, high = np.quantile(differences, (tail, 1 - tail)).tolist()
    return Interval(
        value=value,
        standard_error=float(differences.std()),
        interval=(min(low, value), max(high, value)),
        level=settings.level,
        freedom=len(differences) - 1,
        label=f"layer {best} minus layer {last}",
        shown=bool((differences > settings.tolerance).mean() >= settings.level),
    )


def answers_among(
    models: Sequence[Evidence],
    answers: Sequence[SearchAnswer],
    settings: SearchSettings,
    *,
    sizes: Sequence[Sequence[int]],
    spoilt: bool,
) -> list[SearchAnswer]:
    """Return the answers of several models with the chances of their layers among those of all models.

    `sizes` are parameters by model and layer; `spoilt` scores allow no conclusion.
    """
    expected = side_by_side([posterior(evidence) for evidence in models])
    claimed = side_by_side([posterior(evidence, claims=True) for evidence in models])
    chances, within = claimed.chances, claimed.chances_within(settings.tolerance)
    stated = [*claimed.statement(settings.tolerance, settings.level)[0], expected.best_layer]
    likely = np.isin(np.arange(len(chances)), expected.choices if spoilt else stated)
    if spoilt:
        chances, within = likely / likely.sum(), np.full(len(chances), 0.5)
    behind = claimed.behind(settings.tolerance, settings.level)
    by_model = np.split(np.stack([chances, within, behind, likely]), claimed.starts[1:], axis=1)
    among = []
    for answered, of_model in zip(answers, by_model, strict=True):
        layers = [
            replace(belief, chance_best=chance, chance_within=near, behind=ahead)
            for belief, chance, near, ahead in zip(answered.layers, *of_model[:3].tolist(), strict=True)
        ]
        candidates = tuple(np.flatnonzero(of_model[3]).tolist())
        among.append(replace(answered, layers=tuple(layers), candidates=candidates, smallest_sufficient=None))
    enough = [
        (size[belief.layer], i, belief.layer)
        for i, (size, answered) in enumerate(zip(sizes, among, strict=True))
        for belief in answered.layers[answered.first_layer :]
        if belief.runs and belief.chance_within >= settings.level and not spoilt
    ]
    if enough:
        _, i, layer = min(enough)
        among[i] = replace(among[i], smallest_sufficient=layer)
    return among


def _beliefs(
    evidence: Evidence, expected: Array, claimed: Posterior, settings: SearchSettings
) -> tuple[LayerBelief, ...]:
    tail = (1 - settings.level) / 2
    ends = np.quantile(claimed.draws, (tail, 1 - tail), axis=0)
    lows, highs = np.minimum(ends[0], expected).tolist(), np.maximum(ends[1], expected).tolist()
    means, chances = expected.tolist(), claimed.chances.tolist()
    within = claimed.chances_within(settings.tolerance).tolist()
    behind = claimed.behind(settings.tolerance, settings.level).tolist()
    gains = _gains(expected, claimed, tail)
    return tuple(
        LayerBelief(
            layer=layer,
            mean=means[layer],
            interval=(lows[layer], highs[layer]),
            chance_best=chances[layer],
            chance_within=within[layer],
            behind=behind[layer],
            gain=gains[layer] if gains else None,
            runs=_scored_runs(evidence, layer),
            failed=len(evidence.runs_at(layer)) - _scored_runs(evidence, layer),
        )
        for layer in range(evidence.n_blocks + 1)
    )


def _gains(expected: Array, claimed: Posterior, tail: float) -> list[tuple[float, float, float]]:
    """Return each layer's quality minus that of the last one, with its interval; empty if the last layer has no run."""
    last = len(expected) - 1
    if last not in claimed.tested:
        return []
    values = expected - expected[last]
    low, high = np.quantile(claimed.draws - claimed.draws[:, [last]], (tail, 1 - tail), axis=0)
    low, high = np.minimum(low, values), np.maximum(high, values)
    return [*zip(values.tolist(), low.tolist(), high.tolist(), strict=True)]


def _doubt(evidence: Evidence, beliefs: Posterior, settings: SearchSettings) -> Doubt | None:
    """Return the difference of the best layer from the likeliest other one with a run; None if one of them has none.

    The error over items is unknown if no two of their runs were scored on the same items.
    """
    best, chances = beliefs.best_layer, beliefs.chances
    folds = {
        i: [evidence.fold(s.seed) for s in evidence.runs_at(i) if s.value is not None] for i in evidence.contenders
    }
    others = [layer for layer in folds if layer != best and folds[layer]]
    if not others or not folds[best]:
        return None
    rival = max(others, key=lambda layer: (chances[layer], beliefs.means[layer], -layer))
    contrast = np.zeros(len(chances))
    contrast[[best, rival]] = 1.0, -1.0
    on_same_items = not set(folds[best]).isdisjoint(folds[rival])
    item_error = math.sqrt(max(float(contrast @ beliefs.items @ contrast), 0.0)) if on_same_items else 0.0
    needed = None
    if evidence.n_items is not None and settings.tolerance > 0 and item_error > 1e-9:
        reach = float(ndtri((1 + settings.level) / 2)) * item_error
        needed = math.ceil(evidence.n_items * (reach / settings.tolerance) ** 2)
    return Doubt(
        rival=rival,
        difference=float(contrast @ beliefs.means),
        item_error=item_error if item_error > 1e-9 else 0.0,
        seed_error=math.sqrt(beliefs.run_variance[best] * (1 / len(folds[best]) + 1 / len(folds[rival]))),
        items_needed=needed,
    )


def _scored_runs(evidence: Evidence, layer: int) -> int:
    return sum(score.value is not None for score in evidence.runs_at(layer))


def data_use_sentences(
    sizes: Sequence[int], fold: Sequence[int], unit: str, *, n_folds: int, epochs: str, few: int | None = None
) -> str:
    """Return sentences on the data for training, choosing and testing in a search, and on the effect of more labels.

    `sizes` are those of the task's three splits, `fold` those of a run's training and scoring. Without cross-validation
    there is 1 fold; it is the default below `few` validation items, and was requested if that is None. `epochs` are in
    words.
    """
    train, validation, test = sizes
    items = plural(unit)
    on = f"Each run trains for {epochs} on"
    runs = f"{on} {train:,} {items} and is scored on {validation:,} validation {items}, which choose"
    if n_folds > 1:
        why = "" if few is None else f" (there are fewer than {few:,} validation {items})"
        runs = (
            f"The layer is chosen by cross-validation{why}: the {train:,} training and {validation:,} validation "
            f"{items} are divided into {n_folds} folds. {on} all but one of them (about {fold[0]:,} {items}), and is "
            f"scored on the remaining one ({fold[1]:,})"
        )
    return (
        f"{runs}. The {test:,} test {items} score the chosen layer. Twice as many scored {items} reduce the error of a "
        f"run over {items} to 0.71 times; in a replay of 40 recorded encoders at 15 % of a sweep, the chosen layer was "
        "0.20 points below the best with 3,200 labels, and 0.35 points with 1,600."
    )
