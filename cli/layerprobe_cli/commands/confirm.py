"""layerprobe confirm."""

from typing import Annotated

import layerprobe as lp
from layerprobe.checks import LEVEL, check_seeds
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall


def confirm(
    call: PageCall,
    model: o.Extraction,
    reference: o.Reference,
    similarity: o.Similarity,
    source: o.Source,
    tuning: o.Tuning,
    seeds: o.Seeds = "5",
    layers: o.Layers = "",
    rule: o.RuleName = None,
    level: o.Level = LEVEL,
    all_seeds: Annotated[bool, "Fine-tuning"] = False,
    dry_run: o.DryRun = False,
) -> Done:
    """Predict, fine-tune, and say whether the prediction holds.

    Fine-tunes at the recommended and the last layer: confirmed, refuted or undecided. The verdict uses no other
    layers; --layers adds some. Where no drop is predicted, the best zero-shot layer is compared with the last. From the
    third seed on, no more are added once the verdict is settled at the level; intervals allow for the looks.

    Example:  [bold]layerprobe confirm google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]

    Args:
        all_seeds: Run all seeds, also where fewer settle the verdict; its interval is then the ordinary one.
    """
    listed, measure, task = check_seeds(seeds), similarity.settings(), o.load(source)

    from layerprobe.finetuning.tuning import check_layers, plan_tuning
    from layerprobe.study.find import runs_begun

    (checkpoint,) = o.resolved(model, items=task.readable)
    protocol, further = o.protocol_of(model, tuning), check_layers(checkpoint, layers)
    call.data(checkpoint, task)
    if dry_run or not runs_begun(checkpoint, task, protocol):
        # which layer is compared with the last one is not known before the prediction
        cost = len(listed) * sum(layer + 1 for layer in further)
        plan = plan_tuning(checkpoint, task, block_steps=lambda n: 2 * len(listed) * (n + 1) + cost, protocol=protocol)
        call.estimate(plan, dry_run=dry_run)
    prediction = lp.predict(checkpoint, task, reference=reference.specs(model), rule=rule, **measure)
    confirmation = lp.confirm(
        checkpoint, task, prediction.drop, layers=further, seeds=listed, protocol=protocol, all_seeds=all_seeds
    )
    return Done(
        result=confirmation,
        parts=(confirmation.sentence, "", confirmation.table, "", *prediction.drop.trusted),
        as_json={"prediction": prediction.drop, "confirmation": confirmation},
        warnings=prediction.warnings,
    )
