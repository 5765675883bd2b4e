"""layerprobe predict."""

import layerprobe as lp
from layerprobe.checks import LEVEL
from layerprobe_cli import options as o
from layerprobe_cli.shell import Done, PageCall


def predict(
    call: PageCall,
    model: o.Extraction,
    reference: o.Reference,
    similarity: o.Similarity,
    source: o.TextSource,
    rule: o.RuleName = None,
    n_texts: o.NumberOfTexts = None,
    level: o.Level = LEVEL,
    fail_on_drop: bool = False,
) -> Done:
    """Say where to look first for the layer to keep.

    It flags layers that may drop after fine-tuning, and needs no labels and no training: 128 texts, or more where these
    do not settle it.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]

    Args:
        fail_on_drop: Exit with code 3 if a layer is flagged.
    """
    settings, data = similarity.settings(), source.load()
    (checkpoint,) = o.resolved(model)
    call.data(checkpoint, data, split=source.split)
    prediction = lp.predict(
        checkpoint,
        data,
        reference=reference.specs(model),
        rule=rule,
        groups=source.group_of(data),
        split=source.split,
        n_texts=n_texts,
        **settings,
    )
    from layerprobe.study.predict import unreadable

    failed = ""
    if fail_on_drop and unreadable(prediction):
        failed = "nothing can be predicted of a model that cannot read the texts"
    elif fail_on_drop and prediction.drop.drops:
        failed = f"layers are flagged from layer {prediction.drop.onset} on"
    return Done(
        result=prediction,
        as_json=[
            {"reference": None if pair.alone else pair.reference.name, "curve": pair.curve, "prediction": drop}
            for pair, drop in zip(prediction.comparisons, prediction.drops, strict=True)
        ],
        failed=failed,
    )
