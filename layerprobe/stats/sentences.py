"""Statistics in English: numbers and names in, sentences out.

Every result uses these, so that one thing is said in one way; a language would be a second module like this. All of
them, with examples of every case, stand in `tests/stats/sentences.txt`.
"""

from collections.abc import Iterable, Mapping, Sequence

from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, in_percent, listed, plural, told_apart

Ends = tuple[float, float]

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
