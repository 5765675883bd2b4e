"""layerprobe confirm."""

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.commands.run import do_study
from layerprobe_cli.options import (
    AllSeeds,
    Extraction,
    Layers,
    Level,
    Model,
    Reference,
    RuleName,
    Similarity,
    TaskSource,
    Tuning,
)
from layerprobe_cli.output import Output, print_json
from layerprobe_cli.tables import outcomes_with_best, print_outcomes, print_sentence


def confirm(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    extraction: Extraction,
    tuning: Tuning,
    output: Output,
    layers: Layers = "",
    rule: RuleName = None,
    level: Level = LEVEL,
    all_seeds: AllSeeds = False,
) -> None:
    """Predict, fine-tune, and say whether the prediction holds.

    Fine-tunes at the recommended and the last layer: confirmed, refuted or undecided. The verdict uses no other
    layers; --layers adds some. Where no drop is predicted, the best zero-shot layer is held against the last. From the
    third seed on, no more are added once the verdict is settled at the level; intervals allow for the looks.

    Example:  [bold]layerprobe confirm google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    study = do_study(
        model,
        reference,
        similarity,
        source,
        extraction,
        tuning,
        output,
        layers=layers,
        rule=rule,
        level=level,
        all_seeds=all_seeds,
    )
    assert study.confirmation is not None
    if output.json:
        layer_outcomes = outcomes_with_best(study.confirmation.outcomes)
        print_json({"prediction": study.prediction, "confirmation": study.confirmation, "layers": layer_outcomes})
    else:
        print_outcomes(study.confirmation.outcomes)
        print_sentence(study.prediction)
        typer.echo(study.confirmation.sentence)
