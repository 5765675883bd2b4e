"""layerprobe probe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe.probing.values import FOLDINGS, FOLDS, TOLERANCE, ProbeSettings
from layerprobe_cli.options import Extraction, Level, Report, TaskSource, export_layer, flag, given_options, option
from layerprobe_cli.output import Output


def probe(
    context: typer.Context,
    embeddings: Annotated[
        str,
        typer.Argument(
            metavar="EMBEDDINGS|MODEL",
            help="Embeddings of every layer: .npy, .npz, .safetensors (samples, layers, features) or an array a layer, "
            "Parquet with a column of lists a layer, or a folder with a file a layer. With --task a model: hub id, "
            "id@revision, or a local folder.",
        ),
    ],
    source: TaskSource,
    extraction: Extraction,
    report: Report,
    output: Output,
    targets: Annotated[
        Path | None,
        typer.Argument(
            help="Scores, classes or labels in the order of the rows: .csv, .tsv or .parquet with a column target, "
            "label or score, .npy, or .txt with one a line. Columns first,second,score are pairs of rows; query,"
            "document are rows to find and, with gain, how relevant they are.",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        option(
            "Probing",
            metavar="FILE[:COLUMN]",
            help="What is never divided between folds, one a row: speakers, documents, protein families.",
        ),
    ] = None,
    targets_are: Annotated[
        Literal["scores", "classes", "labels", "pairs", "queries"] | None,
        option(
            "Probing",
            metavar="KIND",
            help="scores, classes, labels, pairs or queries: what the targets are.",
            show_default="detected",
        ),
    ] = None,
    target: Annotated[
        str | None,
        option("Probing", metavar="COLUMN", help="Column of the targets; a,b,c are labels.", show_default="detected"),
    ] = None,
    folds: Annotated[int, option("Probing", min=3, help="Parts that probes are fitted across.")] = FOLDS,
    foldings: Annotated[int, option("Probing", min=1, help="How often samples are divided into folds.")] = FOLDINGS,
    tolerance: Annotated[
        float, option("Probing", min=0, help="Points of score x 100 that you accept for fewer layers.")
    ] = TOLERANCE,
    seed: Annotated[int, option("Probing", min=0, help="Of the folds.")] = 0,
    combinations: Annotated[
        bool | None,
        option(
            "Probing",
            "--combinations/--no-combinations",
            help="Also compare the mean of all layers, a learned weighted sum, and two layers side by side.",
            show_default="up to 2^30 numbers",
        ),
    ] = None,
    level: Level = LEVEL,
) -> None:
    """Say which layer of frozen embeddings of anything to use.

    Probes are fitted across folds, with penalties chosen inside them; pairs and queries are compared by cosines. It
    reports the best layer, the layers that may be the best, the smallest that will do, and whether several layers
    together are better.

    Example:  [bold]layerprobe probe embeddings.npy proteins.csv --target stability --groups proteins.csv:family[/bold]

    Example:  [bold]layerprobe probe google-bert/bert-base-cased -t stsb[/bold]
    """
    of_model = source.task is not None
    if of_model == (targets is not None):
        raise typer.BadParameter("expected EMBEDDINGS and TARGETS, or a model with --task")
    if of_model and (groups or targets_are or target):
        raise typer.BadParameter("expected no --groups, --target and --targets-are with --task, which says all of that")
    if not of_model and (unread := sorted(given_options(context, TaskSource))):
        raise typer.BadParameter(f"expected no {flag(context, unread[0])} without --task")
    settings = ProbeSettings(folds=folds, foldings=foldings, tolerance=tolerance, seed=seed)
    task = source.load() if of_model else None

    # only now: an error in the options needs no torch
    from layerprobe.probing.run import probe as find_layer

    with output.progress(level):
        if task is None:
            result = find_layer(
                embeddings,
                targets,
                groups=groups,
                kind=targets_are,
                column=target,
                settings=settings,
                combinations=combinations,
            )
        else:
            from layerprobe.probing.models import probed_split

            checkpoint = extraction.resolve(embeddings)
            output.data(checkpoint, task, scored=probed_split(task))
            result = find_layer(checkpoint, task, settings=settings, combinations=combinations)
    output.notes(result.notes, result.warnings)
    output.result(result, result.table, "", result.sentence, result.cost)
    best = result.best_layer
    follow = export_layer(context, embeddings, best, f"layer-{best}") if of_model and not result.on_floor else []
    report.write(output, result, warnings=result.warnings, commands=follow)
