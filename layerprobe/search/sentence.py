"""A search in plain words. Knows the answer, not how it was computed."""

from collections.abc import Sequence

from scipy.special import ndtri

from layerprobe.context import duration
from layerprobe.names import counted, in_percent, listed, plural
from layerprobe.search.values import SearchAnswer, SearchSettings, StopReason
from layerprobe.stats.sentences import FEW, chance, either, keep_phrase, part, percents, points, spans, spoilt_sentence


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
        sentence = f"{kept_phrase(answer)}: {expected_phrase(answer)}."
        return f"{sentence} {spoilt_sentence(answer.spoilt)} {spent_sentence(answer)}"
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


def expected_phrase(answer: SearchAnswer, *, unit: str = "") -> str:
    """Return what the layer to keep is expected to score, in a unit."""
    best = answer.layers[answer.best_layer]
    level, (low, high) = in_percent(answer.settings.level), best.interval
    if answer.spoilt:
        return f"{best.mean:.1f}{unit and f' ({unit})'}"
    return f"{best.mean:.1f} ({unit and f'{unit}, '}{level} interval {low:.1f} to {high:.1f})"


def sureness_sentence(answer: SearchAnswer) -> str:
    """Return which layers may be the best, or with what chance the one to keep is."""
    level = in_percent(answer.settings.level)
    if len(answer.candidates) == 1:
        return f"There is {chance(answer.chance)} that it is the best layer."
    ruled_out = [layer for layer in range(answer.first_layer, len(answer.layers)) if layer not in answer.candidates]
    if not ruled_out:
        return f"There is {chance(answer.chance)} that it is the best layer; no other layer can be ruled out."
    if len(ruled_out) <= FEW < len(answer.candidates):
        layers = f"layer{'s' * (len(ruled_out) > 1)} {listed(ruled_out)}"
        return f"Only {layers} can be ruled out ({level} sure){without_runs(answer, answer.candidates)}."
    return f"{level} sure that the best layer is {either(answer.candidates)}{without_runs(answer, answer.candidates)}."


def without_runs(answer: SearchAnswer, layers: Sequence[int]) -> str:
    """Return which of some layers had no run, or none with a score, the end of a sentence; empty where all had one."""
    bare = [layer for layer in layers if not answer.layers[layer].runs]
    failed = [layer for layer in bare if answer.layers[layer].failed]
    bare = [layer for layer in bare if layer not in failed]
    were = "layer {} was" if len(bare) == 1 else "layers {} were"
    what = [f"{were.format(listed(spans(bare)))} not run, but inferred from the others"] if bare else []
    what += [f"the run of layer {layer} failed, and its score is inferred from the others" for layer in failed]
    return "".join(f"; {clause}" for clause in what)


def sufficient_sentence(answer: SearchAnswer, *, gains: str = "") -> str:
    """Return the smallest layer that will do, and what it saves; nothing of layer 0, which none is below."""
    near, level = points(answer.settings.tolerance), in_percent(answer.settings.level)
    if answer.smallest_sufficient == answer.best_layer:
        return f"No smaller layer is {level} sure to be within {near} of it." if answer.best_layer else ""
    if answer.smallest_sufficient is not None:
        smallest = f"{answer.smallest_sufficient}{gains and f': {gains}'}"
        return f"The smallest layer within {near} of the best ({level} sure) is {smallest}."
    within = chance(answer.layers[answer.best_layer].chance_within)
    return f"There is {within} that layer {answer.best_layer} is within {near} of the best."


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
    sentence = f"Layers {pair} differ by {difference:.1f} points"
    if doubt.seed_error is not None:
        errors.append(f"±{reach * doubt.seed_error:.1f} over seeds")
    if errors:
        sentence += f", {' and '.join(errors)}"
    if doubt.seed_error is None:
        bare = [layer for layer in sorted((best, doubt.rival)) if not answer.layers[layer].runs]
        sentence += f"; no run yet at layer{'s' * (len(bare) > 1)} {listed(bare)}"
    needs = []
    if items > tolerance:
        number = "more" if doubt.items_needed is None else f"about {_rounded(doubt.items_needed):,}"
        needs.append(f"{number} {plural(unit)}")
    if answer.decision.stop != "gain" and (doubt.seed_error is None or reach * doubt.seed_error > tolerance):
        needs.append("more seeds at these layers")
    return f"{sentence}. Resolving {points(tolerance)} would need {' and '.join(needs)}." if needs else f"{sentence}."


def _rounded(number: int) -> int:
    """Return a number with two significant digits."""
    return int(float(f"{number:.1e}"))
