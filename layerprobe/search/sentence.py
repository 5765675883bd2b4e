"""A search in plain words. Knows the answer, not how it was computed."""

from collections.abc import Sequence

from scipy.special import ndtri

from layerprobe.names import counted, in_percent, listed, plural
from layerprobe.progress import duration
from layerprobe.search.values import SearchAnswer, SearchSettings, StopReason


def stop_reason(stop: StopReason, settings: SearchSettings, *, several: bool = False) -> str:
    """Return why a search is over, of one model or of several."""
    of_any = " of any model" if several else ""
    reasons: dict[StopReason, str] = {
        "settled": f"no other layer{of_any} is likely to be more than {points(settings.tolerance)} better",
        "gain": "more seeds would not improve the choice",
        "seeds": f"every layer that may be the best has all {settings.seeds} seeds",
        "budget": "the next run would exceed the budget",
    }
    return reasons[stop]


def search_sentence(answer: SearchAnswer) -> str:
    """Return which layer to keep, how sure that is, the smallest that will do, the cost, and what is uncertain."""
    if answer.spoilt:
        kept = f"{kept_phrase(answer)}: {expected_phrase(answer)}."
        return f"{kept} {spoilt_sentence(answer.spoilt)} {spent_sentence(answer)}"
    parts = (
        *(f"{kept_phrase(answer)}: {expected_phrase(answer)}.", sureness_sentence(answer), sufficient_sentence(answer)),
        *(spent_sentence(answer), doubt_sentence(answer)),
    )
    return " ".join(filter(None, parts))


def kept_phrase(answer: SearchAnswer) -> str:
    """Return which layer to keep, worded by what is known of it: the start of a sentence."""
    best, n_blocks = answer.best_layer, len(answer.layers) - 1
    if answer.spoilt:
        return f"Layer {best} of {n_blocks} scores highest"
    if answer.verdict == "undecided":
        guess = f"All {n_blocks} layers are" if best == n_blocks else f"Layer {best} of {n_blocks} is"
        return f"{guess} the best guess, with a chance of {percents(answer.chance)}"
    near = f", within {points(answer.settings.tolerance)} of the best" * (answer.verdict == "within the tolerance")
    return f"{keep_phrase(best, n_blocks)}{near}"


def keep_phrase(layer: int, n_blocks: int) -> str:
    """Return that a layer is to be kept, the start of a sentence.

    Examples:
        >>> keep_phrase(5, 8), keep_phrase(8, 8)
        ('Keep layer 5 of 8', 'Keep all 8 layers')
    """
    return f"Keep all {n_blocks} layers" if layer == n_blocks else f"Keep layer {layer} of {n_blocks}"


def expected_phrase(answer: SearchAnswer, *, unit: str = "") -> str:
    """Return what the layer to keep is expected to score, in a unit."""
    best = answer.layers[answer.best_layer]
    level, (low, high) = in_percent(answer.settings.level), best.interval
    if answer.spoilt:
        return f"{best.mean:.1f}{unit and f' ({unit})'}"
    return f"{best.mean:.1f} ({unit and f'{unit}, '}{level} interval {low:.1f} to {high:.1f})"


def sureness_sentence(answer: SearchAnswer) -> str:
    """Return which layers may be the best, or with what chance the one to keep is."""
    chance, level = percents(answer.chance), in_percent(answer.settings.level)
    if len(answer.candidates) == 1:
        return f"The chance that it is the best layer is {chance}."
    if len(answer.candidates) == len(answer.layers) - answer.first_layer:
        return f"The chance that it is the best layer is {chance}; no other layer can be ruled out."
    return f"{level} sure that the best layer is {either(answer.candidates)}{without_runs(answer, answer.candidates)}."


def spoilt_sentence(n: int) -> str:
    """Return that nothing is claimed where so many examples stand in two splits."""
    examples = "1 example that stands" if n == 1 else f"{n:,} examples that stand"
    return (
        f"Scores are spoilt by {examples} in two splits, so nothing is claimed: leave such examples out, without "
        "--keep-overlaps (keep_overlaps=True)."
    )


def without_runs(answer: SearchAnswer, layers: Sequence[int]) -> str:
    """Return which of some layers had no run, or none with a score, the end of a sentence; empty where all had one."""
    bare = [layer for layer in layers if not answer.layers[layer].runs]
    failed = [layer for layer in bare if answer.layers[layer].failed]
    bare = [layer for layer in bare if layer not in failed]
    were = "layer {} was" if len(bare) == 1 else "layers {} were"
    what = [f"{were.format(listed(bare))} not run, but inferred from the others"] if bare else []
    what += [f"the run of layer {layer} failed, and its score is inferred from the others" for layer in failed]
    return "".join(f"; {each}" for each in what)


def sufficient_sentence(answer: SearchAnswer, *, gains: str = "") -> str:
    """Return the smallest layer that will do, and what it saves; nothing of layer 0, which none is below."""
    near, level = points(answer.settings.tolerance), in_percent(answer.settings.level)
    if answer.smallest_sufficient == answer.best_layer:
        return f"No smaller layer is {level} sure to be within {near} of it." if answer.best_layer else ""
    if answer.smallest_sufficient is not None:
        smallest = f"{answer.smallest_sufficient}{gains and f' ({gains})'}"
        return f"The smallest layer that is within {near} of the best, {level} sure: {smallest}."
    within = percents(answer.layers[answer.best_layer].chance_within)
    return f"The chance that layer {answer.best_layer} is within {near} of the best is {within}."


def spent_sentence(answer: SearchAnswer, *, proof: int = 0, seconds: float = 0.0) -> str:
    """Return what was spent, how much of it on a comparison with the last layer, and why no more was."""
    n = answer.settings.seeds
    spent = f"{answer.share:.1%} of a full sweep (every layer with {counted(n, 'seed')})"
    if proof:
        spent += f", {part(proof / answer.spent)} of it to compare with the last layer"
    if seconds:
        spent += f", {duration(seconds)} of training"
    if answer.spoilt:
        return f"Cost: {spent}."
    if answer.decision.stop is None:
        return f"Cost so far: {spent}; next run: {answer.decision.why}."
    return f"Cost: {spent}. The search stopped because {answer.decision.why}."


def doubt_sentence(answer: SearchAnswer, *, unit: str = "item") -> str:
    """Return what is uncertain and what it would take; nothing where the best layer is settled."""
    if answer.decision.stop == "settled":
        return ""
    doubt, best, tolerance = answer.doubt, answer.best_layer, answer.settings.tolerance
    reach = float(ndtri((1 + answer.settings.level) / 2))
    pair = listed(sorted((best, doubt.rival)))
    items, difference = reach * doubt.item_error, abs(doubt.difference)
    errors = [f"±{items:.1f} over {plural(unit)}"] if items > 0 else []
    found = f"Layers {pair} differ by {difference:.1f} points"
    if doubt.seed_error is not None:
        errors.append(f"±{reach * doubt.seed_error:.1f} over seeds")
    if errors:
        found += f", {' and '.join(errors)}"
    if doubt.seed_error is None:
        bare = [layer for layer in sorted((best, doubt.rival)) if not answer.layers[layer].runs]
        found += f"; no run yet at layer{'s' * (len(bare) > 1)} {listed(bare)}"
    wanted = []
    if items > tolerance:
        number = "more" if doubt.items_needed is None else f"about {_rounded(doubt.items_needed):,}"
        wanted.append(f"{number} {plural(unit)}")
    if answer.decision.stop != "gain" and (doubt.seed_error is None or reach * doubt.seed_error > tolerance):
        wanted.append("more seeds at these layers")
    return f"{found}. Resolving {points(tolerance)} would need {' and '.join(wanted)}." if wanted else f"{found}."


def _rounded(number: int) -> int:
    """Return a number with two significant digits."""
    return int(float(f"{number:.1e}"))


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


def points(number: float) -> str:
    """Return a tolerance in words.

    Examples:
        >>> points(0.5), points(1)
        ('0.5 points', '1 point')
    """
    return f"{number:g} point{'' if number == 1 else 's'}"


def either(layers: Sequence[int]) -> str:
    """Return that it is one of some layers: each of them by name, or of many that are side by side the ends.

    Examples:
        >>> either([4, 5, 6]), either([4, 5, 6, 7]), either([1, 3, 4, 5])
        ('4, 5 or 6', 'one of 4 to 7', '1, 3, 4 or 5')
    """
    first, last = layers[0], layers[-1]
    return f"one of {first} to {last}" if len(layers) == last - first + 1 > 3 else listed(layers, "or")
