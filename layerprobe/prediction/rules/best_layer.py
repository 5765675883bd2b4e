"""The rule that takes the best layer of a reading."""

from collections.abc import Mapping, Sequence

from layerprobe.prediction.rule import Predictor, Rule, chosen_of, fixed, layer_values, truncated
from layerprobe.readings.reading import Reading


def rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return one rule for each reading but similarities, which are high where nothing was learnt."""
    return [best_layer(name, reading) for name, reading in readings.items() if not reading.similarity]


def best_layer(name: str, reading: Reading) -> Rule:
    """Return the rule that takes the best layer of a reading, the earlier one of equals."""

    def predictor(direction: int) -> Predictor:
        return lambda model: (truncated(int((direction * layer_values(model, name)).argmax()), model),)

    title = f"best layer by {name}"
    grid = [{"direction": direction} for direction in reading.directions]
    tuned = len(grid) > 1
    return Rule(
        name=title,
        curves=(name,),
        fit=chosen_of(predictor, grid, title) if tuned else fixed(predictor(**grid[0])),
        parameters=int(tuned),
        labelled=reading.labelled,
    )
