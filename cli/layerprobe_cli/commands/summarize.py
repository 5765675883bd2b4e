"""layerprobe summarize."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import Extraction, IntervalLevel, Model, Report, TaskSource
from layerprobe_cli.output import Output, print_table

if TYPE_CHECKING:
    from layerprobe.scoring.values import SummaryScores


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
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.kinds.summaries.untrained import summarize as score

    with output.progress() as progress:
        result = score(extraction.resolve(model), task, level=level, options=extraction.options(), progress=progress)
    output.notes(task.notes, task.warnings)
    output.result(result, _print)
    report.write(output, result)


def _print(result: SummaryScores) -> None:
    from layerprobe.metrics.names import metric_title

    title, (best, best_layer) = metric_title(result.primary), result.best
    rows = []
    for layer in range(result.first_layer, result.model.n_layers):
        row = [str(layer)]
        for method in result.methods:
            gain = method.gains[layer]
            bounds = "" if gain is None else f"{gain.interval[0]:+.2f} to {gain.interval[1]:+.2f}"
            row += [f"{method.test[result.primary][layer]:.2f}", bounds]
        rows.append([*row, f"best: {best.name}" if layer == best_layer else ""])
    print_table(["layer", *(cell for method in result.methods for cell in (method.name, "less lead")), "flag"], rows)
    typer.echo(f"{title} x 100 on {result.documents:,} test documents.\n")
    metrics = list(result.lead)
    chosen = {metric: best.test[metric][best_layer] for metric in metrics}
    print_table(
        ["what", *map(metric_title, metrics)],
        [
            [what, *(f"{scores[metric]:.2f}" for metric in metrics)]
            for what, scores in (
                ("lead", result.lead),
                (f"{best.name}, layer {best_layer}", chosen),
                ("oracle", result.oracle),
            )
        ],
    )
    typer.echo(result.sentence)
