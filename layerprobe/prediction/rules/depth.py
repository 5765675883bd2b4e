"""Rules that look at no model: the last layer, a fraction of the depth, a random layer."""

from collections.abc import Mapping, Sequence

from layerprobe.prediction.baselines import FRACTION, fixed_fraction
from layerprobe.prediction.rule import Predictor, Rule, chosen_of, fixed, truncated
from layerprobe.readings.reading import Reading

CONTROL = "control: looks at no model"
FRACTIONS = tuple(step / 12 for step in range(12, 2, -1))


def rules(readings: Mapping[str, Reading], others: Sequence[Rule]) -> list[Rule]:
    """Return what one would do without looking at the model."""

    def fraction(share: float) -> Predictor:
        return lambda model: (truncated(fixed_fraction(model.n_blocks, fraction=share), model),)

    name = "tuned fraction of depth"
    return [
        Rule(name="last layer", curves=(), fit=fixed(fraction(1.0)), source=CONTROL),
        Rule(name="fixed fraction of depth", curves=(), fit=fixed(fraction(FRACTION)), source=CONTROL),
        Rule(
            name=name,
            curves=(),
            fit=chosen_of(fraction, [{"share": share} for share in FRACTIONS], name),
            parameters=1,
            source=CONTROL,
        ),
        Rule(
            name="random layer",
            curves=(),
            fit=fixed(lambda model: tuple(truncated(layer, model) for layer in range(model.n_blocks + 1))),
            source=CONTROL,
        ),
    ]
