"""Statistics in English: numbers and names in, sentences out.

Every result uses these, so that one thing is said in one way; a language would be a second module like this. All of
them, with examples of every case, stand in `tests/stats/sentences.txt`.
"""

from collections.abc import Iterable, Sequence

from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, in_percent, listed, plural, told_apart
from layerprobe.stats.values import AgainstBest, CrossedInterval, Floor

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


def either(layers: Sequence[int]) -> str:
    """Return that it is one of some layers: each of them by name, or of many that are side by side the ends.

    Examples:
        >>> either([4, 5, 6]), either([4, 5, 6, 7]), either([1, 3, 4, 5]), either([0, 1, 2, 3, 6])
        ('4, 5 or 6', 'one of 4 to 7', '1, 3, 4 or 5', 'one of 0 to 3 and 6')
    """
    names = spans(layers)
    return listed(names, "or") if len(names) == len(layers) else f"one of {listed(names)}"


def layers_of_models(labels: Sequence[str], places: Sequence[tuple[int, int]]) -> str:
    """Return some layers of some models, each given by the number of its model and the layer.

    Examples:
        >>> layers_of_models(["rtd", "mlm"], [(0, 3), (1, 4), (1, 5), (1, 6), (1, 7)])
        'rtd at layer 3, or mlm at one of layers 4 to 7'
    """
    texts = []
    for number, label in enumerate(labels):
        if layers := [layer for model, layer in places if model == number]:
            named = either(layers)
            named = named.replace("one of", "one of layers") if " to " in named else f"layer {named}"
            texts.append(f"{label} at {named}")
    return ", or ".join(texts)


def capitalised(sentence: str) -> str:
    """Return a text that begins with a capital, the rest as it is."""
    return sentence[:1].upper() + sentence[1:]


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


def drawn_anew(error: CrossedInterval) -> str:
    """Return what an interval allows to vary: items, seeds or both."""
    if error.n_items is None:
        return "over new seeds only, as outputs by item were not kept"
    if error.seeds_error is None:
        return f"over new {plural(error.unit)} only, as there is one seed"
    return f"over new {plural(error.unit)} and new seeds"


def drawn_anew_in_all(errors: Iterable[CrossedInterval]) -> str:
    """Return what several intervals are over: those of one seed are over items only."""
    return ", or ".join(sorted(dict.fromkeys(map(drawn_anew, errors)), key=lambda over: " only" in over))


def error_sources(error: CrossedInterval) -> str:
    """Return what an interval is over and where most of its error comes from."""
    over = drawn_anew(error)
    if error.items_error is None or error.seeds_error is None or not error.standard_error:
        return over
    items, seeds = f"the {error.n_items:,} {plural(error.unit)}", f"the {error.n_seeds} seeds"
    share = error.items_error**2 / error.standard_error**2
    if CLOSE < share < 1 - CLOSE:
        return f"{over}, about as much of the error from {items} as from {seeds}"
    return f"{over}, most of the error from {items if share > CLOSE else seeds}"


def gain_in_brackets(gain: CrossedInterval | None, over: str = "") -> str:
    """Return the interval of a gain and whether it is one, as the end of a sentence."""
    if gain is None:
        return "(no interval): whether that is a gain is not known."
    verdict = {1: "a gain", -1: "a loss", 0: "no significant gain"}[gain.sign]
    return f"({range_of(gain.interval, gain.level)} {over or drawn_anew(gain)}): {verdict}."


def detectable(error: CrossedInterval) -> str:
    """Return which differences a study like this detects: that none was shown is no statement that there is none."""
    return f"only differences of {error.visible:.1f} points or more are detectable here"


def against_last(layer: int, last: int, difference: CrossedInterval, metric: str) -> str:
    """Return how a layer's test score compares with that of the last one, of which it is the score less."""
    ends = f"{range_of(difference.interval, difference.level)} {error_sources(difference)}"
    by = f"{abs(difference.value):.2f} {metric_title(metric)} x 100"
    more = "higher" if difference.value >= 0 else "lower"
    whole = f"On the test split, layer {layer} scores {by} {more} than the last layer, {last} ({ends})"
    return f"{whole}." if difference.sign else f"{whole}; that is inconclusive: {detectable(difference)}."


def from_full_model(difference: CrossedInterval) -> str:
    """Return how a truncated model compares with the full one, of which it is the score less."""
    level, (low, high), value = in_percent(difference.level), difference.interval, difference.value
    if not difference.sign:
        bounds = f"{level} interval {low:+.1f} to {high:+.1f}"
        return f"no significant difference from the full model ({value:+.1f} points, {bounds})"
    near, far = (told_apart(end, 0, 1) for end in sorted((abs(low), abs(high))))
    side = "above" if difference.sign > 0 else "below"
    return f"{abs(value):.1f} points {side} the full model ({level} interval {near} to {far})"


def loss_phrase(loss: float, most: float | None, margin: float, metric: str) -> str:
    """Return how large a loss is and what it is at most, to as many digits as tell them from the margin.

    Examples:
        >>> loss_phrase(0.54, 1.04, 1.0, "spearman")
        '0.5 points of Spearman below the full model (95% at most 1.04)'
    """
    where = "below" if loss >= 0 else "above"
    whole = f"{told_apart(abs(loss), margin, 1)} points of {metric_title(metric)} {where} the full model"
    if most is None:
        return whole
    bound = f"at most {told_apart(most, margin, 1)}" if most > 0 or loss >= 0 else f"at least {-most:.1f}"
    return f"{whole} (95% {bound}{'' if loss >= 0 else ' below' if most > 0 else ' above'})"


def would_settle(items: int, unit: str, *, seeds: bool) -> str:
    """Return how many items would settle what is open, and whether it takes more seeds; nothing where nothing would.

    Examples:
        >>> would_settle(2743, "pair", seeds=False), would_settle(0, "pair", seeds=True)
        ('about 2,700 test pairs would settle it', 'more seeds would settle it')
    """
    needed = [f"about {float(f'{items:.2g}'):,.0f} test {plural(unit)}"] * bool(items) + ["more seeds"] * seeds
    return f"{' and '.join(needed)} would settle it" if needed else ""


def drop_sentence(where: str, mean: float, interval: Ends | None, level: float, *, pairs: int) -> str:
    """Return how an objective's drop differs from that of its MLM twins, of so many pairs of models."""
    significant = interval is not None and not interval[0] <= 0 <= interval[1]
    size = "larger" if mean > 0 else "smaller"
    comparison = f"a {size} drop than" if significant else "no significant difference in the drop from"
    ends = "" if interval is None else f"{range_of(interval, level)}, "
    return f"{where}: {comparison} its MLM twin: {mean:+.2f} points ({ends}{counted(pairs, 'pair')})."


# ---- which is the best -----------------------------------------------------------------------------------


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


def across_sentence(
    *,
    best: int,
    last: int,
    n_tasks: int,
    mean: float,
    behind: float,
    interval: Ends | None,
    level: float,
    rivals: Sequence[int],
) -> str:
    """Return which layer is best over several tasks, how far the last one is behind, and which may be as good."""
    headline = f"Layer {best} of {last} scores best over {counted(n_tasks, 'task')}, {mean:.1f} in the mean"
    if best != last:
        bounds = "" if interval is None else f" ({in_percent(level)} {interval[0]:.1f} to {interval[1]:.1f})"
        headline += f"; the last layer scores {behind:.1f} less{bounds}"
    if n_tasks == 1:
        return f"{headline}; one task says nothing about others."
    if not rivals:
        return f"{headline}. On other tasks like these, no other may be as good."
    return f"{headline}. On other tasks like these, {_names(list(map(str, rivals)), 'layer')} may be as good."


def rivals_sentence(compared: AgainstBest, names: Sequence[str], what: str = "layer", shorter: str = "") -> str:
    """Return which may be the best, and by how much the chosen one is behind that at most; nothing of a single one."""
    best, level = compared.best, in_percent(compared.level)
    if len(names) == 1:
        return ""
    if compared.candidates == (best,):
        return f"It is the best {what} at {level} confidence."
    may_be = [names[i] for i in compared.candidates]
    ruled_out = [name for i, name in enumerate(names) if i not in compared.candidates]
    behind, of_best = f"{_name(names[best], what)} is at most {compared.behind[best]:.2f} points behind", "the best"
    if not ruled_out:
        rivals = f"No {what} can be ruled out"
    elif len(ruled_out) <= FEW < len(may_be):
        rivals = f"Only {_names(ruled_out, what)} can be ruled out at {level} confidence"
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
        score = f"{compared.scores[smallest]:.2f}, at most {compared.behind[smallest]:.2f} behind"
        name = capitalised(_name(names[smallest], what)) if names[smallest].isdigit() else names[smallest]
        return f"{name} is the smallest shown to be within {near} of the best: {score}."
    if compared.best == min(range(len(names)), key=costs.__getitem__ if costs else None):
        return ""
    return f"No {'smaller' if costs else 'earlier'} {what} is shown to be within {near} of it."


def _name(name: str, what: str) -> str:
    """Return what one is called in a sentence: of a number also what it is the number of."""
    return f"{what} {name}" if name.isdigit() else name


def _names(names: Sequence[str], what: str) -> str:
    """Return what some are called in a sentence."""
    if not names[0].isdigit():
        return listed(names)
    return f"{what if len(names) == 1 else plural(what)} {listed(names)}"


# ---- which layer to keep ---------------------------------------------------------------------------------


def keep_phrase(layer: int, n_blocks: int) -> str:
    """Return that a layer is to be kept, the start of a sentence.

    Examples:
        >>> keep_phrase(5, 8), keep_phrase(8, 8)
        ('Keep layer 5 of 8', 'Keep all 8 layers')
    """
    return f"Keep all {n_blocks} layers" if layer == n_blocks else f"Keep layer {layer} of {n_blocks}"


def spoilt_sentence(n: int) -> str:
    """Return that nothing is claimed where so many examples stand in two splits."""
    examples = "1 example that stands" if n == 1 else f"{n:,} examples that stand"
    return (
        f"Scores are spoilt by {examples} in two splits, so nothing is claimed: leave such examples out, without "
        "--keep-overlaps (keep_overlaps=True)."
    )
