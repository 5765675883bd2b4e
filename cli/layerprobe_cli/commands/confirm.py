"""layerprobe confirm."""

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    AllSeeds,
    DryRun,
    Extraction,
    Layers,
    Level,
    Model,
    Reference,
    Report,
    RuleName,
    Similarity,
    TaskSource,
    Tuning,
    parse_layers,
)
from layerprobe_cli.output import Output
from layerprobe_cli.tables import outcomes_with_best


def confirm(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TaskSource,
    extraction: Extraction,
    tuning: Tuning,
    report: Report,
    output: Output,
    layers: Layers = "",
    rule: RuleName = None,
    level: Level = LEVEL,
    all_seeds: AllSeeds = False,
    dry_run: DryRun = False,
) -> None:
    """Predict, fine-tune, and say whether the prediction holds.

    Fine-tunes at the recommended and the last layer: confirmed, refuted or undecided. The verdict uses no other
    layers; --layers adds some. Where no drop is predicted, the best zero-shot layer is compared with the last. From the
    third seed on, no more are added once the verdict is settled at the level; intervals allow for the looks.

    Example:  [bold]layerprobe confirm google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    seeds, measure = tuning.seed_list(), similarity.settings()
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.finetuning.plan import plan_tuning
    from layerprobe.prediction.sentence import trusted
    from layerprobe.study.confirmation import confirm as confirm_prediction
    from layerprobe.study.plan import search_begun
    from layerprobe.study.predict import predict

    checkpoint = extraction.resolve(model, task.readable)
    references = reference.resolve(extraction, task.readable)
    protocol, further = tuning.protocol(extraction), parse_layers(layers, checkpoint)
    told = output.data(checkpoint, task, max_length=protocol.max_length)
    if dry_run or not search_begun(checkpoint, task, seeds=len(seeds), cross_validation=False, protocol=protocol):
        # which layer is compared with the last one is not known before the prediction
        cost = len(seeds) * sum(layer + 1 for layer in further)
        plan = plan_tuning(checkpoint, task, block_steps=lambda n: 2 * len(seeds) * (n + 1) + cost, protocol=protocol)
        output.plan(plan, dry_run=dry_run)
    with output.progress(level):
        prediction = predict(checkpoint, task, reference=references, rule=rule, **measure)
        confirmation = confirm_prediction(
            checkpoint, task, prediction.drop, layers=further, seeds=seeds, protocol=protocol, all_seeds=all_seeds
        )
    output.notes((), [said for said in prediction.warnings if said not in told])
    layer_outcomes = outcomes_with_best(confirmation.outcomes)
    output.result(
        confirmation,
        confirmation.table,
        "",
        *trusted(prediction.drop),
        confirmation.sentence,
        as_json={"prediction": prediction.drop, "confirmation": confirmation, "layers": layer_outcomes},
    )
    report.write(output, confirmation, warnings=(*told, *prediction.warnings))
