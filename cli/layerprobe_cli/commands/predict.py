"""layerprobe predict."""

from __future__ import annotations

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Extraction,
    IntervalLevel,
    Json,
    Loading,
    Model,
    Quiet,
    Reference,
    RuleName,
    Similarity,
    TextSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_prediction, show_notes


def predict(
    model: Model,
    reference: Reference,
    similarity: Similarity,
    source: TextSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    rule: RuleName = None,
    level: IntervalLevel = LEVEL,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say which layers will drop after fine-tuning.

    It also names the one to keep, and needs no labels and no training.

    Example:  [bold]layerprobe predict google/electra-base-discriminator -r google-bert/bert-base-cased -t stsb[/bold]
    """
    log_to_stderr(quiet=quiet)
    settings = similarity.settings()
    data = source.load_texts()

    # after the data: what is wrong with it is told before torch is loaded
    from layerprobe.comparison.compare import compare_all
    from layerprobe.extraction.embeddings import extract
    from layerprobe.scoring.zero_shot import zero_shot
    from layerprobe.study.predict import cautions, chosen_rule, rule_by_reference, rule_readings
    from layerprobe.study.predict import predict as predict_drop
    from layerprobe.tasks.kinds.kind import KINDS

    options = library_options(loading, embedding, extraction, cache_dir=cache_dir)
    checkpoint = loading.find(model, random_init=loading.random_init)
    references = reference.find(loading)
    rule = chosen_rule(rule, data.texts, labelled=data.task is not None, referenced=bool(references))
    with progress_bar(quiet=quiet) as progress:
        tested = extract(checkpoint, data.texts, options=options, progress=progress)
        bases = [extract(each, data.texts, options=options, progress=progress) for each in references]
        if not bases:
            settings["alignment"] = "previous-layer"
        compared = compare_all(
            tested,
            bases or [tested],
            level=level,
            documents=data.documents,
            device=loading.device,
            progress=progress,
            **settings,
        )
        labelled = None
        if data.task is not None:
            fit = KINDS[data.task.kind].fitted_on
            validated, fitted = (
                extract(checkpoint, data.task.split(split).texts, options=options, progress=progress)
                for split in ("validation", fit or "validation")
            )
            labelled = zero_shot(validated, data.task, split="validation", fitted=fitted, progress=progress)
        read = rule_readings(
            checkpoint,
            data.texts,
            rule=rule,
            task=data.task,
            level=level,
            documents=data.documents,
            options=options,
            progress=progress,
        )
    predictions = [
        predict_drop(each, zero_shot_validation=labelled, rule=each_rule, read=read)
        for each, each_rule in zip(
            compared.comparisons, (rule, *[rule_by_reference(rule)] * (len(compared.comparisons) - 1)), strict=True
        )
    ]
    warnings = [warning for embeddings in (tested, *bases) for warning in embeddings.warnings]
    for comparison, prediction in zip(compared.comparisons, predictions, strict=True):
        warnings += [*comparison.warnings, *cautions(comparison, prediction, labelled)]
    show_notes(data.notes, (*data.warnings, *warnings), quiet=quiet)
    if json:
        print_json(
            [
                {
                    "reference": None if comparison.alone else comparison.reference.name,
                    "curve": comparison.curve,
                    "prediction": prediction,
                }
                for comparison, prediction in zip(compared.comparisons, predictions, strict=True)
            ]
        )
        return
    for comparison, prediction in zip(compared.comparisons, predictions, strict=True):
        if len(predictions) > 1:
            by = (
                ""
                if prediction.rule == rule
                else f", by the {prediction.rule}, as the other rule reads the model alone"
            )
            typer.echo(f"{'' if prediction is predictions[0] else chr(10)}Against {comparison.reference.name}{by}:")
        print_prediction(comparison, prediction)
