"""The rule that takes the best layer of a reading."""

from collections.abc import Mapping, Sequence

from layerprobe.prediction.rule import Predictor, Rule, chosen, fixed, layer_values, truncated
from layerprobe.readings.reading import Reading


def rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return one rule for each reading but similarities, which are high where nothing was learnt."""
    return [best_layer(name, reading) for name, reading in readings.items() if not reading.similarity]


def best_layer(name: str, reading: Reading) -> Rule:
    """Return the rule that takes the best layer of a reading, the earlier one of equals."""

    def predictor(direction: int) -> Predictor:
        return lambda model: (truncated(int((direction * layer_values(model, name)).argmax()), model),)

    title = f"best layer by {name}"
    candidates = [predictor(direction) for direction in reading.directions]
    tuned = len(candidates) > 1
    return Rule(
        name=title,
        curves=(name,),
        fit=chosen(candidates, name=title) if tuned else fixed(candidates[0]),
        parameters=int(tuned),
        labelled=reading.labelled,
    )
