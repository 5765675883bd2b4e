"""Sentences about statistics, from numbers and names.

The texts of results are templates of `results/assets/words.toml`; these are notes and lines of progress.
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


def error_sources(error: Interval) -> str:
    """Return the sources of error in an interval: items, seeds or both."""
    if error.n_items is None:
        return "over new seeds only, because outputs per item were not kept"
    if error.seeds_error is None:
        return f"over new {plural(error.unit)} only, because only one seed was run"
    return f"over new {plural(error.unit)} and new seeds"


def joint_error_sources(errors: Iterable[Interval]) -> str:
    """Return the sources of error in several intervals; those of a single seed cover items only."""
    return ", or ".join(sorted(dict.fromkeys(map(error_sources, errors)), key=lambda over: " only" in over))


def not_trained_sign(sign: str, *, loss: float, score: float, untrained: float | None) -> str:
    """Return the evidence that a run did not train, see `failure_sign`.

    Examples:
        >>> not_trained_sign("loss", loss=0.693, score=50.0, untrained=50.0)
        'its training loss did not fall: 0.69 at the end'
    """
    return {
        "one output": "its outputs are the same for all items",
        "loss": f"its training loss did not fall: {loss:.2g} at the end",
        "untrained": f"it scores {score:.1f} after training, {untrained or 0:.1f} before",
    }[sign]


def not_trained_lines(signs: Mapping[tuple[int, int], str], n_runs: int, last: int) -> list[str]:
    """Return lines on the runs that did not train, by layer and seed, and on the last layer if several of its did not.

    Examples:
        >>> not_trained_lines({(10, 2): "its training loss did not fall: 0.69 at the end"}, 9, 12)
        ['1 of 9 runs did not train: layer 10, seed 2 (its training loss did not fall: 0.69 at the end)']
    """
    if not signs:
        return []
    runs = listed([f"layer {layer}, seed {seed} ({why})" for (layer, seed), why in signs.items()])
    lines = [f"{len(signs)} of {counted(n_runs, 'run')} did not train: {runs}"]
    times = sum(layer == last for layer, _ in signs)
    if times > 1:
        lines.append(f"layer {last}, the whole model, did not train in {times} runs: lower the learning rate")
    return lines


def stop_reason(stop: str, *, tolerance: float, seeds: int, several: bool = False) -> str:
    """Return why a search over one or several models ended."""
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
    """Return sentences on the data for training, choosing and testing in a search, and on the effect of more labels.

    `sizes` are those of the task's three splits, `fold` those of a run's training and scoring. Without cross-validation
    there is 1 fold; it is the default below `few` validation items, and was requested if that is None.
    """
    (train, validation, test), items, on = sizes, plural(unit), f"Each run trains for {counted(epochs, 'epoch')} on"
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


def layer_span(layers: Sequence[int]) -> str:
    """Return layers in words, adjacent layers as a range.

    Examples:
        >>> layer_span([8]), layer_span([2, 3, 4]), layer_span([9, 11])
        ('layer 8', 'layers 2 to 4', 'layers 9 and 11')
    """
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}" if len(layers) > layers[-1] - layers[0] else f"layers {listed(layers)}"


def tokens_phrase(tokens: tuple[int, int]) -> str:
    """Return the number of tokens kept, out of the vocabulary.

    Examples:
        >>> tokens_phrase((15000, 30522))
        '15,000 of 30,522 tokens'
    """
    return f"{tokens[0]:,} of {tokens[1]:,} tokens"


def missing_sentence(missing: float, tokens: tuple[int, int]) -> str:
    """Return the share of texts' tokens that are no longer in the vocabulary, and what to do."""
    return (
        f"{100 * missing:.0f} % of their tokens were removed from its vocabulary, which has {tokens_phrase(tokens)}, "
        "and are spelt with shorter ones, so embeddings are worse: keep the tokens of texts in this language and "
        "domain, or use the whole model"
    )
