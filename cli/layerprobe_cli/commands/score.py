"""layerprobe score."""

import functools
from typing import Annotated, Literal

import typer

from layerprobe_cli.options import Extraction, FailBelow, Model, Report, TaskSource
from layerprobe_cli.output import Output
from layerprobe_cli.tables import check_threshold, print_scores


def score(
    model: Model,
    source: TaskSource,
    extraction: Extraction,
    report: Report,
    output: Output,
    split: Annotated[Literal["validation", "test"], typer.Option(help="What is scored.")] = "test",
    fail_below: FailBelow = None,
) -> None:
    """Score each layer on a task without fine-tuning.

    By cosines, or by a probe on the frozen embeddings. Embeddings are kept on disk: another call needs no pass of
    the model.

    Example:  [bold]layerprobe score google-bert/bert-base-cased -t stsb[/bold]
    """
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.scoring.zero_shot import score as score_layers

    with output.progress() as progress:
        scores, embeddings = score_layers(
            extraction.resolve(model), task, split=split, options=extraction.options(), progress=progress
        )
    output.notes(task.notes, (*task.warnings, *embeddings.warnings))
    about = {"model": embeddings.model, "task": task.name, "kind": task.kind, "scores": scores}
    output.result(scores, functools.partial(print_scores, model=embeddings.model), as_json=about)
    report.write(output, "layerprobe.report.scores:scores_page", scores, model=embeddings.model, task=task.name)
    check_threshold(fail_below, scores.scores[-1], f"the last layer scores {scores.scores[-1]:.2f}")
