"""Statistics in English: numbers and names in, sentences out.

The words of results are templates of `results/assets/words.toml`; these are notes and lines of progress.
"""

from collections.abc import Iterable, Mapping, Sequence

from layerprobe.interval import Interval
from layerprobe.names import counted, listed, plural


def points(number: float) -> str:
    """Return a tolerance in words.

    Examples:
        >>> points(0.5), points(1)
        ('0.5 points', '1 point')
    """
    return f"{number:g} point{'' if number == 1 else 's'}"


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


def layer_span(layers: Sequence[int]) -> str:
    """Return layers in words, by their ends where they are side by side.

    Examples:
        >>> layer_span([8]), layer_span([2, 3, 4]), layer_span([9, 11])
        ('layer 8', 'layers 2 to 4', 'layers 9 and 11')
    """
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}" if len(layers) > layers[-1] - layers[0] else f"layers {listed(layers)}"


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
