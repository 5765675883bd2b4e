"""layerprobe shrink."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from layerprobe.errors import DataError
from layerprobe.shrinking.values import TRAINING, WITHIN, ShrinkSettings, read_size
from layerprobe_cli.options import (
    FORMAT_KEYS,
    DryRun,
    Embedding,
    Model,
    Ray,
    Report,
    TaskSource,
    command,
    flag,
    given_options,
    integers,
    new_folder,
    option,
)
from layerprobe_cli.output import Output

READ_OF_TEXTS = {"columns", "file_format", "skip_empty", *FORMAT_KEYS}
"""Options that say how --texts are read where there is no task; empty ones are always skipped."""


def _size(text: str | None) -> str | None:
    try:
        read_size(text)
    except DataError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def _folder(out: Path | None) -> Path | None:
    return None if out is None else new_folder(out)


def _of_task(task: Any) -> Any:
    """Return the texts to train on of a task."""
    from layerprobe.tasks.values import TextFile

    return TextFile(name=f"the training split of {task.name}", texts=task.texts("train"))


def shrink(
    context: typer.Context,
    model: Model,
    source: TaskSource,
    embedding: Embedding,
    report: Report,
    output: Output,
    texts: Annotated[
        list[Path] | None,
        option(
            "Data",
            help="Texts to train on, labels are not needed: one per line in a .txt or .txt.gz file, or a table. Given "
            "again: further files.",
            show_default="the task's training texts",
        ),
    ] = None,
    within: Annotated[
        float, option("Size", min=1e-6, help="Points of the task's metric x 100 that it may be worse by.")
    ] = WITHIN,
    size: Annotated[
        str | None,
        option(
            "Size",
            callback=_size,
            help="How many blocks are kept, such as 3, or which, such as 1,5,6; or 50% of the parameters at most; or "
            "2x as fast at least.",
            show_default="the fewest blocks that are --within; without a task, half",
        ),
    ] = None,
    tune: Annotated[
        bool, option("Training", "--tune", help="Also fine-tune both on the task; the loss after that is what counts.")
    ] = False,
    dimensions: Annotated[
        int | None,
        option("Size", min=1, help="How many features its embeddings keep.", show_default="all"),
    ] = None,
    front: Annotated[
        bool,
        option("Report", "--front", help="Also measure both models by every backend, and in 8 bits: speed and loss."),
    ] = False,
    seeds: Annotated[str, option("Training", help="How many seeds of the training, or a list such as 3,5,8.")] = "1",
    epochs: Annotated[int, option("Training", min=1, help="Passes over the texts.")] = TRAINING.epochs,
    learning_rate: Annotated[
        float, option("Training", min=1e-12, help="Peak of the linear schedule.")
    ] = TRAINING.learning_rate,
    batch_size: Annotated[int, option("Training", min=2, help="Texts a step.")] = TRAINING.batch_size,
    out: Annotated[
        Path | None, option("Report", "--out", "-o", callback=_folder, help="Also export the model to this folder.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at --out.")] = False,
    ray: Ray = None,
    dry_run: DryRun = False,
) -> None:
    """Take blocks out of a model that is good as a whole.

    Which blocks go is seen by forward passes. The rest is trained on the whole model's embeddings of texts, without
    labels. On a task it reports by how much the smaller model is worse, and whether that is shown to be within what you
    allow.

    Example:  [bold]layerprobe shrink sentence-transformers/all-MiniLM-L6-v2 --texts corpus.txt -t stsb -o small[/bold]
    """
    listed = integers(seeds, "--seeds")
    task = source.load() if source.task else None
    if task is None and not texts:
        raise typer.BadParameter("expected texts to train on: give --texts FILE, or a task with --task")
    if task is None and tune:
        raise typer.BadParameter("expected a task with --tune: give --task FILE")
    if task is None and (unread := sorted(given_options(context, TaskSource) - READ_OF_TEXTS)):
        raise typer.BadParameter(f"expected no {flag(context, unread[0])} without --task")

    # only now: an error in the data needs no torch
    from layerprobe.export.checkpoint import check_target
    from layerprobe.shrinking.run import plan_shrinking
    from layerprobe.shrinking.run import shrink as make_smaller
    from layerprobe.tasks.loading import load_corpus

    if out is not None:
        check_target(out, overwrite=overwrite)  # before anything is trained
    # with a task, columns and format are those of the task
    read: dict[str, Any] = {} if task else {"columns": source.columns, "format": source.format}
    corpus = load_corpus(texts, **read) if texts else _of_task(task)
    checkpoint = embedding.resolve(model)
    how: dict[str, Any] = {
        "size": size,
        "tune": tune,
        "seeds": listed if "," in seeds else listed[0],
        "protocol": replace(TRAINING, epochs=epochs, learning_rate=learning_rate, batch_size=batch_size),
        "settings": ShrinkSettings(within=within, dimensions=dimensions, front=front),
    }
    output.notes(corpus.notes, corpus.warnings)
    warnings = () if task is None else output.data(checkpoint, task)
    plan = plan_shrinking(checkpoint, corpus, task, **how)
    output.plan(plan, dry_run=dry_run)
    with output.progress():
        result = make_smaller(checkpoint, corpus, task, ray=ray, **how)
    output.notes((), result.warnings)
    tables = [*([result.order] if result.removals else []), result.table, *([result.ways] if front else [])]
    parts: list[Any] = [*tables, result.sentence]
    further = [] if result.fastest_int8 is None else ["--int8", result.fastest_int8]
    commands = [] if dimensions else [command("export", result.folder, "smaller", *further)]
    if out is not None:
        from layerprobe.export.run import export_model

        exported = export_model(result.folder, out, made=result.account, dense=result.dense, overwrite=overwrite)
        output.notes((), exported.warnings)
        parts.append(f"Folder: {out}")
        commands = []
    else:
        parts.append(f"To write it as a folder: {commands[0] if commands else 'the same command with --out FOLDER'}")
    output.result(result, *parts)
    report.write(output, result, warnings=warnings, commands=commands)
