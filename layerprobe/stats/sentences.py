"""Statistics in English: numbers and names in, sentences out.

Every result uses these, so that one thing is said in one way; a language would be a second module like this. All of
them, with examples of every case, stand in `tests/stats/sentences.txt`.
"""

from collections.abc import Iterable, Mapping, Sequence

from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, in_percent, listed, plural, told_apart
from layerprobe.results.numbers import capitalised
from layerprobe.stats.values import AgainstBest, Floor

Ends = tuple[float, float]

MANY = 8
"""More names than these are counted in a sentence."""
FEW = 2
"""Of so many that are ruled out, these are named, and not those that are left."""
CLOSE = 0.4
"""Of two parts of a variance, neither is most of it where both have a larger share than this."""


# ---- numbers ---------------------------------------------------------------------------------------------


def points(number: float) -> str:
    """Return a tolerance in words.

    Examples:
        >>> points(0.5), points(1)
        ('0.5 points', '1 point')
    """
    return f"{number:g} point{'' if number == 1 else 's'}"


def percents(share: float) -> str:
    """Return a share as whole percents that never claim certainty.

    Examples:
        >>> percents(0.62), percents(0.999), percents(0.0)
        ('62%', 'over 99%', 'under 1%')
    """
    if share > 0.99:
        return "over 99%"
    return "under 1%" if share < 0.01 else f"{share:.0%}"


_PARTS = {
    **{"a tenth": 1 / 10, "a fifth": 1 / 5, "a quarter": 1 / 4, "a third": 1 / 3, "two fifths": 2 / 5, "half": 1 / 2},
    **{"three fifths": 3 / 5, "two thirds": 2 / 3, "three quarters": 3 / 4, "four fifths": 4 / 5},
}


def part(share: float) -> str:
    """Return a share as a simple fraction where it is one to within 1.5 percent points, else in percent.

    Examples:
        >>> part(0.41), part(0.337), part(0.29), part(0.031)
        ('two fifths', 'a third', '29%', '3%')
    """
    name, nearest = min(_PARTS.items(), key=lambda named: abs(named[1] - share))
    return name if abs(nearest - share) <= 0.015 else f"{share:.0%}"


def chance(share: float) -> str:
    """Return a probability with its article.

    Examples:
        >>> chance(0.62), chance(0.81), chance(0.999)
        ('a 62% chance', 'an 81% chance', 'a chance of over 99%')
    """
    number = percents(share)
    if " " in number:
        return f"a chance of {number}"
    return f"{'an' if number.startswith('8') or number in ('11%', '18%') else 'a'} {number} chance"


def spans(layers: Sequence[int]) -> list[str]:
    """Return layers, ascending, with the ends alone of more than three that are side by side.

    Examples:
        >>> spans([0, 1, 2, 3, 6, 7])
        ['0 to 3', '6', '7']
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = ([f"{run[0]} to {run[-1]}"] if len(run) > 3 else [str(layer) for layer in run] for run in runs)
    return [name for names in parts for name in names]


# ---- scores and differences ------------------------------------------------------------------------------


def with_interval(score: float, interval: Ends | None, level: float | None) -> str:
    """Return a score with its interval, where that is known.

    Examples:
        >>> with_interval(71.2, (70.0, 72.5), 0.95)
        '71.20 (95% 70.00 to 72.50)'
    """
    if interval is None or level is None:
        return f"{score:.2f}"
    return f"{score:.2f} ({in_percent(level)} {interval[0]:.2f} to {interval[1]:.2f})"


def range_of(interval: Ends, level: float | None = None, *, digits: int = 2) -> str:
    """Return the interval of a difference, at a level where one is given, with as many digits as say if 0 is in it.

    Examples:
        >>> range_of((-0.2, 1.02), 0.95), range_of((0.04, 1.2), 0.95, digits=1)
        ('95% interval -0.20 to +1.02', '95% interval +0.04 to +1.2')
    """
    low, high = (("" if end < 0 else "+") + told_apart(round(end, 6), 0, digits) for end in interval)
    return f"{low} to {high}" if level is None else f"{in_percent(level)} interval {low} to {high}"


def drawn_anew(error: Interval) -> str:
    """Return what an interval allows to vary: items, seeds or both."""
    if error.n_items is None:
        return "over new seeds only, as outputs by item were not kept"
    if error.seeds_error is None:
        return f"over new {plural(error.unit)} only, as there is one seed"
    return f"over new {plural(error.unit)} and new seeds"


def drawn_anew_in_all(errors: Iterable[Interval]) -> str:
    """Return what several intervals are over: those of one seed are over items only."""
    return ", or ".join(sorted(dict.fromkeys(map(drawn_anew, errors)), key=lambda over: " only" in over))


def error_sources(error: Interval) -> str:
    """Return what an interval is over and where most of its error comes from."""
    over = drawn_anew(error)
    if error.items_error is None or error.seeds_error is None or not error.standard_error:
        return over
    items, seeds = f"the {error.n_items:,} {plural(error.unit)}", f"the {error.n_seeds} seeds"
    share = error.items_error**2 / error.standard_error**2
    if CLOSE < share < 1 - CLOSE:
        return f"{over}, about as much of the error from {items} as from {seeds}"
    return f"{over}, most of the error from {items if share > CLOSE else seeds}"


def differences_sentence(
    first: str,
    second: str,
    layers: Sequence[int],
    values: Sequence[float],
    errors: Sequence[Interval | None],
    *,
    metric: str,
    level: float,
) -> str:
    """Return at which layers the second of two results scores higher or lower than the first, x 100.

    Errors hold at the level for all layers together; one is None where nothing is known of it.
    """
    largest = max(range(len(layers)), key=lambda i: abs(values[i]))
    error = errors[largest]
    ends = "" if error is None else f" ({range_of(error.interval)})"
    most = f"layer {layers[largest]}, {metric_title(metric)} {values[largest]:+.2f}{ends}"
    if not any(errors):
        return f"Scores of {second} less those of {first}: the largest difference is at {most}; its error is not known."
    together = f"{in_percent(level)} for all layers together"
    of = f" scores of {second} than of {first}"
    signs = [error.sign if error else 0 for error in errors]
    rest, differ = signs.count(0), list[str]()
    for sign, word in ((1, "higher"), (-1, "lower")):
        if at := [layer for layer, of_layer in zip(layers, signs, strict=True) if of_layer == sign]:
            differ.append(f"{word}{'' if differ else of} at layer{'s' * (len(at) > 1)} {listed(spans(at))}")
    if not differ:
        among = "at the one layer" if rest == 1 else f"at any of {rest} layers"
        return f"No significant difference between {first} and {second} {among} ({together}); the largest is at {most}."
    where = f"the other {counted(rest, 'layer') if rest > 1 else 'layer'}"
    others = f" No significant difference at {where}." if rest else ""
    return f"{capitalised(', '.join(differ))} ({together}); the largest difference is at {most}.{others}"


def gain_in_brackets(gain: Interval | None) -> str:
    """Return the interval of a gain and whether it is one, as the end of a sentence."""
    if gain is None:
        return "(no interval): whether that is a gain is not known."
    verdict = {1: "a gain", -1: "a loss", 0: "no significant gain"}[gain.sign]
    return f"({range_of(gain.interval, gain.level)} {drawn_anew(gain)}): {verdict}."


def against_last(layer: int, last: int, difference: Interval | None, metric: str) -> str:
    """Return how a layer's test score compares with that of the last one, of which it is the score less.

    Without a difference why it was not compared.
    """
    if difference is None and layer == last:
        return (
            "The layer to keep is already the last one: `shrink` takes blocks out of a model that is good as a whole."
        )
    if difference is None:
        return f"Layer {layer} was not compared with the last layer, {last}, on the test split."
    ends = f"{range_of(difference.interval, difference.level)} {error_sources(difference)}"
    by = f"{abs(difference.value):.2f} {metric_title(metric)} x 100"
    more = "higher" if difference.value >= 0 else "lower"
    whole = f"On the test split, layer {layer} scores {by} {more} than the last layer, {last} ({ends})"
    if difference.sign:
        return f"{whole}."
    visible = f"{difference.visible:.1f} points or more"
    return f"{whole}; that is inconclusive: only differences of {visible} are detectable here."


def at_most(most: float, accepted: float, digits: int = 2) -> str:
    """Return what a loss is at most, to as many digits as tell it from what is accepted.

    Examples:
        >>> at_most(0.42, 0.5), at_most(1.04, 1.0, 1)
        ('at most 0.42', 'at most 1.04')
    """
    return f"at most {told_apart(most, accepted, digits)}"


def drop_sentence(where: str, mean: float, interval: Ends | None, level: float, *, pairs: int) -> str:
    """Return how an objective's drop differs from that of its MLM twins, of so many pairs of models."""
    significant = interval is not None and not interval[0] <= 0 <= interval[1]
    size = "larger" if mean > 0 else "smaller"
    comparison = f"a {size} drop than" if significant else "no significant difference in the drop from"
    ends = "" if interval is None else f"{range_of(interval, level)}, "
    return f"{where}: {comparison} its MLM twin: {mean:+.2f} points ({ends}{counted(pairs, 'pair')})."


# ---- which is the best -----------------------------------------------------------------------------------


def not_trained_sign(sign: str, *, loss: float, score: float, untrained: float | None) -> str:
    """Return what shows that a run did not train, see `failure_sign`.

    Examples:
        >>> not_trained_sign("loss", loss=0.693, score=50.0, untrained=50.0)
        'its train loss did not fall: 0.69 in the end'
    """
    return {
        "one output": "its outputs are one value for all items",
        "loss": f"its train loss did not fall: {loss:.2g} in the end",
        "untrained": f"it scores {score:.1f} after training, {untrained or 0:.1f} before",
    }[sign]


def not_trained_lines(signs: Mapping[tuple[int, int], str], n_runs: int, last: int) -> list[str]:
    """Return which runs did not train, by layer and seed; and that of the last layer where several did not.

    Examples:
        >>> not_trained_lines({(10, 2): "its train loss did not fall: 0.69 in the end"}, 9, 12)
        ['1 of 9 runs did not train: layer 10, seed 2 (its train loss did not fall: 0.69 in the end)']
    """
    if not signs:
        return []
    runs = listed([f"layer {layer}, seed {seed} ({why})" for (layer, seed), why in signs.items()])
    lines = [f"{len(signs)} of {counted(n_runs, 'run')} did not train: {runs}"]
    times = sum(layer == last for layer, _ in signs)
    if times > 1:
        lines.append(f"layer {last}, the full model, did not train in {times} runs: lower the learning rate")
    return lines


def floor_sentence(floor: Floor | None) -> str:
    """Return what a trivial answer scores; nothing where there is none, or it scores 0."""
    return "" if floor is None or not floor.value else f"{capitalised(floor.by)} scores {floor.value:.2f}."


def none_above_floor(floor: Floor, metric: str, best: str, score: str) -> str:
    """Return that no layer beats a trivial answer: the one that is best, and its score with the interval."""
    return f"No layer predicts better than {floor.by} ({metric_title(metric)} {floor.value:.2f}): {best} has {score}."


def score_of_best(compared: AgainstBest) -> str:
    """Return the best score with its interval."""
    return with_interval(compared.scores[compared.best], compared.intervals[compared.best], compared.level)


def best_sentence(
    compared: AgainstBest,
    names: Sequence[str],
    headline: str,
    *,
    metric: str,
    which: str = "",
    what: str = "layer",
    costs: Sequence[float] = (),
    may_be: str = "",
) -> str:
    """Return which is best and how sure that is, which smaller one will do, and the floor; or that all are on it.

    Args:
        compared: The scores.
        names: Of all of them, such as "5" or "small at layer 5".
        headline: That it is best and what it scores, without a full stop.
        metric: What is scored by.
        which: How the best is called where none is above the floor, such as "layer 5, the highest,".
        what: What one of them is.
        costs: By which one is the smallest; by default the first is.
        may_be: Those that may be the best, where that is shorter than their names one by one.
    """
    if compared.on_floor and compared.floor is not None:
        which = which or f"{_name(names[compared.best], what)}, the highest,"
        return none_above_floor(compared.floor, metric, which, score_of_best(compared))
    parts = [
        f"{headline}.",
        rivals_sentence(compared, names, what, may_be),
        smallest_sentence(compared, names, what, costs),
        floor_sentence(compared.floor),
    ]
    return " ".join(filter(None, parts))


def rivals_sentence(compared: AgainstBest, names: Sequence[str], what: str = "layer", shorter: str = "") -> str:
    """Return which may be the best, and by how much the chosen one is behind that at most; nothing of a single one."""
    best, level = compared.best, in_percent(compared.level)
    if len(names) == 1:
        return ""
    if compared.candidates == (best,):
        return f"It is the best {what} at {level} confidence."
    may_be = [names[i] for i in compared.candidates]
    ruled_out = [name for i, name in enumerate(names) if i not in compared.candidates]
    most, of_best = at_most(compared.behind[best], compared.tolerance), "the best"
    behind = f"{_name(names[best], what)} is {most} points behind"
    if not ruled_out:
        rivals = f"No {what} can be ruled out"
    elif len(ruled_out) <= FEW < len(may_be):
        rivals = f"Only {names_phrase(ruled_out, what)} can be ruled out at {level} confidence"
    elif len(may_be) > MANY and not shorter:
        rivals = f"At {level} confidence the best is one of {len(may_be)} of the {len(names)} {plural(what)}"
    else:
        rivals, of_best = f"At {level} confidence the best {what} is {shorter or listed(may_be, 'or')}", "it"
    return f"{rivals}, and {behind} {of_best}."


def smallest_sentence(
    compared: AgainstBest, names: Sequence[str], what: str = "layer", costs: Sequence[float] = ()
) -> str:
    """Return the smallest that is enough, or that none smaller is; nothing where the best is the smallest."""
    smallest, near = compared.smallest(costs), points(compared.tolerance)
    if smallest not in (None, compared.best):
        score = f"{compared.scores[smallest]:.2f}, {at_most(compared.behind[smallest], compared.tolerance)} behind"
        name = capitalised(_name(names[smallest], what)) if names[smallest].isdigit() else names[smallest]
        return f"{name} is the smallest shown to be within {near} of the best: {score}."
    if compared.best == min(range(len(names)), key=costs.__getitem__ if costs else None):
        return ""
    return f"No {'smaller' if costs else 'earlier'} {what} is shown to be within {near} of it."


def _name(name: str, what: str) -> str:
    """Return what one is called in a sentence: of a number also what it is the number of."""
    return f"{what} {name}" if name.isdigit() else name


def names_phrase(names: Sequence[str], what: str) -> str:
    """Return what some are called in a sentence."""
    if not names[0].isdigit():
        return listed(names)
    return f"{what if len(names) == 1 else plural(what)} {listed(names)}"


# ---- which layer to keep ---------------------------------------------------------------------------------


def stop_reason(stop: str, *, tolerance: float, seeds: int, several: bool = False) -> str:
    """Return why a search is over, of one model or of several."""
    reasons = {
        "settled": f"no other layer{' of any model' if several else ''} is likely to be more than {points(tolerance)} "
        "better",
        "gain": "more seeds would not improve the choice",
        "seeds": f"every layer that may be the best has all {seeds} seeds",
        "budget": "the next run would exceed the budget",
    }
    return reasons[stop]


def data_use_sentences(
    sizes: Sequence[int], fold: Sequence[int], unit: str, *, n_folds: int, epochs: int, few: int | None = None
) -> str:
    """Return what runs of a search train on, what chooses and what tests, and what more labels bring.

    The sizes are those of the task's three splits, those of a fold what a run trains on and is scored on. Without
    cross-validation there is 1 fold; it is chosen below `few` validation items, or was asked for where that is None.
    """
    (train, validation, test), items, on = sizes, plural(unit), f"Each run trains for {counted(epochs, 'epoch')} on"
    runs = f"{on} {train:,} {items} and is scored on {validation:,} validation {items}, which choose"
    if n_folds > 1:
        why = "" if few is None else f" (fewer than {few:,} {items} are for validation)"
        runs = (
            f"The layer is chosen by cross-validation{why}: the {train:,} training and {validation:,} validation "
            f"{items} are divided into {n_folds} folds. {on} all but one of them, about {fold[0]:,} {items}, and is "
            f"scored on that one, {fold[1]:,}"
        )
    return (
        f"{runs}. The {test:,} test {items} score what was chosen. With twice as many to be scored on, the error of a "
        f"run over {items} is 0.71 times as large; in a replay of 40 recorded encoders at 15 % of a sweep, 3,200 "
        "labels instead of 1,600 kept layers 0.20 instead of 0.35 points below the best."
    )


# ---- what was expected, and what was found ---------------------------------------------------------------


def layer_span(layers: Sequence[int]) -> str:
    """Return layers in words, by their ends where they are side by side.

    Examples:
        >>> layer_span([8]), layer_span([2, 3, 4]), layer_span([9, 11])
        ('layer 8', 'layers 2 to 4', 'layers 9 and 11')
    """
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}" if len(layers) > layers[-1] - layers[0] else f"layers {listed(layers)}"


# ---- predictions -----------------------------------------------------------------------------------------


# ---- smaller models --------------------------------------------------------------------------------------


def tokens_phrase(tokens: tuple[int, int]) -> str:
    """Return how many tokens of a vocabulary are kept.

    Examples:
        >>> tokens_phrase((15000, 30522))
        '15,000 of 30,522 tokens'
    """
    return f"{tokens[0]:,} of {tokens[1]:,} tokens"


def missing_sentence(missing: float, tokens: tuple[int, int]) -> str:
    """Return which share of the tokens of texts was taken out of a vocabulary of so many tokens, and what to do."""
    return (
        f"{missing:.0%} of their tokens were taken out of its vocabulary, which has {tokens_phrase(tokens)}, and are "
        "spelt with shorter ones, so embeddings are worse: keep the tokens of texts of this language and domain, or "
        "take the whole model"
    )


# ---- the weighted sum of layers --------------------------------------------------------------------------


def weighted_sum_sentence(gain: Interval | None) -> str:
    """Return whether the weighted sum of layers scores more than any single one; None where that is not shown."""
    if gain is None:
        return "The weighted sum is not shown to be better than a single layer."
    low, high = gain.interval
    return f"The weighted sum scores {gain.value:.1f} more ({low:.1f} to {high:.1f}), better than any single layer."
