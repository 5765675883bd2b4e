"""layerprobe score."""

from typing import Annotated, Any, Literal

import typer

from layerprobe_cli.options import Extraction, FailBelow, Model, Report, TaskSource, command
from layerprobe_cli.output import Output
from layerprobe_cli.tables import check_threshold


def score(
    model: Model,
    source: TaskSource,
    extraction: Extraction,
    report: Report,
    output: Output,
    split: Annotated[
        Literal["validation", "test", "all"] | None,
        typer.Option(
            help="What is scored.", show_default="test; all of data without a predefined split where nothing is fitted"
        ),
    ] = None,
    layer_means: Annotated[
        bool,
        typer.Option(
            "--layer-means",
            help="Also score the mean of every two layers as an embedding, at unit norm and as they are; validation "
            "chooses, test says what that gains.",
        ),
    ] = False,
    fail_below: FailBelow = None,
) -> None:
    """Score each layer on a task without fine-tuning.

    By cosines, or by a probe on the frozen embeddings. Embeddings are kept on disk: another call needs no pass of
    the model.

    Example:  [bold]layerprobe score google-bert/bert-base-cased -t stsb[/bold]
    """
    if layer_means and split not in (None, "test"):
        raise typer.BadParameter("expected --split test with --layer-means: the validation split chooses the layers")
    task = source.load()
    split = "test" if layer_means else split

    # only now: an error in the data needs no torch
    from layerprobe.scoring.layer_means import layer_means as average_layers
    from layerprobe.scoring.zero_shot import score as score_layers

    with output.progress():
        checkpoint = extraction.resolve(model)
        told = output.data(checkpoint, task, scored=split or task.scored) or task.warnings
        scores, embeddings = score_layers(checkpoint, task, split=split)
        means = average_layers(checkpoint, task) if layer_means else None
    warnings = tuple(dict.fromkeys((*told, *embeddings.warnings, *scores.warnings)))
    output.notes((), warnings[len(told) :])
    follow: dict[str, Any] = {"warnings": warnings, "commands": [command("find", model, "-t", str(source.task))]}
    about = {"model": embeddings.model, "task": task.name, "kind": task.kind, "scores": scores}
    table = scores.table.with_columns(embeddings.model.parameters_column, after="layer")
    if means is None:
        output.result(scores, table, as_json=about)
        report.write(output, scores, model=embeddings.model, task=task.name, **follow)
    else:
        output.result(scores, table, "", means.table, means.sentence, as_json=about | {"means": means})
        report.write(output, means, **follow)
    check_threshold(fail_below, scores.scores[-1], f"the last layer scores {scores.scores[-1]:.2f}")
