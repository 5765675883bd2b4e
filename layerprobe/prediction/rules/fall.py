"""The rule that flags the final layers which fall below the highest before them."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from layerprobe.prediction.rule import (
    Array,
    Call,
    HasCurves,
    Predictor,
    Rule,
    chosen_of,
    falls,
    final_run,
    layer_values,
    truncated,
)
from layerprobe.readings.reading import Reading

THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0)


def rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return one rule for each reading."""
    return [fall(name, reading) for name, reading in readings.items()]


def fall(name: str, reading: Reading) -> Rule:
    """Return the rule that flags the final layers which fall below the highest before them by a chosen share.

    Whether the embedding output counts among those is chosen, too: what no block has touched can be high for reasons
    of its own. Where both do as well, it does not count. Where the last layer lies no further below the highest than
    the floor of the reading, none is flagged.
    """

    def predictor(first: int, direction: int, threshold: float) -> Predictor:
        def predict(model: HasCurves) -> tuple[Call, ...]:
            values = direction * layer_values(model, name)[first:]
            if values.max() - values[-1] <= reading.floor:
                return (truncated(model.n_blocks, model),)
            return (final_run(falls_of(model, name, reading, direction=direction, first=first) > threshold, model),)

        return predict

    title = f"fall of {name}"
    grid = [
        {"first": first, "direction": direction, "threshold": threshold}
        for first, direction, threshold in itertools.product((1, 0), reading.directions, THRESHOLDS)
    ]
    return Rule(
        name=title,
        curves=(name,),
        fit=chosen_of(predictor, grid, title),
        parameters=len(reading.directions) + 1,
        labelled=reading.labelled,
    )


def falls_of(model: HasCurves, name: str, reading: Reading, *, direction: int, first: int = 0) -> Array:
    """Return the falls of a reading below the highest of the layers from `first` on; 0 before it."""
    values = direction * layer_values(model, name)[first:]
    return np.append(np.zeros(first), falls(values, unit=reading.maximum))
