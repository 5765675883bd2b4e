"""A search in plain words. Knows the answer, not how it was computed."""

from collections.abc import Sequence

from scipy.special import ndtri

from layerprobe.search.values import SearchAnswer, SearchSettings, StopReason


def stop_reason(stop: StopReason, settings: SearchSettings) -> str:
    """Return why a search is over."""
    reasons: dict[StopReason, str] = {
        "settled": f"the best layer is within {settings.tolerance:g} points, as surely as asked for",
        "gain": "further seeds would not improve the choice",
        "seeds": f"every layer that may be the best has all {settings.seeds} seeds",
        "budget": "the next run would exceed the budget",
    }
    return reasons[stop]


def search_sentence(answer: SearchAnswer) -> str:
    """Return which layer to keep, how surely, the smallest that will do, what was spent, and what is left to doubt."""
    parts = [_kept(answer), _candidates(answer), _sufficient(answer), _spent(answer)]
    if answer.decision.stop != "settled":
        parts.append(_doubt(answer))
    return " ".join(parts)


def _kept(answer: SearchAnswer) -> str:
    best = answer.layers[answer.best_layer]
    last, (low, high) = len(answer.layers) - 1, best.interval
    spread = f"{answer.settings.level:.0%} interval {low:.1f} to {high:.1f}"
    return f"Keep layer {best.layer} of {last}: {best.mean:.1f} ({spread})."


def _candidates(answer: SearchAnswer) -> str:
    chance, level = _percent(answer.chance), f"{answer.settings.level:.0%}"
    if len(answer.candidates) == 1:
        return f"It is the best layer with a chance of {chance}."
    if len(answer.candidates) == len(answer.layers):
        return f"It is the best layer with a chance of {chance}; none of the others can be ruled out."
    return f"{level} sure that the best layer is {_listed(answer.candidates, 'or')}; {answer.best_layer} has {chance}."


def _sufficient(answer: SearchAnswer) -> str:
    points, level = f"{answer.settings.tolerance:g} points", f"{answer.settings.level:.0%}"
    if answer.smallest_sufficient is not None:
        return f"The smallest layer that is within {points} of the best, {level} sure: {answer.smallest_sufficient}."
    within = _percent(answer.layers[answer.best_layer].chance_within)
    return (
        f"Of no layer it is {level} sure that it is within {points} of the best; of layer {answer.best_layer} {within}."
    )


def _spent(answer: SearchAnswer) -> str:
    spent = (
        f"{answer.spent} block-steps, {answer.share:.1%} of a sweep of every layer with {answer.settings.seeds} seeds"
    )
    if answer.decision.stop is None:
        return f"Spent so far: {spent}; next, {answer.decision.why}."
    return f"Spent: {spent}; {answer.decision.why}."


def _doubt(answer: SearchAnswer) -> str:
    doubt, best, tolerance = answer.doubt, answer.best_layer, answer.settings.tolerance
    reach = float(ndtri((1 + answer.settings.level) / 2))
    pair = _listed(sorted((best, doubt.rival)), "and")
    items, difference = reach * doubt.item_error, abs(doubt.difference)
    said = f"Layers {pair} lie {difference:.1f} points apart, known to ±{items:.1f} over items"
    if doubt.seed_error is None:
        bare = [layer for layer in sorted((best, doubt.rival)) if not answer.layers[layer].runs]
        said += f"; {_listed(bare, 'and')} had no run of {'its' if len(bare) == 1 else 'their'} own"
    else:
        said += f" and to ±{reach * doubt.seed_error:.1f} over seeds"
    wanted = []
    if items > tolerance:
        wanted.append("more items" if doubt.items_needed is None else f"about {_rounded(doubt.items_needed):,} items")
    if answer.decision.stop != "gain" and (doubt.seed_error is None or reach * doubt.seed_error > tolerance):
        wanted.append("more runs there")
    return f"{said}. To tell {tolerance:g} points takes {' and '.join(wanted)}." if wanted else f"{said}."


def _rounded(number: int) -> int:
    """Return a number with two significant digits."""
    return int(float(f"{number:.1e}"))


def _percent(share: float) -> str:
    """Return a share as whole percents that never claim certainty."""
    if share > 0.99:
        return "over 99%"
    return "under 1%" if share < 0.01 else f"{share:.0%}"


def _listed(layers: Sequence[int], word: str) -> str:
    *others, last = map(str, layers)
    return f"{', '.join(others)} {word} {last}" if others else last
