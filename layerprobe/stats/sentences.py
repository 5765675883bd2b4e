"""Statistics in English: numbers and names in, sentences out.

Every result uses these, so that one thing is said in one way; a language would be a second module like this. All of
them, with examples of every case, stand in `tests/stats/sentences.txt`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from layerprobe.context import duration
from layerprobe.errors import option
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, in_percent, listed, plural, told_apart
from layerprobe.results.numbers import capitalised
from layerprobe.stats.values import AgainstBest, Floor, MarginVerdict, Verdict

Ends = tuple[float, float]

MANY = 8
"""More names than these are counted in a sentence."""
FEW = 2
"""Of so many that are ruled out, these are named, and not those that are left."""
LOOK_FIRST = "Where to look first"
"""How the sentence of a drop begins, which the heading of its page repeats."""
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


def from_full_model(difference: Interval) -> str:
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
    bound = at_most(most, margin, 1) if most > 0 or loss >= 0 else f"at least {-most:.1f}"
    return f"{whole} (95% {bound}{'' if loss >= 0 else ' below' if most > 0 else ' above'})"


def at_most(most: float, accepted: float, digits: int = 2) -> str:
    """Return what a loss is at most, to as many digits as tell it from what is accepted.

    Examples:
        >>> at_most(0.42, 0.5), at_most(1.04, 1.0, 1)
        ('at most 0.42', 'at most 1.04')
    """
    return f"at most {told_apart(most, accepted, digits)}"


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


def untrained_sentence(layer: int, scores: Mapping[int, float], tuned: float | None) -> str:
    """Return what the layer to keep, the last and the best layer score on test, x 100, without fine-tuning.

    `tuned` is what the layer to keep scores with it.

    Examples:
        >>> untrained_sentence(2, {1: 58.7, 2: 60.0, 3: 61.5}, 63.4)
        'Without fine-tuning, on test: layer 2 60.0, layer 3 61.5, the highest.'
    """
    best = max(scores, key=scores.__getitem__)
    layers = [number for number in dict.fromkeys((layer, max(scores), best)) if number in scores]
    parts = [f"layer {number} {scores[number]:.1f}{', the highest' * (number == best)}" for number in layers]
    needless = tuned is not None and scores[best] >= tuned
    more = "; fine-tuning may not be needed" if needless else ""
    return f"Without fine-tuning, on test: {', '.join(parts)}{more}."


def final_sentence(layer: int, n_train: int, epochs: int, score: float, metric: str) -> str:
    """Return what the final model has learnt from and what it scores.

    Examples:
        >>> final_sentence(3, 542, 4, 71.3, "spearman")  # doctest: +ELLIPSIS
        'Final model: layer 3, fine-tuned on all 542 training and validation examples for 4 epochs, ... on test).'
    """
    return (
        f"Final model: layer {layer}, fine-tuned on all {n_train:,} training and validation examples for "
        f"{counted(epochs, 'epoch')}, as many as validation chose: {score:.1f} ({metric_title(metric)} x 100 on test)."
    )


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
    best: str, mean: float, others: Sequence[tuple[str, float, Ends | None]], *, n_tasks: int, level: float, rivals: str
) -> str:
    """Return which layer is best over several tasks, and which may be as good.

    It is compared with others, each given by name with how far it is behind, and the interval of that at the level. The
    rivals, which may be as good, are a phrase, empty where there are none.
    """
    parts = [f"{best} scores best over {counted(n_tasks, 'task')}, {mean:.1f} in the mean"]
    for name, behind, interval in others:
        bounds = "" if interval is None else f" ({in_percent(level)} {interval[0]:.1f} to {interval[1]:.1f})"
        parts.append(f"{name} scores {behind:.1f} less{bounds}")
    headline = "; ".join(parts)
    if n_tasks == 1:
        return f"{headline}; one task says nothing about others."
    return f"{headline}. On other tasks like these, {rivals or 'no other'} may be as good."


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


def spoilt_sentence(n: int) -> str:
    """Return that nothing is claimed where so many examples stand in two splits."""
    examples = "1 example that stands" if n == 1 else f"{n:,} examples that stand"
    return (
        f"Scores are spoilt by {examples} in two splits, so nothing is claimed: leave such examples out, without "
        f"{option('keep_overlaps', True)}."
    )


def kept_phrase(layer: int, n_blocks: int, verdict: Verdict, *, chance_best: float, tolerance: float) -> str:
    """Return which layer a search says to keep, worded by what is known of it: the start of a sentence."""
    if verdict == "undecided":
        guess = f"All {n_blocks} layers are" if layer == n_blocks else f"Layer {layer} of {n_blocks} is"
        return f"{guess} the best guess, with a chance of {percents(chance_best)}"
    keep = f"Keep all {n_blocks} layers" if layer == n_blocks else f"Keep layer {layer} of {n_blocks}"
    return f"{keep}, within {points(tolerance)} of the best" if verdict == "within the tolerance" else keep


def expected_phrase(mean: float, interval: Ends | None, level: float, *, unit: str = "") -> str:
    """Return what a layer is expected to score, in a unit; without an interval where nothing is claimed."""
    if interval is None:
        return f"{mean:.1f}{unit and f' ({unit})'}"
    return f"{mean:.1f} ({unit and f'{unit}, '}{in_percent(level)} interval {interval[0]:.1f} to {interval[1]:.1f})"


def unit_sentence(unit: float, *, higher_is_better: bool) -> str:
    """Return what a point is where it is not a hundredth, and that lower scores are better where they are.

    Examples:
        >>> unit_sentence(0.1, higher_is_better=False), unit_sentence(0.01, higher_is_better=True)
        ('Lower scores are better. A point is a score of 0.1.', '')
    """
    lower = "" if higher_is_better else "Lower scores are better. "
    return lower.strip() if unit == 0.01 else f"{lower}A point is a score of {unit:g}."


def expected_note(scores: str, tolerance: float) -> str:
    """Return what the columns of a search are, of which the scores are so and so."""
    return (
        f"{scores}. expected: predicted score after fine-tuning at that layer, for new data and seeds. chance best: "
        f"chance of being the best layer. within {tolerance:g}: chance of being at most {points(tolerance)} behind the "
        "best."
    )


def sureness_sentence(
    candidates: Sequence[int],
    layers: Sequence[int],
    *,
    chance_best: float,
    level: float,
    bare: Sequence[int] = (),
    failed: Sequence[int] = (),
) -> str:
    """Return which of some layers may be the best, or with what chance the one to keep is.

    No layer without a run is called ruled out: where one is not among the candidates, these are named. `bare` layers
    have no run, those of `failed` layers gave no score.
    """
    left_out = [layer for layer in layers if layer not in candidates]
    were = "layer {} was" if len(bare) == 1 else "layers {} were"
    end = f"; {were.format(listed(spans(bare)))} not run, but inferred from the others" if bare else ""
    if len(bare) == len(layers):
        end = "; no layer was run by itself yet"
    else:
        end += "".join(f"; the run of layer {i} failed, and its score is inferred from the others" for i in failed)
    ruled_out = [layer for layer in left_out if layer not in (*bare, *failed)]
    if len(candidates) == 1:
        return f"There is {chance(chance_best)} that it is the best layer{end}."
    if not left_out:
        return f"There is {chance(chance_best)} that it is the best layer; no other layer can be ruled out{end}."
    if len(left_out) == len(ruled_out) <= FEW < len(candidates):
        return (
            f"Only {names_phrase(list(map(str, ruled_out)), 'layer')} can be ruled out ({in_percent(level)} sure){end}."
        )
    return f"{in_percent(level)} sure that the best layer is {either(candidates)}{end}."


def sufficient_sentence(
    best: int,
    smallest: int | None,
    *,
    chance_within: float,
    behind: float | None,
    tolerance: float,
    level: float,
    inferred: bool = False,
    gains: str = "",
) -> str:
    """Return the smallest layer that will do, and what it saves; nothing of layer 0, which none is below.

    Where none is known to do, how far the best one may be behind. `inferred`: a layer had no run, so that this holds
    if scores change as in other encoders.
    """
    near, sure = points(tolerance), f"{in_percent(level)} sure"
    if smallest == best:
        return f"No smaller layer is {sure} to be within {near} of it." if best else ""
    if smallest is not None:
        return f"The smallest layer within {near} of the best ({sure}) is {smallest}{gains and f': {gains}'}."
    most = _behind("it", behind, tolerance, inferred)
    sure = f" ({sure})" if most else ""
    return f"There is {chance(chance_within)} that layer {best} is within {near} of the best{most}{sure}."


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


def spent_sentence(
    share: float,
    *,
    seeds: int,
    why: str,
    over: bool = True,
    proof: float = 0.0,
    seconds: float = 0.0,
    runs: Mapping[str, int] | None = None,
) -> str:
    """Return what share of a full sweep a search spent, and why no more, or what comes next where it is not over.

    `proof` is the share of that for a comparison with the last layer, `seconds` are of training, and `runs` how many
    each of several models has. No reason is given where scores are spoilt.
    """
    sweeps = "the full sweeps of all models" if runs else "a full sweep"
    spent = f"{share:.1%} of {sweeps} (every layer with {counted(seeds, 'seed')})"
    if proof:
        spent += f", {part(proof)} of it to compare with the last layer"
    if seconds:
        spent += f", {duration(seconds)} of training"
    if not over:
        return f"Cost so far: {spent}; next run: {why}."
    made = f" Runs: {listed([f'{n} {label}' for label, n in runs.items()])}." if runs else ""
    return f"Cost: {spent}.{made}{why and f' The search stopped because {why}.'}"


def doubt_sentence(
    layers: Sequence[int],
    difference: float,
    *,
    items: float,
    seeds: float,
    tolerance: float,
    unit: str,
    items_needed: int | None,
    more_seeds: bool,
) -> str:
    """Return how far two layers with runs are known to differ, and, where that is unclear, what would settle it.

    The difference is that of their expected scores in points; `items` and `seeds` are half-widths of its interval over
    either, 0 where that of items is not known. `items_needed`: how many would do, None where that is not known;
    `more_seeds`: whether they could help.
    """
    errors = [f"±{items:.1f} over {plural(unit)}"] * (items > 0) + [f"±{seeds:.1f} over seeds"]
    sentence = f"Layers {listed(layers)} differ by {abs(difference):.1f} points, {' and '.join(errors)}"
    unclear = abs(difference) <= tolerance + math.hypot(items, seeds)
    needs = []
    if unclear and items > tolerance:
        number = "more" if items_needed is None else f"about {int(float(f'{items_needed:.1e}')):,}"
        needs.append(f"{number} {plural(unit)}")
    if unclear and more_seeds and seeds > tolerance:
        needs.append("more seeds at these layers")
    return f"{sentence}. Resolving {points(tolerance)} would need {' and '.join(needs)}." if needs else f"{sentence}."


def smallest_of_models_sentence(
    smallest: str, *, behind: float | None, tolerance: float, level: float, inferred: bool = False
) -> str:
    """Return the smallest of all layers of all models that will do, by its name and size.

    Without one how far the layer to keep may be behind, where that is known. `inferred`: some layers had no run.
    """
    near, sure = points(tolerance), f"{in_percent(level)} sure"
    if smallest:
        return f"The smallest that is within {near} of the best, {sure}: {smallest}."
    most = _behind("the one to keep", behind, tolerance, inferred)
    return f"No layer is {sure} to be within {near} of the best{most}."


def _behind(layer: str, behind: float | None, tolerance: float, inferred: bool) -> str:
    """Return how far a layer may be behind, the end of a sentence; nothing where that is not known."""
    condition = "if scores change as in other encoders, " if inferred else ""
    return "" if behind is None else f"; {condition}{layer} is {at_most(behind, tolerance)} points behind"


def best_of_models_sentence(
    layers: str, *, level: float, candidates: int, bare: int, failed: int, chances: Mapping[str, float]
) -> str:
    """Return which layers of which models may be the best, and the chance of each model to have it.

    The candidates are given in words, see `layers_of_models`, and by their number; of them, `bare` had no run, and
    `failed` only runs that failed.
    """
    ways = ((bare, "not run"), (failed, "with failed runs only"))
    unseen = " and ".join(f"{n} of these {candidates} {how}" for n, how in ways if n)
    unseen = unseen and f" ({unseen}, but inferred from the others)"
    shares = listed([f"{percents(share)} {label}" for label, share in chances.items()])
    return (
        f"{in_percent(level)} sure that the best is {layers}{unseen}. The chance that a model has the best layer: "
        f"{shares}."
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


def found_drop_sentence(
    dropped: Sequence[int],
    bare: Sequence[int],
    *,
    chance_of_drop: float,
    tolerance: float,
    level: float,
    last_run: bool = True,
) -> str:
    """Return whether the last layers are worse than the best one by more than the tolerance, as found on validation.

    `dropped` are the layers that are, `bare` those from the first of them on that had no run; the chance is that of the
    last layer, which had a run with `last_run`.
    """
    far, sure = points(tolerance), f"{in_percent(level)} sure"
    if dropped:
        they_are = "it is" if len(dropped) == 1 else "they are"
        rest = f"; {layer_span(bare)} had no run" if bare else ""
        below = f"{they_are} more than {far} below the best{rest}"
        return f"On validation, scores drop at {layer_span(dropped)}: {sure} that {below}."
    if chance_of_drop <= 1 - level and last_run:
        return f"On validation, scores do not drop: {sure} that the last layer is within {far} of the best."
    number = percents(chance_of_drop)
    if 0.01 <= chance_of_drop <= 0.99:
        nearest = 100 * level if chance_of_drop > 0.5 else 100 - 100 * level
        number = f"{told_apart(100 * chance_of_drop, nearest, 0)}%"
    if not last_run:
        number = f"{percents(chance_of_drop)}, as inferred from the others"
    probably = f"the last layers probably hurt, which is not shown at {in_percent(level)} over all layers compared"
    hurt = probably if chance_of_drop >= level else "it is unclear whether the last layers hurt"
    hurt = hurt if last_run else "whether the last layers hurt was not tested, as the last one had no run"
    return f"On validation, {hurt}: the chance that the last one is more than {far} below the best is {number}."


def agreement_sentence(
    expected: int,
    flagged: Sequence[int],
    *,
    best: int,
    runs: Collection[int],
    may_be: bool,
    behind: float,
    dropped: Sequence[int],
    no_drop: bool,
) -> str:
    """Return what was predicted before training, and where training agrees with it.

    The expected layer, and those flagged with it, are compared with the best one, which it may be, or is points behind;
    and with the layers that were found to drop, of which the last one surely is none with `no_drop`. `runs` are the
    layers that were fine-tuned.
    """
    what = f" first, {layer_span(flagged)} flagged" if flagged else ", and no drop"
    tested, expected_run = [layer for layer in flagged if layer in runs], {expected, best} <= {*runs}
    as_expected = tuple(tested) == tuple(dropped)
    agreed = (may_be, as_expected and (bool(dropped) if flagged else no_drop))
    against = "disagrees" if expected_run else "does not confirm it"
    verdict = "agrees" if all(agreed) else "agrees in part" if any(agreed) else against
    layer = f"layer {expected} is {behind:.1f} points below layer {best}"
    if expected == best:
        layer = f"layer {expected} is the one to keep"
    elif may_be:
        layer = f"layer {expected} may be the best, as layer {best} may"
    elif not expected_run:
        layer = f"layers {expected} and {best} were not both run"
    drop = "no drop was found" if no_drop else "it is unclear whether the last layer drops"
    if dropped:
        only = " only" if set(dropped) < set(tested) else ""
        drop = "the drop is as expected" if as_expected else f"a drop was found at {layer_span(dropped)}{only}"
    return f"Predicted before training: layer {expected}{what}. Training {verdict}: {layer}, and {drop}."


# ---- predictions -----------------------------------------------------------------------------------------


def no_drop_sentence(model: str, last: int, grounds: str = "") -> str:
    """Return that the last layer is recommended, and why."""
    keep = f"layer {last}, the last one, is recommended; confirm it by fine-tuning."
    return f"No drop of {model} is expected{grounds and f' ({grounds})'}; {keep}"


def look_first_sentence(model: str, grounds: str, flagged: range, *, collapsed: range = range(0)) -> str:
    """Return where to look first, why, and that a flag is no more than that; the last flagged ones may be collapsed."""
    parts, fallen = [f"{LOOK_FIRST}: layer {flagged[0] - 1} of {model}."], flagged[: len(flagged) - len(collapsed)]
    if fallen:
        are, they = ("is", "it scores") if len(fallen) == 1 else ("are", "they score")
        doubt = f"whether {they} lower after fine-tuning, only fine-tuning can say."
        parts += [grounds and f"{capitalised(grounds)}.", f"{capitalised(layer_span(fallen))} {are} flagged; {doubt}"]
    if collapsed:
        give, are = ("gives", "is") if len(collapsed) == 1 else ("give", "are")
        also = ", too" if fallen else ""
        parts.append(f"{capitalised(layer_span(collapsed))} {give} all texts one embedding and {are} flagged{also}.")
    if not fallen:
        parts.append(f"Of the layers before, no drop is expected{grounds and f' ({grounds})'}.")
    return " ".join(filter(None, parts))


def plateau_sentence(
    measure: str,
    *,
    model: str,
    reference: str,
    plateau: float,
    plateau_layers: Sequence[int],
    last_value: float,
    decline: float,
    decline_interval: Ends | None,
    threshold: float,
    onset: int,
    last: int,
    n_blocks: int,
) -> str:
    """Return what the decline of a similarity says; an onset behind the last layer is no drop.

    Layers behind `last` are flagged without a similarity.
    """
    if onset > last == n_blocks:
        return (
            f"No drop is expected: {measure} of {model} with {reference} falls no more in the final layers than it "
            f"varies before them ({last_value:.2f} at layer {last}); layer {last}, the last one, is recommended; "
            "confirm it by fine-tuning."
        )
    by = ""
    if decline_interval is not None:
        by = f"by {decline:.2f} [{decline_interval[0]:.2f}, {decline_interval[1]:.2f}], "
    falls = (
        f"{measure} with {reference} falls from {plateau:.2f} ({layer_span(plateau_layers)}) to {last_value:.2f} at "
        f"layer {last}, {by}where {threshold:.2f} counts as a fall"
    )
    if onset > last:
        falls = f"{last_value:.2f} at layer {last}"
    return look_first_sentence(model, falls, range(onset, n_blocks + 1), collapsed=range(last + 1, n_blocks + 1))


def highest_and_last(
    curves: Mapping[str, Sequence[float]], *, layers: range, units: Mapping[str, str] | None = None
) -> str:
    """Return where each of some curves is highest, of some layers, and where it ends.

    Examples:
        >>> curves = {"InfoNCE": (1.0, 2.0, 1.5), "LiDAR": (3.0, 4.0, 5.0)}
        >>> highest_and_last(curves, layers=range(3), units={"InfoNCE": "nats"})
        'InfoNCE falls by 0.5 nats, from 2 at layer 1 to 1.5 at layer 2; LiDAR is highest at the last layer, 2, 5'
    """
    phrases = []
    for name, values in curves.items():
        highest, last = max(layers, key=values.__getitem__), layers[-1]
        if values[highest] == values[last]:
            end = f"the last layer, {last}" if last == len(values) - 1 else f"layer {last}"
            phrases.append(f"{name} is highest at {end}, {values[last]:.4g}")
            continue
        fall = f"{values[highest] - values[last]:.4g} {(units or {}).get(name, '')}".strip()
        ends = f"from {values[highest]:.4g} at layer {highest} to {values[last]:.4g} at layer {last}"
        phrases.append(f"{name} falls by {fall}, {ends}")
    return "; ".join(phrases)


def record_sentence(
    budget: str,
    regrets: Sequence[float],
    last_regrets: Sequence[float],
    *,
    dropping: tuple[int, int],
    others: tuple[int, int],
    none_drop: tuple[int, int],
) -> str:
    """Return what a rule is worth: how good its layer is, and whether its flag says anything.

    Regrets are points below the best of its layer, and of the last one, by sort of encoder of which some drop; then
    how many it flags of so many of these that drop, of these that do not, and of sorts of which none drops.
    """

    def span(numbers: Sequence[float]) -> str:
        return " to ".join(dict.fromkeys((f"{min(numbers):.1f}", f"{max(numbers):.1f}")))

    clauses = []
    if regrets:
        n_models = dropping[1] + others[1]
        idle = ": a flag alone says nothing" * (dropping[0] + others[0] == n_models)
        clauses = [
            f"on {n_models} encoders the layer was {span(regrets)} points below the best and the last one "
            f"{span(last_regrets)}",
            f"it flags {dropping[0]} of {dropping[1]} that drop and {others[0]} of {others[1]} that do not{idle}",
        ]
    if none_drop[1]:
        other = "other " * bool(regrets)
        clauses.append(f"it flags {none_drop[0] or 'none'} of {none_drop[1]} {other}encoders that do not drop")
    return f"Its record (DropBench, {budget} fine-tuning): {'; '.join(clauses)}."


def texts_sentence(n: int | None, available: int, same: float | None) -> str:
    """Return how many texts were read, and in what share of resamples they say the same, as far as that is known."""
    read = "" if n is None else f"Read {f'{n:,} of' if n < available else 'all'} {available:,} texts."
    if same is None:
        return read
    share = "over 99%" if same >= 0.995 else f"{same:.0%}" if same >= 0.005 else "under 1%"
    return (
        f"{read} Resampled, the texts give the same layer {share} of the time: the same for other texts like these, "
        "which does not make it right."
    ).strip()


# ---- smaller models --------------------------------------------------------------------------------------


def blocks_phrase(
    blocks: Sequence[int],
    n_blocks: int,
    *,
    fewer: float,
    faster: str = "",
    tokens: tuple[int, int] | None = None,
    dimensions: tuple[int, int] | None = None,
) -> str:
    """Return which blocks of a model are kept, of how many tokens and dimensions, and what that saves."""
    which = f"{len(blocks)} of {n_blocks} blocks ({', '.join(map(str, blocks))})"
    parts = [which if len(blocks) < n_blocks else f"all {n_blocks} blocks"]
    parts += [] if tokens is None else [tokens_phrase(tokens)]
    parts += [] if dimensions is None else [f"{dimensions[0]} of {dimensions[1]} dimensions"]
    parts += [f"{fewer:.0%} fewer parameters", *([faster] if faster else [])]
    return ", ".join(parts)


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


def agreement_phrase(alike: float, shared: float) -> str:
    """Return how far embeddings agree with the full model's, of 100, and the share of common neighbours."""
    return (
        f"its similarities of held-out texts agree with the whole model's by {alike:.1f} of 100, and it shares "
        f"{shared:.0f}% of their ten nearest neighbours"
    )


def margin_heading(what: str, verdict: MarginVerdict, most: float, margin: float) -> str:
    """Return what something loses at most, or at least, the start of a sentence."""
    lose = {"within": "lose at most", "not shown": "may lose up to", "worse": "lose more than"}[verdict]
    end = margin if verdict == "worse" else float(told_apart(most, margin, 1))
    return f"{what} {lose} {points(end)}"


def margin_sentence(
    about: str, verdict: MarginVerdict, margin: float, needed: str = "", *, left_out: str = "blocks"
) -> str:
    """Return whether a loss is within the margin that was allowed, and what would settle it."""
    advice = f"keep more {left_out}, or train on more texts"
    if verdict == "within":
        return f"{about}: within the {margin:g} that you allowed."
    if verdict == "worse":
        return f"{about}: more than the {margin:g} that you allowed; {advice}."
    return f"{about}. We cannot yet rule out a loss of more than {points(margin)}: {needed or advice}."


# ---- the weighted sum of layers --------------------------------------------------------------------------


def weighted_sum_sentence(gain: Interval | None) -> str:
    """Return whether the weighted sum of layers scores more than any single one; None where that is not shown."""
    if gain is None:
        return "The weighted sum is not shown to be better than a single layer."
    low, high = gain.interval
    return f"The weighted sum scores {gain.value:.1f} more ({low:.1f} to {high:.1f}), better than any single layer."
