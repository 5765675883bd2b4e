"""Rules of the depth and of one reading, and the best of all rules. Knows numbers by layer only."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.prediction.rule import (
    FRACTION,
    Array,
    KnownDrop,
    Parameters,
    Predictor,
    ReadingPredictor,
    Rule,
    before_final_run,
    best_on_grid,
    check_some,
    falls,
    fitted,
    fixed_fraction,
    leave_one_family_out,
    loss,
    nothing_to_choose,
    obstacle,
)
from layerprobe.readings.reading import Reading

# ---- no model is looked at ------------------------------------------------------------------------------


CONTROL = "control: looks at no model"
FRACTIONS = tuple(step / 12 for step in range(12, 2, -1))


def depth_rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return what one would do without looking at the model."""

    def fraction(share: float) -> Predictor:
        return lambda model: (fixed_fraction(model.n_blocks, fraction=share),)

    name = "tuned fraction of depth"
    return [
        Rule(name="last layer", curves=(), make=lambda: fraction(1.0), source=CONTROL),
        Rule(name="fixed fraction of depth", curves=(), make=lambda: fraction(FRACTION), source=CONTROL),
        Rule(
            name=name,
            curves=(),
            make=fraction,
            choose=best_on_grid(fraction, [{"share": share} for share in FRACTIONS], name),
            parameters=1,
            source=CONTROL,
        ),
        Rule(
            name="random layer",
            curves=(),
            make=lambda: lambda model: tuple(range(model.n_blocks + 1)),
            source=CONTROL,
        ),
    ]


# ---- the best layer of a reading ------------------------------------------------------------------------


def best_layer_rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return one rule for each reading but similarities, which are high where nothing was learnt."""
    return [best_layer(name, reading) for name, reading in readings.items() if not reading.similarity]


def best_layer(name: str, reading: Reading) -> Rule:
    """Return the rule that takes the best layer of a reading, the earlier one of equals."""

    def predictor(direction: int) -> Predictor:
        return ReadingPredictor(name=name, layers=lambda values: (direction * values).argmax(axis=-1))

    title = f"best layer by {name}"
    grid = [{"direction": direction} for direction in reading.directions]
    tuned = len(grid) > 1
    return Rule(
        name=title,
        curves=(name,),
        make=predictor if tuned else lambda: predictor(**grid[0]),
        choose=best_on_grid(predictor, grid, title) if tuned else nothing_to_choose,
        parameters=int(tuned),
        labelled=reading.labelled,
    )


# ---- the final layers that fall -------------------------------------------------------------------------


THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0)


def fall_rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return one rule for each reading."""
    return [fall(name, reading) for name, reading in readings.items()]


def fall(name: str, reading: Reading) -> Rule:
    """Return the rule that flags the final layers which fall below the highest before them by a chosen share.

    Whether the embedding output counts among those is chosen, too: what no block has touched can be high for reasons
    of its own. Where both do as well, it does not count. Where the last layer lies no further below the highest than
    the floor of the reading, none is flagged.
    """

    def predictor(first: int, direction: int, threshold: float) -> Predictor:
        def layers(values: Array) -> NDArray[np.intp]:
            read = direction * values[..., first:]
            level = read.max(axis=-1) - read[..., -1] <= reading.floor
            flagged = before_final_run(falls_of(values, reading, direction=direction, first=first) > threshold)
            return np.where(level, values.shape[-1] - 1, flagged)

        return ReadingPredictor(name=name, layers=layers)

    title = f"fall of {name}"
    grid = [
        {"first": first, "direction": direction, "threshold": threshold}
        for first, direction, threshold in itertools.product((1, 0), reading.directions, THRESHOLDS)
    ]
    return Rule(
        name=title,
        curves=(name,),
        make=predictor,
        choose=best_on_grid(predictor, grid, title),
        parameters=len(reading.directions) + 1,
        labelled=reading.labelled,
    )


def falls_of(values: Array, reading: Reading, *, direction: int, first: int = 0) -> Array:
    """Return the falls of (.., layers) values of a reading below the highest from layer `first` on; 0 before it."""
    below = falls(direction * values[..., first:], unit=reading.maximum)
    return np.concatenate([np.zeros((*below.shape[:-1], first)), below], axis=-1)


# ---- the best of the others -----------------------------------------------------------------------------


def best_rule_rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return the best of those without labels, and where there are labels the best of all."""
    best = [best_rule([rule for rule in others if not rule.labelled])]
    if any(reading.labelled for reading in readings.values()):
        best.append(best_rule(others, labelled=True))
    return best


def best_rule(rules: Sequence[Rule], *, labelled: bool = False) -> Rule:
    """Return the rule that takes the one of some rules with the lowest mean loss on known models, the first of equals.

    Each is scored leave-one-family-out among the known models. Of many rules the best one's own score is too good to
    be true; that of this rule is what somebody gets who chooses among them.
    """
    name = f"best rule of the other families{', with labels' if labelled else ''}"

    def mean_loss(rule: Rule, models: Sequence[KnownDrop]) -> float:
        predicted = zip(leave_one_family_out(rule, models), models, strict=True)
        return float(np.mean([np.mean([loss(layer, case) for layer in layers]) for layers, case in predicted]))

    def choose(models: Sequence[KnownDrop]) -> Parameters:
        candidates = [rule for rule in rules if obstacle(rule, models) is None]
        check_some(candidates, name)
        return {"predict": fitted(min(candidates, key=lambda rule: mean_loss(rule, models)), models)}

    return Rule(name=name, curves=(), make=lambda predict: predict, choose=choose, parameters=1, labelled=labelled)
