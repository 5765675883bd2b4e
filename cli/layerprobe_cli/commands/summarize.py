"""layerprobe summarize."""

import dataclasses

from layerprobe.checks import LEVEL
from layerprobe_cli.options import Extraction, IntervalLevel, Model, Report, TaskSource
from layerprobe_cli.output import Output


def summarize(
    model: Model,
    source: TaskSource,
    extraction: Extraction,
    report: Report,
    output: Output,
    level: IntervalLevel = LEVEL,
) -> None:
    """Choose sentences as summaries, by each layer.

    Without fine-tuning: by how central a sentence is in its document, and by a probe of what the greedy oracle
    chooses, beside the first sentences and the oracle. `layerprobe finetune` and all else train on the same file.

    Example:  [bold]layerprobe summarize google-bert/bert-base-cased -t articles.jsonl[/bold]
    """
    from layerprobe.kinds.summaries.kind import SUMMARIZATION

    task = dataclasses.replace(source, kind=source.kind or SUMMARIZATION.name).load()

    # only now: an error in the data needs no torch
    from layerprobe.kinds.summaries.untrained import summarize as score

    with output.progress(level):
        result = score(extraction.resolve(model), task)
    output.notes(task.notes, task.warnings)
    output.result(result, result.table, "", result.baselines, result.sentence)
    report.write(output, result)
